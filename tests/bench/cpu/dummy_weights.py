"""Random weights of plausible size in the forms of GGUF files, to time shapes.

A pool of random blocks is drawn once for each type; tensors are cut from it at random places, whole blocks at a time.
"""

import random
import struct

import gguf_file

POOL_BLOCKS = 1 << 20


def _signed(positive, negative):
    """For bytes.translate: either byte, by the sign bit."""
    return bytes(negative if b & 0x80 else positive for b in range(256))


def _pool(kind, draw):
    size = gguf_file.TENSOR_TYPES[kind][2]
    pool = bytearray(draw.randbytes(size * POOL_BLOCKS))

    def every(i, data):
        """Puts one byte, or what bytes.translate makes of those there, at byte i of all blocks."""
        pool[i::size] = data * POOL_BLOCKS if len(data) == 1 else pool[i::size].translate(data)

    # Scales of either sign: codes of Q4_0 and Q6_K reach further down than up, and weights with a mean would drown all tokens
    # in one direction.
    if kind == "NVFP4":
        for i in range(4):
            every(i, b"\x04")  # 2^-7
    elif kind == "Q4_0":
        low, high = struct.pack("<e", 0.005)
        every(0, bytes([low]))
        every(1, _signed(high, high | 0x80))
    elif kind == "Q6_K":
        for i in range(192, 208):
            every(i, _signed(0x10, 0xF0))
        for i, byte in enumerate(struct.pack("<e", 7e-5)):
            every(208 + i, bytes([byte]))
    else:  # BF16, and F32 with its lower half zero: +-(2^-7 to 2^-5)
        every(size - 1, _signed(0x3C, 0xBC))
        for i in range(size - 2):
            every(i, b"\0")
    return memoryview(bytes(pool))


class DummyWeights:
    def __init__(self, seed=1):
        self.draw = random.Random(seed)
        self.pools = {}

    def pieces(self, kind, count):
        """`count` bytes of blocks of `kind`."""
        if kind not in self.pools:
            self.pools[kind] = _pool(kind, self.draw)
        pool, size = self.pools[kind], gguf_file.TENSOR_TYPES[kind][2]
        while count > 0:
            begin = size * self.draw.randrange(POOL_BLOCKS)
            piece = pool[begin:begin + count]
            yield piece
            count -= len(piece)
