#!/usr/bin/env python3
"""Checks a wheel: its size, its tag, what is in it, and the symbols that the program and its parts ask glibc for.

    python3 packaging/check_wheel.py oarlock-….whl

It needs objdump (binutils).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import List, Tuple

MOST_BYTES = 16_000_000
GLIBC = (2, 17)

# What every Linux of the policy has.
LIBRARIES = {
    "libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1", "libutil.so.1",
    "ld-linux-x86-64.so.2",
}

LICENSES = ("LICENSE-MIT", "LICENSE-APACHE", "third-party.txt", "Gloo.txt", "LLVM.txt", "Zig.txt", "musl.txt")

# An ELF file inside the program: the shim over Gloo.
ELF = b"\x7fELF\x02\x01\x01"


def main() -> int:
    """Checks the wheel that is named."""
    wheel = Path(sys.argv[1])
    faults: List[str] = []
    n_bytes = wheel.stat().st_size
    tags = re.fullmatch(r"oarlock-[^-]+-py3-none-(\S+)\.whl", wheel.name)
    is_static = tags is not None and tags[1] == "musllinux_1_1_x86_64"
    # A local wheel has the paths and the libraries of the machine that it is for, installs nowhere else, and is not downloaded.
    is_local = tags is not None and tags[1] == "linux_x86_64"
    if n_bytes > MOST_BYTES and not is_local:
        faults.append(f"{n_bytes} bytes are more than {MOST_BYTES}")
    if not is_static and not is_local and (tags is None or set(tags[1].split(".")) != {"manylinux_2_17_x86_64", "manylinux2014_x86_64"}):
        faults.append(f"the tag of {wheel.name} is another one")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        programs = [name for name in names if ".data/" in name]
        program = archive.read(programs[0]) if programs else b""
        texts = b"".join(archive.read(name) for name in names if name not in programs)
    if len(programs) != 1 or not programs[0].endswith(".data/scripts/oarlock"):
        faults.append(f"one program `oarlock` is installed, and not {programs}")
    for wanted in ("oarlock/__init__.py", "oarlock/py.typed", *LICENSES):
        if not any(name.endswith(wanted) for name in names):
            faults.append(f"{wanted} is missing")
    foreign = [name for name in names if not re.match(r"oarlock(/|-[^/]*\.(data|dist-info)/)", name) or "tests" in name]
    if foreign:
        faults.append(f"it has files of nobody: {foreign}")
    named = [os.environ.get(name) for name in ("CARGO_HOME", "CARGO_TARGET_DIR", "GLOO_SOURCE")]
    places = [Path.home(), Path(__file__).resolve().parents[1], *(Path(name).absolute() for name in named if name)]
    for place in [] if is_local else places:
        if f"{place}/".encode() in program or f"{place}/".encode() in texts:
            faults.append(f"it has a path of this machine, below {place}")
    if any("sboms/" in name for name in names):
        faults.append("its list of parts (SBOM) has the paths of the machine that built it")
    highest = (0, 0)
    for index, part in enumerate([] if is_local else parts(program)):
        newest, needed = needs(part)
        highest = max(highest, newest)
        if newest > GLIBC:
            faults.append(f"part {index} of the program asks for glibc {newest[0]}.{newest[1]}")
        if is_static and (needed or newest > (0, 0)):
            faults.append(f"part {index} of the static program needs libraries: {sorted(needed)}")
        if needed - LIBRARIES:
            faults.append(f"part {index} of the program needs {sorted(needed - LIBRARIES)}")
    n_parts = len(parts(program))
    asked = f"highest symbol GLIBC_{highest[0]}.{highest[1]}"
    if is_static or is_local:
        asked = "static" if is_static else "for this machine"
    print(f"{wheel.name}: {n_bytes / 1e6:.2f} MB, the program {len(program) / 1e6:.1f} MB in {n_parts} part(s), {asked}")
    for fault in faults:
        print(f"{wheel.name}: {fault}", file=sys.stderr)
    return 1 if faults else 0


def parts(program: bytes) -> List[bytes]:
    """The program, and libraries that it carries inside. Each is cut off where the next begins."""
    starts = [found.start() for found in re.finditer(re.escape(ELF), program)]
    # A library has a header with the type 3 (shared) at byte 16; other matches are data.
    starts = [at for at in starts if program[at + 16 : at + 18] in (b"\x02\x00", b"\x03\x00") and program[at + 18] == 62]
    return [program[at:] for at in starts]


def needs(part: bytes) -> "Tuple[Tuple[int, int], set[str]]":
    """The newest version of glibc of which a part needs a symbol, and the libraries that it names."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(part)
        file.flush()
        said = subprocess.run(["objdump", "-T", file.name], capture_output=True, encoding="utf-8", check=False)
        # A static program asks for nothing.
        if said.returncode != 0 and "not a dynamic object" not in said.stderr:
            raise SystemExit(said.stderr)
        headers = subprocess.run(["objdump", "-p", file.name], capture_output=True, encoding="utf-8", check=True).stdout
    found = [(int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", said.stdout)]
    return max(found, default=(0, 0)), set(re.findall(r"NEEDED\s+(\S+)", headers))


if __name__ == "__main__":
    sys.exit(main())
