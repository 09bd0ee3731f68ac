"""Generates the messages from the .proto files of this repository while the package is built."""
import pathlib
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
import generate_protos  # noqa: E402


class BuildWithProtos(build_py):
    def run(self):
        generate_protos.generate(here / "tessera_client" / "_proto")
        super().run()


generate_protos.generate(here / "tessera_client" / "_proto")
setup(cmdclass={"build_py": BuildWithProtos})
