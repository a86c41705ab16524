#!/usr/bin/env python3
"""Makes what a release holds, of a wheel that wheel.py has built: the archive that `cargo binstall` and people take, the list of
the program's parts (SBOM), and the checksums of all.

    python3 packaging/archive.py target/wheels/oarlock-….whl target/release-files

The same wheel gives the same bytes: files have the time of the commit, and no owner.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parent.parent
# The files of each shell, under the names by which it finds them.
COMPLETIONS = {"bash": "oarlock", "zsh": "_oarlock", "fish": "oarlock.fish", "elvish": "oarlock.elv", "powershell": "oarlock.ps1"}


def main() -> int:
    """Writes the files of the release into a new folder."""
    if len(sys.argv) != 3:
        print("usage: archive.py WHEEL FOLDER", file=sys.stderr)
        return 2
    wheel, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        files = contents(wheel, Path(folder))
    version = wheel.name.split("-")[1]
    target = "x86_64-unknown-linux-musl" if "musllinux" in wheel.name else "x86_64-unknown-linux-gnu"
    name = f"oarlock-{target}-v{version}"
    (out / f"{name}.tgz").write_bytes(packed(name, files, time_of_commit()))
    shutil.copyfile(wheel, out / wheel.name)
    sbom = subprocess.run([sys.executable, str(ROOT / "packaging" / "sbom.py")], check=True, capture_output=True)
    (out / f"oarlock-v{version}.cdx.json").write_bytes(sbom.stdout)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums), end="")
    return 0


def contents(wheel: Path, scratch: Path) -> Dict[str, bytes]:
    """The files of the archive: the program, what it says of itself, and the licenses."""
    with zipfile.ZipFile(wheel) as archive:
        programs = [name for name in archive.namelist() if name.endswith(".data/scripts/oarlock")]
        if len(programs) != 1:
            raise SystemExit(f"{wheel} has {len(programs)} programs, and not one")
        licenses = {name.rsplit("/", 1)[1]: archive.read(name) for name in archive.namelist() if "/licenses/" in name}
        program = scratch / "oarlock"
        program.write_bytes(archive.read(programs[0]))
    program.chmod(0o755)
    files = {"oarlock": program.read_bytes(), "README.md": (ROOT / "README.md").read_bytes(), **licenses}
    for shell, name in COMPLETIONS.items():
        files[f"completions/{name}"] = said(program, "completions", shell)
    man = scratch / "man1"
    said(program, "man", str(man))
    files.update({f"man/man1/{page.name}": page.read_bytes() for page in sorted(man.iterdir())})
    return files


def said(program: Path, *words: str) -> bytes:
    """What the program answers."""
    return subprocess.run([str(program), *words], check=True, capture_output=True).stdout


def packed(folder: str, files: Dict[str, bytes], time: int) -> bytes:
    """A compressed archive of the files, below one folder."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime = len(files[name]), time
            entry.mode = 0o755 if name == "oarlock" else 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    return gzip.compress(raw.getvalue(), mtime=time)


def time_of_commit() -> int:
    """The time of the commit, or what SOURCE_DATE_EPOCH says."""
    said_time = os.environ.get("SOURCE_DATE_EPOCH")
    if said_time:
        return int(said_time)
    git: List[str] = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(git, check=True, capture_output=True, encoding="utf-8").stdout)


if __name__ == "__main__":
    sys.exit(main())
