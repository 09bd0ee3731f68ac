"""Servers of their own on free ports, and build/bench/load_generator against them."""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time


class Server:
    """A server process for the length of a with block; `address` is its own."""

    def __init__(self, build, model, flags):
        self.start(lambda ports: [build / "tessera-server", "--model", model, "--listen", "127.0.0.1:0", "--metrics",
                                  "127.0.0.1:0", "--port-file", ports, *flags])

    def start(self, command):
        """command: from the path of the file that the server writes its port to."""
        self.directory = tempfile.TemporaryDirectory()
        ports = pathlib.Path(self.directory.name) / "ports"
        self.log = open(pathlib.Path(self.directory.name) / "log", "w+")
        self.process = subprocess.Popen(command(ports), stdin=subprocess.PIPE, stdout=self.log, stderr=subprocess.STDOUT)
        while not (ports.exists() and ports.read_text().endswith("\n")):
            if self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f"the server did not start:\n{self.log.read()}")
            time.sleep(0.05)
        self.address = "127.0.0.1:" + ports.read_text().split()[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.process.stdin.close()
        self.log.close()
        self.directory.cleanup()


class BareServer(Server):
    """bare_server.cc: what gRPC alone does."""

    def __init__(self, build):
        self.start(lambda ports: [build / "bench" / "bare_server", ports])


def load(build, server, **options):
    command = [build / "bench" / "load_generator", "--json", "--address", server.address, "--server-pid",
               str(server.process.pid)]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    failed = {k: v for k, v in report["outcomes"].items() if k != "ok"}
    if failed:
        sys.exit(f"requests failed: {failed} ({' '.join(map(str, command))})")
    return report
