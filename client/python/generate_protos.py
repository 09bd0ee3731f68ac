#!/usr/bin/env python3
"""Turns proto/tessera/v1/*.proto into Python modules.

Usage: generate_protos.py OUT_DIR. Uses grpcio-tools if it is installed, else protoc with grpc_python_plugin (Debian:
protobuf-compiler and protobuf-compiler-grpc).
"""
import pathlib
import re
import shutil
import subprocess
import sys

PROTO_ROOT = pathlib.Path(__file__).resolve().parents[2] / "proto"
NAMES = ("types", "inference", "control")
# Where the generated modules live, so that no top-level package `tessera` is claimed.
PACKAGE = "tessera_client._proto."


def _compiler():
    try:
        import grpc_tools  # noqa: F401
        import importlib.resources
        include = importlib.resources.files("grpc_tools") / "_proto"
        return [sys.executable, "-m", "grpc_tools.protoc", f"-I{include}"]
    except ImportError:
        pass
    plugin = shutil.which("grpc_python_plugin")
    if shutil.which("protoc") and plugin:
        return ["protoc", f"--plugin=protoc-gen-grpc_python={plugin}"]
    raise SystemExit("generating the client needs grpcio-tools (pip) or protoc with grpc_python_plugin")


def generate(out_dir):
    out_dir = pathlib.Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    files = [str(PROTO_ROOT / "tessera" / "v1" / f"{name}.proto") for name in NAMES]
    subprocess.run([*_compiler(), f"-I{PROTO_ROOT}", f"--python_out={out_dir}", f"--grpc_python_out={out_dir}", *files],
                   check=True)
    for folder in (out_dir, out_dir / "tessera", out_dir / "tessera" / "v1"):
        (folder / "__init__.py").touch()
    for module in (out_dir / "tessera" / "v1").glob("*_pb2*.py"):
        text = module.read_text()
        module.write_text(re.sub(r"^from tessera\.v1 import", f"from {PACKAGE}tessera.v1 import", text, flags=re.M))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    generate(sys.argv[1])
