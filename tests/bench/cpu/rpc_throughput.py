#!/usr/bin/env python3
"""What scheduler and RPC cost: the null backend's messages a second against bare gRPC reactors', with the same client.

  rpc_throughput.py [--streams 256] [--tokens 512] [--rounds 3] [--results cpu]

Rounds alternate between the two servers and the best of each counts. The reactors (tests/bench/client/bare_server.cc)
send the same number of messages, prepared, one a token; tessera-server may put several tokens into one.
"""

import argparse
import pathlib

import results
from loaded_server import BareServer, Server, load


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=results.ROOT / "deploy" / "model")
    parser.add_argument("--build", type=pathlib.Path, default=results.ROOT / "build")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", help="name of a file in tests/bench/results to append to")
    args = parser.parse_args()
    options = dict(concurrency=args.streams, requests=2 * args.streams, prompt_tokens=16, output_tokens=args.tokens)
    limits = ["--device", "null", "--max-running", str(args.streams), "--max-queued", str(2 * args.streams)]
    best = {"bare": None, "null": None}
    for _ in range(args.rounds):
        for name in best:
            with BareServer(args.build) if name == "bare" else Server(args.build, args.model, limits) as server:
                report = load(args.build, server, **options)
            if best[name] is None or report["output_tokens_per_second"] > best[name]["output_tokens_per_second"]:
                best[name] = report
    shape = f"{args.streams} streams of {args.tokens} tokens"
    rows = [results.row("rpc_" + key, shape, best["null"][key], unit, best["bare"][key], "bare gRPC reactors",
                        best["bare"][key])
            for key, unit in (("messages_per_second", "messages/s"), ("output_tokens_per_second", "tokens/s"))]
    for entry in rows:
        print(f"{entry['bench']:30} {entry['value']:10.0f} {entry['unit']}, bare reactors {entry['ceiling']:10.0f}, "
              f"{100 * entry['fraction']:.0f} %")
    print(f"tokens a message: {best['null']['tokens_per_message']:.2f}")
    if args.results:
        results.append(results.ROOT / "tests" / "bench" / "results" / f"{pathlib.Path(args.results).stem}.jsonl", rows)


if __name__ == "__main__":
    main()
