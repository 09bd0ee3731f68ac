#!/usr/bin/env python3
"""Compares the tokenizer with the `tokenizers` and `sentencepiece` libraries on random strings.

  differential.py --pipe build/bench/tokenizer_pipe [--strings 1000000] [--seed N] [--tokenizer NAME=DIRECTORY ...]

The tokenizers are those of tests/golden/tokenizer and the ones given, each a folder with tokenizer.json or
tokenizer.model. Strings: source code, scripts, marks, emoji sequences, odd white space, spelled-out tokens, long runs, any
code point. Exits 1 if ids or texts differ anywhere, with the first few of them printed.
"""

import argparse
import pathlib
import random
import sys
import time

import pipe

BATCH = 2000


def strings(vectors, corpus, rng, count):
    """`count` random texts; one in 200 is long, a run or a repetition."""
    texts = vectors.make_texts(corpus, rng, count + 400)[400:]
    units = ["a", " ", "\n", "\t ", "A", "1", ".", "é", "中", "\u0301", "a\u0301", "😀", "👨‍👩‍👧", "ab", " a", "'", "\u200d", "\r\n", "\u3000", "ﬁ", "가"]
    for i in range(0, len(texts), 200):
        run = "".join(rng.choice(units) * rng.randint(1, 400) for _ in range(rng.randint(1, 3)))
        texts[i] = rng.choice(["", "x", " "]) + run + rng.choice(["", "x", " "])
    for i in range(100, len(texts), 200):
        texts[i] = "".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(rng.randint(1, 60))) if not 0xD800 <= c < 0xE000)
    return texts[:count]


class Library:
    """A tokenizer.json in the tokenizers library."""

    def __init__(self, vectors, directory):
        from tokenizers import Tokenizer

        self.vectors = vectors
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.json = self.tokenizer.to_str()
        self.named = [t.content for t in self.tokenizer.get_added_tokens_decoder().values()]
        if '"model":{"type":"BPE"' in self.json:
            self.json = self.json[:200_000]
        # What its model cannot express, the library refuses as a whole batch.
        self.size = self.tokenizer.get_vocab_size(with_added_tokens=True)

    def modes(self, texts, rng):
        chosen = [rng.choice((0, 0, 1, 1, 2, 3)) for _ in texts]
        return [m if self.vectors.comparable(self.tokenizer, t, m, self.named, self.json) else None for t, m in zip(texts, chosen)]

    def encode(self, texts, modes):
        out = [None] * len(texts)
        for mode in range(4):
            which = [i for i, m in enumerate(modes) if m == mode]
            self.tokenizer.encode_special_tokens = not mode & 1
            encodings = self.tokenizer.encode_batch_fast([texts[i] for i in which], add_special_tokens=bool(mode & 2))
            for i, encoding in zip(which, encodings):
                out[i] = encoding.ids
        return out

    def decode(self, lists, skip):
        return self.tokenizer.decode_batch(lists, skip_special_tokens=bool(skip))


class SentencePiece:
    """A tokenizer.model in the sentencepiece library."""

    def __init__(self, vectors, directory):
        import sentencepiece

        self.sp = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))

    def modes(self, texts, rng):
        return [0] * len(texts)

    def encode(self, texts, modes):
        return self.sp.encode(texts)

    def decode(self, lists, skip):
        return self.sp.decode(lists)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipe", required=True, help="the program tokenizer_pipe")
    parser.add_argument("--strings", type=int, default=1_000_000, help="over all tokenizers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", action="append", default=[], metavar="NAME=DIRECTORY")
    parser.add_argument("--only-given", action="store_true", help="leave out the golden tokenizers")
    parser.add_argument("--environment", default="build/tools/tokenizers", help="virtual environment to make if need be")
    args = parser.parse_args()
    pipe.need_libraries(args.environment)
    vectors = pipe.vectors_module()

    folders = [] if args.only_given else [p.parent for n in ("tokenizer.json", "tokenizer.model") for p in sorted(pipe.GOLDEN.glob(f"*/{n}"))]
    tokenizers = [(f.name, f) for f in folders] + [(n, pathlib.Path(d)) for n, d in (t.split("=", 1) for t in args.tokenizer)]
    files = sorted(pathlib.Path(random.__file__).parent.glob("*.py"))[60:160]
    corpus = "\n".join(f.read_text(encoding="utf-8", errors="ignore") for f in files)
    rng = random.Random(args.seed)
    share = -(-args.strings // len(tokenizers))
    total = wrong = 0
    for name, folder in tokenizers:
        start = time.time()
        library = (Library if (folder / "tokenizer.json").exists() else SentencePiece)(vectors, folder)
        ours = pipe.Pipe(args.pipe, folder)
        different = compared = 0
        for begin in range(0, share, BATCH):
            texts = strings(vectors, corpus, rng, min(BATCH, share - begin))
            modes = library.modes(texts, rng)
            texts, modes = [t for t, m in zip(texts, modes) if m is not None], [m for m in modes if m is not None]
            expected, got = library.encode(texts, modes), ours.encode(texts, modes)
            compared += len(texts)
            for text, mode, a, b in zip(texts, modes, expected, got):
                if a != b:
                    different += 1
                    if different <= 3:
                        print(f"{name}, mode {mode}: {text!r}\n  expected {a}\n       got {b}")
            texts = [None] * len(texts)
            for skip in (0, 1) if isinstance(library, Library) else (1,):
                for ids, a, b in zip(expected, library.decode(expected, skip), ours.decode(expected, skip)):
                    if a != b:
                        different += 1
                        if different <= 3:
                            print(f"{name}, decode, skip {skip}: {ids}\n  expected {a!r}\n       got {b!r}")
        ours.close()
        print(f"{name:18} {compared:8} strings, {different} differ, {time.time() - start:.0f} s", flush=True)
        total += compared
        wrong += different
    print(f"{total} strings, {wrong} differ")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
