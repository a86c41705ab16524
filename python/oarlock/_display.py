"""Shows a run where this process has a place for it: a curve in a notebook, the program's own line on a terminal."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any, Callable, Optional

#: The seconds between two pictures.
REDRAW = 0.5


def notebook() -> Optional[Any]:
    """The shell of a notebook, if this process is its kernel. Nothing is imported for it."""
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    return shell if getattr(shell, "kernel", None) is not None else None


def terminal() -> bool:
    """Whether the program itself can draw on a terminal."""
    try:
        return sys.stdout.isatty() and sys.stdout.fileno() == 1
    except (AttributeError, OSError, ValueError):
        return False


class Picture:
    """A picture of a notebook that is renewed in its place."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw = draw
        self._handle: Any = None
        self._drawn = 0.0

    def renew(self, at_once: bool = False) -> None:
        """Draws it again, at most twice a second."""
        now = time.monotonic()
        if not at_once and now - self._drawn < REDRAW:
            return
        self._drawn = now
        html = importlib.import_module("IPython.display").HTML(self._draw())
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(html, display_id=True)
        else:
            self._handle.update(html)
