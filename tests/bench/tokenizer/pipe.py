"""Drives tokenizer_pipe, and finds the libraries to compare it with."""

import importlib.util
import os
import pathlib
import struct
import subprocess
import sys
import threading

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "tokenizer"
PACKAGES = ["tokenizers==0.23.3", "sentencepiece==0.2.3"]
SKIPPED = 77


def need_libraries(environment):
    """Returns if the libraries can be imported; else goes on in a virtual environment that has them, or exits."""
    if all(importlib.util.find_spec(p.split("=")[0]) for p in PACKAGES):
        return
    python = pathlib.Path(environment) / "bin" / "python"
    if os.environ.get("TESSERA_TOKENIZERS_ENVIRONMENT"):
        print("the virtual environment lacks a library", file=sys.stderr)
        sys.exit(SKIPPED)
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    except (subprocess.CalledProcessError, OSError) as e:
        print(f"skipped: {' and '.join(PACKAGES)} are not here and cannot be installed: {e}", file=sys.stderr)
        sys.exit(SKIPPED)
    os.environ["TESSERA_TOKENIZERS_ENVIRONMENT"] = environment
    os.execv(python, [str(python), *sys.argv])


def vectors_module():
    sys.path.insert(0, str(GOLDEN))
    import make_vectors

    return make_vectors


class Pipe:
    """A running tokenizer_pipe."""

    def __init__(self, program, directory):
        self.process = subprocess.Popen([program, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _ask(self, records, read):
        # From another thread, as both pipes may be full at once.
        def write():
            for operation, data in records:
                self.process.stdin.write(struct.pack("<BI", operation, len(data)) + data)
            self.process.stdin.flush()

        # The answers are flushed when the time is asked for.
        records = list(records) + [(16, b"")]
        thread = threading.Thread(target=write)
        thread.start()
        answers = [read() for _ in records[:-1]]
        (self.seconds,) = struct.unpack("<d", self._read(8))
        thread.join()
        return answers

    def _read(self, size):
        data = self.process.stdout.read(size)
        if len(data) != size:
            raise RuntimeError(f"tokenizer_pipe ended with {self.process.wait()}")
        return data

    def _read_ids(self):
        (count,) = struct.unpack("<I", self._read(4))
        if count == 0xFFFFFFFF:
            return self._read_text()
        return list(struct.unpack(f"<{count}i", self._read(4 * count)))

    def _read_text(self):
        (size,) = struct.unpack("<I", self._read(4))
        return self._read(size).decode()

    def encode(self, texts, modes):
        """The ids of each text, or an error message; `seconds` is the time it took."""
        return self._ask(zip(modes, (t.encode() for t in texts)), self._read_ids)

    def decode(self, lists, skip):
        return self._ask(((8 | skip, struct.pack(f"<{len(ids)}i", *ids)) for ids in lists), self._read_text)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
