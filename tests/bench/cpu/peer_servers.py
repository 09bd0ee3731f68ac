"""Other programs' servers for the length of a with block, and what to ask them for.

They are started as their documentation advises for speed on a CPU: as many threads as cores, a slot a stream, flash
attention, weights in memory that is not a file's, no cache of prompts, greedy sampling in its cheapest form.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import http_streams


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class HttpServer:
    path = "/v1/completions"

    def start(self, command, environment, patience):
        """command: without the port, which goes to its end."""
        self.port = free_port()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(word) for word in command] + ["--port", str(self.port)], stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=subprocess.STDOUT, env=os.environ | environment,
                                        start_new_session=True)
        end = time.monotonic() + patience
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                text = self.log.read()
                errors = [line for line in text.splitlines() if "rror" in line][:20]
                self.stop()
                sys.exit("\n".join([f"no server from {' '.join(map(str, command))}:", *errors, "...", text[-500:]]))
            time.sleep(0.1)

    def healthy(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def stop(self):
        for how in (signal.SIGTERM, signal.SIGKILL):  # the second for what the first left of its process group
            try:
                os.killpg(self.process.pid, how)
                self.process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def run(self, prompts, output):
        """One stream for each list of token ids in `prompts`; (seconds to the first token, seconds from it to the last) of
        each."""
        out = []
        for stream in http_streams.run(self.port, self.path, [self.body(prompt, output) for prompt in prompts]):
            made = self.tokens(http_streams.events(stream))
            if made != output:
                raise RuntimeError(f"{made} tokens came, not {output}")
            times = http_streams.token_times(stream)
            out.append((times[0] - stream.start, times[-1] - times[0]))
        return out


class LlamaServer(HttpServer):
    """llama.cpp's server; programs: folder of llama-server, model: a GGUF file, slots: streams at once."""

    path = "/completion"

    def __init__(self, programs, model, threads, context, slots):
        command = [programs / "llama-server", "--model", model, "--threads", threads, "--threads-batch", threads, "--parallel",
                   slots, "--ctx-size", slots * context, "--no-kv-unified", "--flash-attn", "on", "--load-mode",
                   "none", "--no-cache-prompt", "--cache-ram", 0, "--no-webui", "--log-verbosity", 1]
        self.start(command, {}, 120)

    def body(self, prompt, output):
        return {"prompt": prompt, "n_predict": output, "ignore_eos": True, "stream": True, "temperature": 0, "top_k": 1,
                "samplers": ["top_k"], "cache_prompt": False}

    def tokens(self, events):
        return events[-1]["tokens_predicted"]


class VllmServer(HttpServer):
    """vLLM's server; python: of its environment, model: a Hugging Face directory, dummy: with made-up weights."""

    def __init__(self, python, model, threads, context, slots, dummy):
        libraries = pathlib.Path(python).parent.parent / "lib"
        preload = [*libraries.glob("libiomp5.so"), *pathlib.Path("/usr/lib/x86_64-linux-gnu").glob("libtcmalloc_minimal.so.4")]
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "model",
                   "--dtype", "bfloat16", "--max-model-len", context, "--max-num-seqs", slots,
                   "--no-enable-prefix-caching", "--disable-log-stats", *(["--load-format", "dummy"] if dummy else [])]
        self.start(command, {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
                             "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "HF_HUB_OFFLINE": "1",
                             "LD_PRELOAD": ":".join(map(str, preload))}, 600)

    def body(self, prompt, output):
        return {"model": "model", "prompt": prompt, "max_tokens": output, "ignore_eos": True, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}

    def tokens(self, events):
        return events[-1]["usage"]["completion_tokens"]
