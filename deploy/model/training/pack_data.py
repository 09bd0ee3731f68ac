"""Tokenises the documents that prepare_data.py wrote.

    python3 pack_data.py --work DIR --tokenizer TOKENIZER_DIR --out PACKED_DIR

Writes PACKED_DIR/{train,heldout_text,heldout_gloss}.npz with `words` (uint16: the token id in bits 0-12, bit 14 set
on tokens to be learnt, bit 15 set on the first token of a document), `lengths` (tokens in each document) and
`running` (1 for documents of running text).
"""

import argparse
import itertools
import json
import pathlib

import numpy as np
import tokenizers

LEARN, START = 1 << 14, 1 << 15
CONTEXT = 2048


def batches(lines, size=20000):
    while batch := [json.loads(line) for line in itertools.islice(lines, size)]:
        yield batch


def pack(path, tokenizer):
    end = tokenizer.token_to_id("<|endoftext|>")
    words, lengths, running = [], [], []
    with open(path, encoding="utf-8") as lines:
        for records in batches(lines):
            encoded = iter(tokenizer.encode_batch([t for r in records for t, _ in r["parts"]]))
            for record in records:
                document = []
                for _, learn in record["parts"]:
                    document += [i | (LEARN if learn else 0) for i in next(encoded).ids]
                if record["form"] != "chat":
                    document.append(end | LEARN)
                document = np.array(document[:CONTEXT], np.uint16)
                document[0] |= START
                words.append(document)
                lengths.append(len(document))
                running.append(record["form"] == "text")
    return np.concatenate(words), np.array(lengths, np.uint16), np.array(running, np.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    for name in ("train", "heldout_text", "heldout_gloss"):
        words, lengths, running = pack(args.work / f"{name}.jsonl", tokenizer)
        np.savez_compressed(args.out / f"{name}.npz", words=words, lengths=lengths, running=running)
        print(f"{name}: {len(lengths)} documents, {len(words)} tokens, {int((words & LEARN > 0).sum())} to learn, "
              f"longest {lengths.max()}")


if __name__ == "__main__":
    main()
