"""Writes GGUF files (version 3), the format of llama.cpp, with nothing but the standard library.

Layout: header, key-value pairs, tensor descriptions, then the tensors' bytes, each at a multiple of 32 from the start of
the data. Dimensions are stored innermost first.
"""

import struct

ALIGNMENT = 32

# Name: (number in the file, elements a block, bytes a block).
TENSOR_TYPES = {"F32": (0, 1, 4), "BF16": (30, 1, 2), "Q4_0": (2, 32, 18), "Q6_K": (14, 256, 210), "NVFP4": (40, 64, 36)}


def tensor_bytes(kind, shape):
    """Bytes of a tensor of `shape`, outermost first; its rows must be whole blocks."""
    _, elements, size = TENSOR_TYPES[kind]
    if shape[-1] % elements:
        raise ValueError(f"rows of {shape[-1]} are no whole number of blocks of {elements} ({kind})")
    count = 1
    for extent in shape:
        count *= extent
    return count // elements * size


def _string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _value(value):
    """(type number, bytes): int as uint32, float as float32, bool, str, or a list of one of int (as int32) and str."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    if all(isinstance(x, int) for x in value):
        return 9, struct.pack(f"<IQ{len(value)}i", 5, len(value), *value)
    return 9, struct.pack("<IQ", 8, len(value)) + b"".join(_string(x) for x in value)


def write(path, fields, tensors):
    """fields: {key: value}; tensors: (name, type, shape outermost first, function that returns its bytes in pieces)."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(fields))]
    for key, value in fields.items():
        number, data = _value(value)
        head += [_string(key), struct.pack("<I", number), data]
    offset = 0
    for name, kind, shape, _ in tensors:
        head += [_string(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), TENSOR_TYPES[kind][0], offset)]
        offset += -(-tensor_bytes(kind, shape) // ALIGNMENT) * ALIGNMENT
    with open(path, "wb") as file:
        file.write(b"".join(head))
        file.write(bytes(-file.tell() % ALIGNMENT))
        for name, kind, shape, pieces in tensors:
            written = sum(file.write(piece) for piece in pieces())
            if written != tensor_bytes(kind, shape):
                raise ValueError(f"{name}: {written} bytes, not {tensor_bytes(kind, shape)}")
            file.write(bytes(-written % ALIGNMENT))
