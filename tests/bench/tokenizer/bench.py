#!/usr/bin/env python3
"""Encoding speed beside that of the `tokenizers` library, on one thread each, in turns within one run.

  bench.py --pipe build/bench/tokenizer_pipe [--tokenizer NAME=DIRECTORY ...] [--megabytes N] [--rounds N]

Times are the processor's, within the two encoders (the library's encode_batch_fast, which leaves out offsets), medians
over the rounds. Texts are new in each round, so that caches of words help as they would with new requests. Exits 1 if the
tokenizer is slower anywhere.
"""

import argparse
import os
import pathlib
import random
import statistics
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pipe  # noqa: E402


def corpora(vectors, rng, size):
    """name -> a function that makes about `size` bytes of texts."""
    folder = pathlib.Path(random.__file__).parent
    code = "\n".join(f.read_text(encoding="utf-8", errors="ignore") for f in sorted(folder.glob("*.py")))
    prose = "\n".join(line for line in code.splitlines() if line.count(" ") > 5 and not set(line) & set("=()[]{}_#@"))

    def cut(text, low, high):
        def make():
            out, done = [], 0
            while done < size:
                n = rng.randint(low, high)
                at = rng.randrange(max(len(text) - n, 1))
                out.append(text[at : at + n])
                done += n
            return out

        return make

    def mixed():
        return vectors.make_texts(code, rng, size // 50)

    return {"prose, 200 to 2000 characters": cut(prose, 200, 2000), "code, 20000 characters": cut(code, 20000, 20000), "mixed scripts, short": mixed}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipe", required=True, help="the program tokenizer_pipe")
    parser.add_argument("--tokenizer", action="append", default=[], metavar="NAME=DIRECTORY", help="default: some golden ones")
    parser.add_argument("--megabytes", type=float, default=1.0, help="of text in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--environment", default="build/tools/tokenizers", help="virtual environment to make if need be")
    args = parser.parse_args()
    pipe.need_libraries(args.environment)
    vectors = pipe.vectors_module()
    from tokenizers import Tokenizer

    given = [t.split("=", 1) for t in args.tokenizer] or [(n, pipe.GOLDEN / n) for n in ("qwen", "o200k", "deepseek", "gpt2", "llama2", "unigram")]
    slower = False
    print(f"{'tokenizer':12} {'texts':30} {'tessera MB/s':>13} {'tokenizers MB/s':>16} {'ratio':>6}")
    for name, folder in given:
        library = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
        library.encode_special_tokens = True
        ours = pipe.Pipe(args.pipe, folder)
        for corpus, make in corpora(vectors, random.Random(3), int(args.megabytes * 1e6)).items():
            speeds = ([], [])
            for _ in range(args.rounds):
                texts = make()
                megabytes = sum(len(t.encode()) for t in texts) / 1e6
                start = time.process_time()
                library.encode_batch_fast(texts, add_special_tokens=False)
                speeds[1].append(megabytes / (time.process_time() - start))
                ours.encode(texts, [0] * len(texts))
                speeds[0].append(megabytes / ours.seconds)
            a, b = (statistics.median(s) for s in speeds)
            slower = slower or a < b
            print(f"{name:12} {corpus:30} {a:13.1f} {b:16.1f} {a / b:6.1f}", flush=True)
        ours.close()
    sys.exit(slower)


if __name__ == "__main__":
    main()
