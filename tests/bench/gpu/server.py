"""The server on a GPU under load: inter-token latency, tokens/s and time to first token, for a grid of streams and prompts.

  python3 tests/bench/gpu/server.py --bin build --load-generator build/bench/load_generator \
      [--model tests/bench/models/qwen3-30b-a3b] [--json FILE]

A directory with config.json alone is served with dummy NVFP4 weights. Each row is a run of its own seed, so that no prompt
is found in the prefix cache; a short run before the first warms the server up.

"idle" is the share of the steps' time in which the device waited for the host, by its own clock: from one step's end to the
next one's beginning, and from its logits to their sampling, while there was work; "idle us" the same in microseconds a step.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

# streams, prompt tokens, output tokens, requests, temperature
GRID = [(1, 128, 128, 4, 0), (8, 128, 128, 16, 0), (64, 128, 128, 128, 0), (64, 128, 128, 128, 1), (256, 128, 128, 512, 0),
        (1, 1024, 4, 4, 0), (1, 8192, 4, 4, 0)]


def step_sums(metrics):
    """Seconds and count of the device's idle time, and seconds of the model's steps, since the server's start."""
    with urllib.request.urlopen(f'http://{metrics}/metrics', timeout=30) as answer:
        lines = dict(line.rsplit(' ', 1) for line in answer.read().decode().splitlines() if not line.startswith('#'))
    return [float(lines[name]) for name in ('tessera_step_device_idle_seconds_sum', 'tessera_step_device_idle_seconds_count',
                                            'tessera_step_seconds_sum{phase="run"}')]


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
    log = tempfile.TemporaryFile(mode='w+')
    server = subprocess.Popen([str(word) for word in command + args.server_option], stderr=log)
    try:
        while subprocess.run([args.bin / 'tessera', 'health', '--quiet', '--address', address], check=False,
                             stderr=subprocess.DEVNULL).returncode != 0:
            if server.poll() is not None or time.monotonic() - started > 300:
                log.seek(0)
                sys.exit(f'the server did not start: {" ".join(map(str, command))}\n{log.read()[-2000:]}')
            time.sleep(0.2)
        print(f'serving after {time.monotonic() - started:.1f} s', flush=True)

        def load(streams, prompt, output, requests, temperature, seed):
            report = subprocess.run(
                [args.load_generator, '--address', address, '--concurrency', str(streams), '--prompt-tokens', str(prompt),
                 '--output-tokens', str(output), '--requests', str(requests), '--temperature', str(temperature), '--seed',
                 str(seed), '--server-pid', str(server.pid), '--json'], capture_output=True, text=True, check=True).stdout
            return json.loads(report)

        load(8, 128, 16, 16, 0, 999)
        print('streams  prompt/output  temperature  inter-token ms p50  p99   tokens/s   TTFT ms p50   p99   idle  idle us   outcomes')
        for seed, (streams, prompt, output, requests, temperature) in enumerate(GRID, 1):
            before = step_sums(metrics)
            try:
                r = load(streams, prompt, output, requests, temperature, seed)
            except subprocess.CalledProcessError as error:  # a prompt longer than the model's context, say
                print(f'{streams:7}  {prompt:6}/{output:<6} not served: {error.stderr.strip()[-200:]}', flush=True)
                continue
            idle, steps, run = (b - a for a, b in zip(before, step_sums(metrics)))
            r['device_idle_share'], r['host_us_per_step'] = idle / (idle + run), idle / steps * 1e6
            latency, first = r['inter_token_latency'], r['time_to_first_token']
            print(f'{streams:7}  {prompt:6}/{output:<6} {temperature:12} {latency["p50"] * 1e3:16.2f} {latency["p99"] * 1e3:7.2f} '
                  f'{r["output_tokens_per_second"]:10.0f} {first["p50"] * 1e3:12.1f} {first["p99"] * 1e3:7.1f} '
                  f'{r["device_idle_share"]:6.1%} {r["host_us_per_step"]:8.0f}   {r["outcomes"]}', flush=True)
            if args.json:
                with open(args.json, 'a') as file:
                    file.write(json.dumps({'bench': 'server', 'model': str(args.model and args.model.name),
                                           'streams': streams, 'prompt': prompt, 'output': output,
                                           'temperature': temperature,
                                           'date': time.strftime('%Y-%m-%d'), **r}) + '\n')
    finally:
        server.terminate()
        server.wait(60)


if __name__ == '__main__':
    main()
