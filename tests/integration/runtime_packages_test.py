#!/usr/bin/env python3
"""deploy/packages/runtime.txt names the packages of exactly the libraries that the programs link.

Usage: runtime_packages_test.py SOURCE_DIR BUILD_DIR. Exits with 77 (skipped) where there is no dpkg.
"""
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE, BUILD = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
# Needed by every program, part of every system.
ESSENTIAL = {"libc6", "libgcc-s1"}
# Not a library.
NO_LIBRARY = {"ca-certificates"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def package_of(path):
    """The package that holds a library; dpkg knows it under /usr/lib or /lib, or by its real name."""
    real = str(pathlib.Path(path).resolve())
    for candidate in (path, real, re.sub("^/usr", "", path), re.sub("^/usr", "", real)):
        found = subprocess.run(["dpkg", "-S", candidate], check=False, capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    sys.exit(f"FAILED: {path} belongs to no package")


if not all(shutil.which(tool) for tool in ("dpkg", "ldd", "readelf")):
    print("SKIPPED: no dpkg, ldd or readelf here")
    sys.exit(77)

needed = set()
for program in (BUILD / "tessera-server", BUILD / "tessera"):
    names = set(re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", program)))
    paths = dict(re.findall(r"^\s*(\S+) => (/\S+)", output("ldd", program), re.M))
    for name in names & paths.keys():
        needed.add(package_of(paths[name]))
needed -= ESSENTIAL

listed = {}
for line in (SOURCE / "deploy/packages/runtime.txt").read_text().splitlines():
    alternatives = line.split("#")[0].replace("|", " ").split()
    for name in alternatives:
        listed[name] = alternatives
missing = sorted(needed - listed.keys())
used = {tuple(listed[name]) for name in needed & listed.keys()}
idle = sorted({tuple(group) for group in listed.values()} - used - {(name,) for name in NO_LIBRARY})
for name in missing:
    print(f"FAILED: the programs link a library of {name}, which runtime.txt does not name")
for group in idle:
    print(f"FAILED: runtime.txt names {' | '.join(group)}, of which the programs link nothing")
print(f"{len(needed)} packages linked, {len(missing)} missing, {len(idle)} too many")
sys.exit(1 if missing or idle else 0)
