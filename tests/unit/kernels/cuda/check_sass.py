#!/usr/bin/env python3
"""Checks the machine code of the CUDA kernels: python3 check_sass.py LIBRARY [DIRECTORY...]

Each kernel that is to run on the tensor cores must hold their instructions, and no kernel may touch local memory (a
spilled register, or an array indexed at run time). What is expected is said below, by architecture and kernel.

cuobjdump, and nvdisasm that it calls, are looked for on the PATH and in the directories; tests/run fetches them where the
toolkit has none. Without them the exit code is 77: skipped.
"""

import collections
import os
import re
import shutil
import subprocess
import sys

# Kernel (part of its mangled name) -> instructions of which each must occur.
EXPECTED = {
    "sm_90a": {
        "FmhaDecodeKernel": ["HMMA.16816.F32.BF16", "LDSM", "UTMALDG.2D"],
        "FmhaPrefillKernel": ["HGMMA.64x64x16.F32.BF16", "LDGSTS", "UTMALDG.2D"],
        "GroupedGemmKernel": ["HMMA.16816.F32.BF16"],
        "GroupedGemmLargeKernel": ["HGMMA.64x128x16", "HGMMA.64x64x16", "HGMMA.64x32x16", "UTMALDG.2D", "UBLKCP"],
    },
    "sm_100a": {
        # The products, their completion, loads and stores of tensor memory, tensor copies.
        "FmhaDecodeSm100Kernel": ["UTCHMMA", "UTCBAR", "LDTM", "STTM", "UTMALDG.2D", "UTMALDG.3D"],
        # Block-scaled 4-bit products, scales to tensor memory, bulk copies.
        "Nvfp4GemmKernel": ["UTCOMMA", "UTCCP", "UTCBAR", "LDTM", "UBLKCP"],
        "Nvfp4GemmPairKernel": ["UTCOMMA", "UTCCP", "UTCBAR", "LDTM", "UBLKCP"],
        "GroupedGemmKernel": ["HMMA.16816.F32.BF16"],
    },
}
# An instruction's address, its predicate, its name.
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.M)


def read_kernels(library):
    """Yields (architecture, mangled name, count of each instruction)."""
    dump = subprocess.run(["cuobjdump", "-sass", library], check=True, capture_output=True, text=True).stdout
    for part in re.split(r"^arch = ", dump, flags=re.M)[1:]:
        arch = part.split("\n", 1)[0].strip()
        for function in re.split(r"^\s*Function : ", part, flags=re.M)[1:]:
            name, body = function.split("\n", 1)
            yield arch, name.strip(), collections.Counter(INSTRUCTION.findall(body))


def main(library, *directories):
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), *directories])
    missing = [name for name in ("cuobjdump", "nvdisasm") if not shutil.which(name)]
    if missing:
        print(f"skipped: no {' and no '.join(missing)} here, so the kernels' instructions cannot be read (that none spills "
              "or uses local memory the build itself has checked); PyPI has both: tests/run fetches them")
        return 77
    errors, seen = [], collections.Counter()
    for arch, name, instructions in read_kernels(library):
        seen[arch] += 1
        local = [i for i in instructions if re.match(r"(LDL|STL)\b", i)]
        if local:
            errors.append(f"{arch} {name}: local memory ({', '.join(local)})")
        for kernel, expected in EXPECTED.get(arch, {}).items():
            if not re.search(rf"\d{kernel}I", name):
                continue
            seen[arch, kernel] += 1
            for instruction in expected:
                if not any(i == instruction or i.startswith(instruction + ".") for i in instructions):
                    errors.append(f"{arch} {name}: no {instruction}")
    for arch, kernels in EXPECTED.items():
        for kernel in kernels:
            print(f"{arch} {kernel}: {seen[arch, kernel]} instantiations")
            if not seen[arch, kernel]:
                errors.append(f"{arch} {kernel}: not in the library")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
