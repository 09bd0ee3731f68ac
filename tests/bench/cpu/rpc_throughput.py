#!/usr/bin/env python3
"""What scheduler and RPC cost: the null backend's messages a second against bare gRPC reactors', with the same client.

  rpc_throughput.py [--streams 256] [--tokens 512] [--rounds 3] [--results cpu]

Rounds alternate between the servers and the best of each counts. The reactors (tests/bench/client/bare_server.cc) send the
same number of messages, prepared, one a token. tessera-server runs in two ways: as fast as it can, where tokens that
gather while a message is written go out together; and with steps that take a time (--null-step-time), the shortest of
those tried at which every message but one in fifty has one token.
"""

import argparse
import pathlib

import results
from loaded_server import BareServer, Server, load

ONE = 1.02  # tokens a message
STEP_US = (250, 500, 750, 1000, 1250, 1500, 2000, 2500, 3000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=results.ROOT / "deploy" / "model")
    parser.add_argument("--build", type=pathlib.Path, default=results.ROOT / "build")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-us", type=int, nargs="*", default=STEP_US, help="times of a step to try")
    parser.add_argument("--results", help="name of a file in tests/bench/results to append to")
    args = parser.parse_args()
    options = dict(concurrency=args.streams, requests=2 * args.streams, prompt_tokens=16, output_tokens=args.tokens)
    limits = ["--device", "null", "--max-running", str(args.streams), "--max-queued", str(2 * args.streams)]

    def run(name, flags=()):
        server = BareServer(args.build) if name == "bare" else Server(args.build, args.model, [*limits, *flags])
        with server:
            report = load(args.build, server, **options)
        print(f"{name:12} {report['messages_per_second']:9.0f} messages/s {report['output_tokens_per_second']:9.0f} tokens/s "
              f"{report['tokens_per_message']:6.2f} tokens a message; CPU seconds: server "
              f"{report.get('server_cpu_seconds', 0):.2f}, client {report['client_cpu_seconds']:.2f}", flush=True)
        return report

    bare, free, paced = [], [], {}
    for _ in range(args.rounds):
        bare.append(run("bare"))
        free.append(run("free"))
        for step_us in args.step_us:
            if any(us < step_us and r["tokens_per_message"] <= ONE for us, r in paced.items()):
                continue
            report = run(f"{step_us} us", ["--null-step-time", f"{step_us}us"])
            if step_us not in paced or report["tokens_per_message"] < paced[step_us]["tokens_per_message"]:
                paced[step_us] = report
    ceiling = max(r["messages_per_second"] for r in bare)
    fastest = max(r["output_tokens_per_second"] for r in free)
    ones = [r["messages_per_second"] for r in paced.values() if r["tokens_per_message"] <= ONE]
    shape = f"{args.streams} streams of {args.tokens} tokens"
    rows = [results.row("rpc_coalesced", shape, fastest, "tokens/s", ceiling, "bare gRPC reactors", ceiling)]
    if ones:
        rows.append(results.row("rpc_one_token_a_message", shape, max(ones), "messages/s", ceiling, "bare gRPC reactors",
                                ceiling))
    for entry in rows:
        print(f"{entry['bench']:26} {entry['value']:10.0f} {entry['unit']}, bare reactors {entry['ceiling']:10.0f}, "
              f"{100 * entry['fraction']:.0f} %")
    if args.results:
        results.append(results.ROOT / "tests" / "bench" / "results" / f"{pathlib.Path(args.results).stem}.jsonl", rows)


if __name__ == "__main__":
    main()
