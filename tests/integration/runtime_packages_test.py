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


def packages_of(paths):
    """The packages that hold these libraries; dpkg knows them under /usr/lib or /lib, by their name or its target."""
    names = {path: {one for name in (path, str(pathlib.Path(path).resolve())) for one in (name, re.sub("^/usr", "", name))}
             for path in paths}
    # One call for all: each reads the file lists of every package.
    found = subprocess.run(["dpkg", "-S", *sorted(set().union(*names.values()))], check=False, capture_output=True,
                           text=True).stdout
    owner = {line.rsplit(": ", 1)[1]: line.split(":")[0] for line in found.splitlines() if ": " in line}
    for path in paths:
        packages = {owner[name] for name in names[path] if name in owner}
        if not packages:
            sys.exit(f"FAILED: {path} belongs to no package")
        yield from packages


if not all(shutil.which(tool) for tool in ("dpkg", "ldd", "readelf")):
    print("SKIPPED: no dpkg, ldd or readelf here")
    sys.exit(77)

libraries = set()
for program in (BUILD / "tessera-server", BUILD / "tessera"):
    names = set(re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", program)))
    paths = dict(re.findall(r"^\s*(\S+) => (/\S+)", output("ldd", program), re.M))
    libraries |= {paths[name] for name in names & paths.keys()}
needed = set(packages_of(sorted(libraries)))
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
