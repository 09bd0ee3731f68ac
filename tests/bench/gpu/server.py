"""The server on a GPU under load: inter-token latency, tokens/s and time to first token, for a grid of streams and prompts.

  python3 tests/bench/gpu/server.py --bin build --load-generator build/bench/load_generator \
      [--model tests/bench/models/qwen3-30b-a3b] [--json FILE]

A directory with config.json alone is served with dummy NVFP4 weights. Each row is a run of its own seed, so that no prompt
is found in the prefix cache; a short run before the first warms the server up.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

# streams, prompt tokens, output tokens, requests
GRID = [(1, 128, 128, 4), (8, 128, 128, 16), (64, 128, 128, 128), (256, 128, 128, 512), (1, 1024, 4, 4), (1, 8192, 4, 4)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--bin', type=pathlib.Path, required=True, help='folder of tessera-server and tessera')
    parser.add_argument('--load-generator', type=pathlib.Path, required=True)
    parser.add_argument('--model', type=pathlib.Path)
    parser.add_argument('--port', type=int, default=50071)
    parser.add_argument('--server-option', action='append', default=[])
    parser.add_argument('--json', help='append a JSON line a row')
    args = parser.parse_args()
    address, metrics = f'127.0.0.1:{args.port}', f'127.0.0.1:{args.port + 1}'
    command = [args.bin / 'tessera-server', '--device', 'cuda', '--listen', address, '--metrics', metrics]
    if args.model:
        command += ['--model', args.model]
        if not list(args.model.glob('*.safetensors')):
            command += ['--load-format', 'dummy']
    started = time.monotonic()
    server = subprocess.Popen([str(word) for word in command + args.server_option], stderr=subprocess.DEVNULL)
    try:
        while subprocess.run([args.bin / 'tessera', 'health', '--quiet', '--address', address], check=False,
                             stderr=subprocess.DEVNULL).returncode != 0:
            if server.poll() is not None or time.monotonic() - started > 300:
                sys.exit(f'the server did not start: {" ".join(map(str, command))}')
            time.sleep(0.2)
        print(f'serving after {time.monotonic() - started:.1f} s', flush=True)

        def load(streams, prompt, output, requests, seed):
            report = subprocess.run(
                [args.load_generator, '--address', address, '--concurrency', str(streams), '--prompt-tokens', str(prompt),
                 '--output-tokens', str(output), '--requests', str(requests), '--seed', str(seed), '--server-pid',
                 str(server.pid), '--json'], capture_output=True, text=True, check=True).stdout
            return json.loads(report)

        load(8, 128, 16, 16, 999)
        print('streams  prompt/output  inter-token ms p50  p99   tokens/s   TTFT ms p50   p99   outcomes')
        for seed, (streams, prompt, output, requests) in enumerate(GRID, 1):
            r = load(streams, prompt, output, requests, seed)
            latency, first = r['inter_token_latency'], r['time_to_first_token']
            print(f'{streams:7}  {prompt:6}/{output:<6} {latency["p50"] * 1e3:16.2f} {latency["p99"] * 1e3:7.2f} '
                  f'{r["output_tokens_per_second"]:10.0f} {first["p50"] * 1e3:12.1f} {first["p99"] * 1e3:7.1f}   '
                  f'{r["outcomes"]}', flush=True)
            if args.json:
                with open(args.json, 'a') as file:
                    file.write(json.dumps({'bench': 'server', 'model': str(args.model and args.model.name),
                                           'streams': streams, 'prompt': prompt, 'output': output,
                                           'date': time.strftime('%Y-%m-%d'), **r}) + '\n')
    finally:
        server.terminate()
        server.wait(60)


if __name__ == '__main__':
    main()
