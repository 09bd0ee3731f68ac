#!/usr/bin/env python3
"""What a token costs, against batch, context, prompt length and shared prefix: tables and a picture each, by one command.

  cost_curves.py [--model DIR] [--out DIR] [--quick] [--results FILE] [-- SERVER-FLAG ...]

Starts build/tessera-server for each curve and loads it with build/bench/load_generator. Without --model the bundled model
is served. Flags behind -- go to the server, for example: -- --load-format dummy --device cpu. A curve that is longer than the
model's context is drawn with the model's shapes, a longer context and dummy weights. Writes DIR/NAME.svg and DIR/NAME.md,
and appends rows to FILE (tests/bench/results/cpu.jsonl with --results cpu).
"""

import argparse
import json
import pathlib
import tempfile

import chart
import results
from loaded_server import Server, load

# Each curve yields (x, {series: value}). Its largest number of tokens in one sequence stands in LONGEST.


def batch(build, server, quick):
    for streams in (1, 4, 16) if quick else (1, 2, 4, 8, 16, 32, 64, 128, 256):
        r = load(build, server, concurrency=streams, requests=2 * streams, prompt_tokens=64, output_tokens=64)
        yield streams, {"tokens/s": r["output_tokens_per_second"], "step, ms": 1e3 * r["inter_token_latency"]["p50"]}


def context(build, server, quick):
    for tokens in (256, 1024) if quick else (1024, 2048, 4096, 8192, 16384, 32768):
        # One seed: each prompt begins with the one before it, which the prefix cache holds.
        r = load(build, server, concurrency=1, requests=1, prompt_tokens=tokens - 32, output_tokens=32, seed=7)
        step = r["inter_token_latency"]["p50"]
        yield tokens, {"tokens/s": 1 / max(step, 1e-9), "step, ms": 1e3 * step}


def prompt(build, server, quick):
    for tokens in (64, 256, 1024) if quick else (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        r = load(build, server, concurrency=1, requests=3, prompt_tokens=tokens, output_tokens=1, seed=tokens)
        first = r["time_to_first_token"]["p50"]
        yield tokens, {"prompt tokens/s": tokens / max(first, 1e-9), "first token, ms": 1e3 * first}


def prefix(build, server, quick):
    for share in (0, 0.5, 1) if quick else (0, 0.25, 0.5, 0.75, 0.9, 1):
        r = load(build, server, concurrency=4, requests=24, prompt_tokens=1024, output_tokens=8, shared_prefix=share,
                 seed=1 + int(100 * share))
        yield share, {"prompt tokens/s": r["prompt_tokens"] / r["seconds"],
                      "first token, ms": 1e3 * r["time_to_first_token"]["p50"]}


CURVES = ("batch", "context", "prompt", "prefix")
LONGEST = {"batch": 128, "context": 32768, "prompt": 8193, "prefix": 1032}
TITLES = {"batch": ("Tokens and step time against streams", "streams"),
          "context": ("One stream against the length of its context", "tokens of context"),
          "prompt": ("One prompt against its length", "tokens of prompt"),
          "prefix": ("Four streams of 1024 prompt tokens against the share in common", "share")}


def with_context(model, tokens, folder):
    """`model`, or where its context is shorter than `tokens` a directory in `folder` of its shapes with that context."""
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    if config["max_position_embeddings"] >= tokens:
        return model, []
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": tokens}))
    return folder, ["--load-format", "dummy"]


def table(x_name, xs, series):
    lines = ["| " + " | ".join([x_name, *(name for name, _ in series)]) + " |", "|---" * (len(series) + 1) + "|"]
    lines += ["| " + " | ".join([f"{x:g}", *(f"{values[i]:.4g}" for _, values in series)]) + " |" for i, x in enumerate(xs)]
    return "\n".join(lines) + "\n"


def measure(name, args):
    """The curve's points."""
    longest = 1024 if args.quick else LONGEST[name]
    with tempfile.TemporaryDirectory() as folder:
        model, dummy = with_context(args.model, longest, pathlib.Path(folder))
        with Server(args.build, model, dummy + args.flags) as server:
            load(args.build, server, concurrency=4, requests=8, prompt_tokens=64, output_tokens=64, seed=12345)  # warms up
            return list(globals()[name](args.build, server, args.quick)), bool(dummy)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=results.ROOT / "deploy" / "model")
    parser.add_argument("--build", type=pathlib.Path, default=results.ROOT / "build")
    parser.add_argument("--out", type=pathlib.Path, default=results.ROOT / "build" / "cost_curves")
    parser.add_argument("--results", help="jsonl file to append to; a bare name stands in tests/bench/results")
    parser.add_argument("--curve", action="append", choices=CURVES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a few points each, to see that all works")
    parser.add_argument("flags", nargs="*", help="for the server")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in args.curve or CURVES:
        points, dummy = measure(name, args)
        xs = [x for x, _ in points]
        series = [(key, [values[key] for _, values in points]) for key in points[0][1]]
        title, x_name = TITLES[name]
        (args.out / f"{name}.svg").write_text(chart.line_chart(title, x_name, xs, series))
        (args.out / f"{name}.md").write_text(table(x_name, xs, series))
        print(f"### {title}{' (dummy weights)' if dummy else ''}\n\n{table(x_name, xs, series)}", flush=True)
        rows += [results.row(f"cost_{name}", f"{x:g} {x_name}", values[i], key) for key, values in series
                 for i, x in enumerate(xs)]
    if args.results:
        path = pathlib.Path(args.results)
        if path.parent == pathlib.Path("."):
            path = results.ROOT / "tests" / "bench" / "results" / f"{path.stem}.jsonl"
        results.append(path, rows)
    print(f"in {args.out}: {', '.join(sorted(p.name for p in args.out.iterdir()))}")


if __name__ == "__main__":
    main()
