"""NVFP4 matrices as checkpoints hold them, in the forms that other programs read.

A checkpoint's matrix is codes (two a byte, the even element in the low nibble, rows one after the other), scales (e4m3, one
for 16 elements) and one float for the whole matrix: value = e2m1(code) * e4m3(scale) * whole.
"""

import struct

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
LOW = bytes(b & 15 for b in range(256))
HIGH = bytes(b >> 4 for b in range(256))


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    magnitude = mantissa * 2.0 ** -9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if byte & 128 else magnitude


def bf16(value):
    """The two bytes of a finite float, rounded to nearest, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def ggml_blocks(codes, scales):
    """The same values as ggml's NVFP4 blocks: 64 elements, 4 scales and then 4 runs of 8 bytes; byte j of a run holds
    element j in its low nibble and element j + 8 in the high one. The float of the whole matrix stays outside."""
    if len(codes) != 8 * len(scales) or len(scales) % 4:
        raise ValueError(f"{len(codes)} bytes of codes and {len(scales)} scales are no whole blocks of 64")
    out = bytearray(len(scales) // 4 * 36)
    for run in range(4):
        out[run::36] = scales[run::4]
        for j in range(8):
            # Of the run's 8 bytes, element j lies in number j / 2, element j + 8 four bytes behind it.
            half = HIGH if j % 2 else LOW
            low = codes[8 * run + j // 2::32].translate(half)
            high = codes[8 * run + j // 2 + 4::32].translate(half)
            # Nibbles never carry into each other, so that one large number does all bytes at once.
            both = int.from_bytes(low, "little") | int.from_bytes(high, "little") << 4
            out[4 + 8 * run + j::36] = both.to_bytes(len(low), "little")
    return bytes(out)


def bf16_values(codes, scales, whole):
    """All values, rounded to BF16."""
    tables = {}
    out = []
    for block, scale in enumerate(scales):
        table = tables.get(scale)
        if table is None:
            values = [bf16(code * e4m3(scale) * whole) for code in E2M1]
            table = tables[scale] = [values[byte & 15] + values[byte >> 4] for byte in range(256)]
        out += [table[byte] for byte in codes[8 * block:8 * block + 8]]
    return b"".join(out)
