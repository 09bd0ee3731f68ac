#!/usr/bin/env python3
"""Latencies and stalls of scheduler and RPC on the null backend, with bare gRPC reactors as the peer where there is one.

  engine_latency.py [--quick] [--results cpu] [--only NAME ...]

token: from a step's end to the client's receipt of its tokens, with 1, 64 and 256 streams (token_latency).
gaps: what the host does between steps while requests come and go, prefixes are evicted and metrics scraped (step_gaps).
idle: memory of 10 000 open streams that wait (idle_streams).
first: first token of a server that nothing asked for a while (idle_first_token).
"""

import argparse
import json
import pathlib
import subprocess

import results

NAMES = ("token", "gaps", "idle", "first")


def run(build, name, *flags):
    command = [build / "bench" / name, "--tokenizer=" + str(results.ROOT / "deploy" / "model"), *flags]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(text, end="", flush=True)
    return json.loads(text.splitlines()[-1])


def token(build, quick):
    for streams in (1, 64, 256):
        flags = [f"--streams={streams}", f"--tokens={200 if quick else 1000}", "--step-us=5000"]
        bare, ours = run(build, "token_latency", "--bare", *flags), run(build, "token_latency", *flags)
        for key in ("p50", "p99"):
            yield results.row(f"token_latency_{key}", f"{streams} streams, steps of 5 ms", ours[key], "us", None,
                              "bare gRPC reactors", bare[key])


def gaps(build, quick):
    for streams in (64, 256):
        got = run(build, "step_gaps", f"--streams={streams}", f"--blocks={64 * streams}",
                  f"--seconds={5 if quick else 20}")
        for key in ("wall_p50", "wall_p99", "wall_max", "cpu_p50", "cpu_p99", "cpu_max"):
            yield results.row(f"step_gap_{key}", f"{streams} streams that come and go", got[key], "us")


def idle(build, quick):
    flags = ["--streams=1000"] if quick else []
    bare, ours = run(build, "idle_streams", "--bare", *flags), run(build, "idle_streams", *flags)
    yield results.row("idle_stream_bytes", f"{ours['streams']} streams", ours["bytes_a_stream"], "bytes", None,
                      "bare gRPC reactors", bare["bytes_a_stream"])


def first(build, quick):
    got = run(build, "idle_first_token", *(["--requests=3"] if quick else []))
    for key in ("p50", "p90", "max"):
        yield results.row(f"idle_first_token_{key}", "one request in 0.75 to 2.25 s", got[key], "ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=results.ROOT / "build")
    parser.add_argument("--only", action="append", choices=NAMES)
    parser.add_argument("--quick", action="store_true", help="short runs, to see that all works")
    parser.add_argument("--results", help="name of a file in tests/bench/results to append to")
    args = parser.parse_args()
    rows = [row for name in args.only or NAMES for row in globals()[name](args.build, args.quick)]
    for row in rows:
        peer = f", {row['peer']} {row['peer_value']:.1f}" if row["peer"] else ""
        print(f"{row['bench']:24} {row['shape']:32} {row['value']:10.1f} {row['unit']}{peer}")
    if args.results:
        results.append(results.ROOT / "tests" / "bench" / "results" / f"{pathlib.Path(args.results).stem}.jsonl", rows)


if __name__ == "__main__":
    main()
