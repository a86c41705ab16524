"""Finds the program ``oarlock`` that was installed with this package, and runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Iterator, List, Mapping, Optional, Sequence, Union

NAME = "oarlock"

#: Names another program than the one that was installed.
VARIABLE = "OARLOCK_BINARY"


def binary() -> Path:
    """The program. The variable OARLOCK_BINARY names another one than that of this package."""
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise FileNotFoundError(f"{VARIABLE} names {named}, which is not a file")
        return path.absolute()
    tried: List[str] = []
    for folder in _folders():
        path = folder / NAME
        if path.is_file():
            return path
        if str(path) not in tried:
            tried.append(str(path))
    places = "".join(f"\n  {path}" for path in tried)
    raise FileNotFoundError(f"the program {NAME} is not where it is installed; install the package again. Looked for:{places}")


def _folders() -> Iterator[Path]:
    """Where installers put programs, the likeliest first."""
    yield Path(sysconfig.get_path("scripts"))
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    yield Path(sysconfig.get_path("scripts", vars=base))
    # `pip install --prefix`: bin beside lib/pythonX.Y/site-packages.
    package = Path(__file__).resolve().parent
    if len(package.parents) > 3:
        yield package.parents[3] / "bin"
    # `pip install --target`: bin beside the package.
    yield package.parent / "bin"
    if "posix_user" in sysconfig.get_scheme_names():
        yield Path(sysconfig.get_path("scripts", scheme="posix_user"))


def run(
    arguments: Sequence[Union[str, "os.PathLike[str]"]],
    *,
    cwd: Union[str, "os.PathLike[str]", None] = None,
    env: Optional[Mapping[str, str]] = None,
) -> "subprocess.CompletedProcess[str]":
    """Runs the program with these arguments to its end, and returns what it printed.

    A code other than 0 is no exception here: see ``returncode`` and ``stderr``.
    """
    return subprocess.run(
        [str(binary()), *(os.fspath(one) for one in arguments)],
        cwd=cwd,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def environment(more: Optional[Mapping[str, str]]) -> "dict[str, str]":
    """The variables of a process: those of this one, and others."""
    return {**os.environ, **(more or {})}
