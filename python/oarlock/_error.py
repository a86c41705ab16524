"""What goes wrong in the program, as an exception."""

from __future__ import annotations

from typing import List

#: A problem with a configuration begins so, behind two blanks.
PROBLEM = "  × "


class OarlockError(RuntimeError):
    """The program ended with an error.

    ``message`` is what it said, ``diagnostics`` has its problems one by one, each with its excerpt and its help, and
    ``returncode`` is its exit code: 2 where the configuration is wrong, and the negative number of a signal.
    """

    def __init__(self, message: str, returncode: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.returncode = returncode
        self.diagnostics = problems(message)

    def __reduce__(self) -> "tuple[type[OarlockError], tuple[str, int]]":
        return OarlockError, (self.message, self.returncode)


def failure(said: str, returncode: int) -> OarlockError:
    """The exception for a program that said this on standard error."""
    text = said.strip("\n").rstrip()
    if not text:
        text = f"the program was ended by signal {-returncode}" if returncode < 0 else f"the program ended with code {returncode}"
    return OarlockError(text, returncode)


def problems(text: str) -> List[str]:
    """The problems in what the program said: each with its excerpt and its help."""
    found: List[List[str]] = []
    for line in text.splitlines():
        if line.startswith((PROBLEM, PROBLEM.strip(), "error: ")):
            found.append([])
        if found:
            found[-1].append(line)
    return ["\n".join(lines).rstrip() for lines in found] or [text]
