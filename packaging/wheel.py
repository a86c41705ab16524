#!/usr/bin/env python3
"""Builds the wheel: the program for x86-64 Linux with glibc 2.17 or newer, and the Python package, in target/wheels.

    python3 packaging/wheel.py

It needs Rust, Python with venv, and the registries of crates and of PyPI, from which it takes maturin and the C compiler and
linker of Zig. Where GLOO_SOURCE names the sources of Gloo, they become part of the program.
No path of this machine, and no time but that of the commit, gets into it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Dict, List, Optional

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ["maturin==1.16.0", "ziglang==0.17.1"]
TARGET = "x86_64-unknown-linux-gnu"
GLIBC = "2.17"
POLICY = "manylinux2014"

# The C++ compiler of Zig links its standard library always as a part, and takes no flags that ask for it.
COMPILER = """\
#!/bin/sh
for word in "$@"; do
  shift
  case $word in
    --target=* | -static-libstdc++ | -static-libgcc | -Wl,--exclude-libs,ALL) ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {python} -m ziglang c++ -target x86_64-linux-gnu.{glibc} "$@"
"""


def main() -> int:
    """Builds the wheel, checks it, and prints its path."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute()
    tools = target / "wheel-tools"
    python = tools / "bin" / "python"
    if not all(version(python, tool) for tool in TOOLS):
        venv.create(tools, clear=True, with_pip=True)
        call([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *TOOLS])
    out = target / "wheels"
    shutil.rmtree(out, ignore_errors=True)
    command = ["build", "--release", "--zig", "--target", TARGET, "--compatibility", POLICY, "--auditwheel", "check"]
    call([str(tools / "bin" / "maturin"), *command, "--out", str(out)], environment(tools, target))
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        print(f"there are {len(wheels)} wheels in {out}, and not one", file=sys.stderr)
        return 1
    call([sys.executable, str(ROOT / "packaging" / "check_wheel.py"), str(wheels[0])])
    print(wheels[0])
    return 0


def environment(tools: Path, target: Path) -> Dict[str, str]:
    """The variables of the build, by which no path of this machine gets into the program."""
    env = dict(os.environ)
    cargo = Path(env.get("CARGO_HOME") or Path.home() / ".cargo")
    renamed = {ROOT: "/oarlock", target: "/target", cargo: "/cargo"}
    env["RUSTFLAGS"] = " ".join(f"--remap-path-prefix={place}={name}" for place, name in renamed.items())
    env["CFLAGS"] = env["CXXFLAGS"] = " ".join(f"-ffile-prefix-map={place}={name}" for place, name in renamed.items())
    env["CARGO_TARGET_DIR"] = str(target)
    env["CARGO_INCREMENTAL"] = "0"
    env["PATH"] = f"{tools / 'bin'}{os.pathsep}{env['PATH']}"
    if not env.get("SOURCE_DATE_EPOCH"):
        git = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        said = subprocess.run(git, capture_output=True, encoding="utf-8", check=False)
        # Where there is no history: the first day that a zip file can have.
        env["SOURCE_DATE_EPOCH"] = said.stdout.strip() or "315532800"
    if env.get("GLOO_SOURCE"):
        env["GLOO_SOURCE"] = str(Path(env["GLOO_SOURCE"]).absolute())
        compiler = tools / "bin" / "oarlock-c++"
        compiler.write_text(COMPILER.format(python=tools / "bin" / "python", glibc=GLIBC))
        compiler.chmod(0o755)
        # Whoever has named another compiler means it.
        env.setdefault(f"CXX_{TARGET.replace('-', '_')}", str(compiler))
    else:
        env["OARLOCK_GLOO"] = "off"
        print("note: GLOO_SOURCE names no sources of Gloo, so ranks of this wheel are on one machine", file=sys.stderr)
    return env


def version(python: Path, tool: str) -> bool:
    """Whether a tool is there in its version."""
    name, _, wanted = tool.partition("==")
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    if not python.exists():
        return False
    said = subprocess.run([str(python), "-c", code], capture_output=True, encoding="utf-8", check=False)
    return said.stdout.strip() == wanted


def call(command: List[str], env: Optional[Dict[str, str]] = None) -> None:
    """Runs a command, which must succeed."""
    print("+", " ".join(command), file=sys.stderr, flush=True)
    code = subprocess.run(command, env=env, cwd=ROOT, check=False).returncode
    if code != 0:
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
