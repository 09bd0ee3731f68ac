#!/usr/bin/env python3
"""Compares tokenizer_bench with the `tokenizers` library: one thread each, the same lines, taking turns.

  tokenizer_compare.py BENCH_PROGRAM TOKENIZER_DIR TEXT_FILE [TURNS]
"""

import json
import os
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402  (reads the variable)

bench, folder, path = sys.argv[1:4]
turns = int(sys.argv[4]) if len(sys.argv) > 4 else 5
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.encode_special_tokens = True
lines = open(path, encoding="utf-8", newline="").read().splitlines(keepends=True)
size = sum(len(line.encode()) for line in lines)


def library(seconds):
    best, start = float("inf"), time.perf_counter()
    while True:
        begin = time.perf_counter()
        ids = sum(len(tokenizer.encode(line, add_special_tokens=False).ids) for line in lines)
        best = min(best, time.perf_counter() - begin)
        if time.perf_counter() - start > seconds:
            return size / best / 1e6, ids


ratios = []
for _ in range(turns):
    ours = json.loads(subprocess.run([bench, folder, path, "1"], check=True, capture_output=True, text=True).stdout)
    theirs, ids = library(1)
    assert abs(ours["ids"] - ids) <= len(lines), (ours["ids"], ids)
    ratios.append(ours["mb_per_s"] / theirs)
    print(f"tessera {ours['mb_per_s']:8.2f} MB/s   tokenizers {theirs:8.2f} MB/s   ratio {ratios[-1]:.2f}")
print(f"median ratio {sorted(ratios)[len(ratios) // 2]:.2f}")
