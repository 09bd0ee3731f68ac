"""Random weights of plausible size in the forms of GGUF files, to time shapes.

A pool of random blocks is drawn once for each type; tensors are cut from it at random places, whole blocks at a time.
"""

import random
import struct

import gguf_file

POOL_BLOCKS = 1 << 20
SIGNED_HIGH = bytes(0x3C | (b & 0x80) for b in range(256))  # of BF16: +-(2^-7 to 2^-5)


def _pool(kind, draw):
    size = gguf_file.TENSOR_TYPES[kind][2]
    pool = bytearray(draw.randbytes(size * POOL_BLOCKS))
    if kind == "NVFP4":
        for i in range(4):
            pool[i::size] = b"\x04" * POOL_BLOCKS  # 2^-7
    elif kind == "Q4_0":
        for i, byte in enumerate(struct.pack("<e", 0.005)):
            pool[i::size] = bytes([byte]) * POOL_BLOCKS
    elif kind == "Q6_K":
        for i, byte in enumerate(b"\x10" * 16 + struct.pack("<e", 7e-5)):
            pool[192 + i::size] = bytes([byte]) * POOL_BLOCKS
    else:  # BF16, and F32 with its lower half zero
        high = size - 1
        pool[high::size] = pool[high::size].translate(SIGNED_HIGH)
        for i in range(size - 2):
            pool[i::size] = bytes(POOL_BLOCKS)
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
