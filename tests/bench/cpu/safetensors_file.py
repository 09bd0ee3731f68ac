"""Reads a safetensors file, with nothing but the standard library."""

import json
import mmap
import struct


class SafetensorsFile:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        length = struct.unpack("<Q", self.data[:8])[0]
        self.entries = json.loads(self.data[8:8 + length])
        self.start = 8 + length

    def __contains__(self, name):
        return name in self.entries

    def shape(self, name):
        return self.entries[name]["shape"]

    def bytes(self, name, dtype):
        entry = self.entries[name]
        if entry["dtype"] != dtype:
            raise ValueError(f"{name} is {entry['dtype']}, not {dtype}")
        begin, end = entry["data_offsets"]
        return self.data[self.start + begin:self.start + end]

    def float(self, name):
        return struct.unpack("<f", self.bytes(name, "F32"))[0]
