#!/usr/bin/env python3
"""Builds a wheel: the program for x86-64 Linux and the Python package, in target/wheels.

    python3 packaging/wheel.py               # for glibc 2.17 or newer
    python3 packaging/wheel.py --musl        # static, for Alpine and for containers with nothing else
    python3 packaging/wheel.py --local       # for this machine alone: what `cargo build --release` has built is used again

It needs Rust, Python with venv, and the registries of crates and of PyPI, from which it takes maturin, the C compiler and
linker of Zig, and Zopfli. Where GLOO_SOURCE names the sources of Gloo, they become part of the program for glibc.
A static program opens no libraries, so it has no GPUs, no Gloo and no MPI. `rustup target add x86_64-unknown-linux-musl` brings
what it needs of Rust; where RUSTC names a compiler that has the source of its standard library instead (Debian: rustc-web and
rust-web-src), OARLOCK_BUILD_STD=1 compiles that as well.
No path of this machine, and no time but that of the commit, gets into a wheel for others. A local one is of cargo's own
program, with the paths, the glibc and the Gloo of this machine; its tag says so, and PyPI takes no such wheel.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ["maturin==1.16.0", "ziglang==0.17.1", "zopflipy==1.14"]
GLIBC = "2.17"


class Kind(NamedTuple):
    """What a wheel is for: a target of Rust, or that of cargo's own builds, and the systems on which pip installs it."""

    target: Optional[str]
    policy: str


GNU = Kind("x86_64-unknown-linux-gnu", "manylinux2014")
MUSL = Kind("x86_64-unknown-linux-musl", "musllinux_1_1")
LOCAL = Kind(None, "linux")

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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--musl", dest="kind", action="store_const", const=MUSL, default=GNU, help="a static program, for musl")
    kinds.add_argument("--local", dest="kind", action="store_const", const=LOCAL, help="for this machine alone")
    kind: Kind = parser.parse_args().kind
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute()
    tools = target / "wheel-tools"
    python = tools / "bin" / "python"
    if not all(version(python, tool) for tool in TOOLS):
        venv.create(tools, clear=True, with_pip=True)
        call([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *TOOLS])
    out = target / "wheels"
    pattern = f"oarlock-*-{kind.policy}*.whl" if kind == LOCAL else f"oarlock-*{kind.policy}*.whl"
    for wheel in out.glob(pattern):
        wheel.unlink()
    command = ["build", "--release", "--compatibility", kind.policy]
    if kind.target is None:
        command += ["--auditwheel", "skip"]
        env = dict(os.environ, CARGO_TARGET_DIR=str(target))
    else:
        command += ["--zig", "--target", kind.target, "--auditwheel", "check", "--config", str(ROOT / "packaging" / "wheel.toml")]
        env = environment(kind, kind.target, tools, target)
    if kind == MUSL and env.get("OARLOCK_BUILD_STD"):
        command += ["-Z", "build-std=std,panic_unwind"]
        env["RUSTC_BOOTSTRAP"] = "1"
    call([str(tools / "bin" / "maturin"), *command, "--out", str(out)], env)
    wheels = sorted(out.glob(pattern))
    if len(wheels) != 1:
        print(f"there are {len(wheels)} wheels in {out}, and not one", file=sys.stderr)
        return 1
    if kind.target is not None:
        call([str(python), str(ROOT / "packaging" / "recompress.py"), str(wheels[0])])
    call([sys.executable, str(ROOT / "packaging" / "check_wheel.py"), str(wheels[0])])
    print(wheels[0])
    return 0


def environment(kind: Kind, triple: str, tools: Path, target: Path) -> Dict[str, str]:
    """The variables of the build, by which no path of this machine gets into the program."""
    env = dict(os.environ)
    cargo = Path(env.get("CARGO_HOME") or Path.home() / ".cargo")
    # The last that fits counts, so what may lie in another folder comes after that.
    renamed = {ROOT: "/oarlock", target: "/target", cargo: "/cargo", **rust_source(env)}
    if env.get("GLOO_SOURCE"):
        renamed[Path(env["GLOO_SOURCE"]).absolute()] = "/gloo"
    # It would count more.
    env.pop("CARGO_ENCODED_RUSTFLAGS", None)
    env["RUSTFLAGS"] = " ".join(f"--remap-path-prefix={place}={name}" for place, name in renamed.items())
    if kind == MUSL:
        # What musl's programs begin with is Zig's, as its library is.
        env["RUSTFLAGS"] += " -C link-self-contained=no"
    env["CFLAGS"] = env["CXXFLAGS"] = " ".join(f"-ffile-prefix-map={place}={name}" for place, name in renamed.items())
    env["CARGO_TARGET_DIR"] = str(target)
    env["CARGO_INCREMENTAL"] = "0"
    env["PATH"] = f"{tools / 'bin'}{os.pathsep}{env['PATH']}"
    if not env.get("SOURCE_DATE_EPOCH"):
        git = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        said = subprocess.run(git, capture_output=True, encoding="utf-8", check=False)
        # Where there is no history: the first day that a zip file can have.
        env["SOURCE_DATE_EPOCH"] = said.stdout.strip() or "315532800"
    if kind == MUSL:
        env.pop("GLOO_SOURCE", None)
    elif env.get("GLOO_SOURCE"):
        env["GLOO_SOURCE"] = str(Path(env["GLOO_SOURCE"]).absolute())
        compiler = tools / "bin" / "oarlock-c++"
        compiler.write_text(COMPILER.format(python=tools / "bin" / "python", glibc=GLIBC))
        compiler.chmod(0o755)
        # Whoever has named another compiler means it.
        env.setdefault(f"CXX_{triple.replace('-', '_')}", str(compiler))
    else:
        env["OARLOCK_GLOO"] = "off"
        print("note: GLOO_SOURCE names no sources of Gloo, so ranks of this wheel are on one machine", file=sys.stderr)
    return env


def rust_source(env: Dict[str, str]) -> Dict[Path, str]:
    """Where the source of Rust's standard library may be, and its name in a standard library that was built elsewhere."""

    def said(*words: str) -> str:
        command = [env.get("RUSTC") or "rustc", *words]
        return subprocess.run(command, capture_output=True, encoding="utf-8", cwd=ROOT, check=True).stdout

    commit = re.search(r"^commit-hash: ([0-9a-f]+)$", said("-vV"), re.MULTILINE)
    name = f"/rustc/{commit[1]}" if commit is not None else "/rustc/unknown"
    return {Path(said("--print", "sysroot").strip(), "lib", "rustlib", "src", "rust"): name}


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
