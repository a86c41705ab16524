"""Settings of Python as the program reads them."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping


def word(value: object) -> str:
    """A value as it is written behind ``key=``."""
    value = _plain(value)
    if isinstance(value, str):
        return value
    return json.dumps(value, default=_plain, ensure_ascii=False)


def text(settings: Mapping[str, object]) -> str:
    """Settings as a configuration file, in JSON with a key on each line."""
    return json.dumps(settings, default=_plain, ensure_ascii=False, indent=1) + "\n"


def _plain(value: Any) -> Any:
    """Paths as texts, and numbers of other packages as numbers."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        return value.item()
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, (str, int, float, bool, list, tuple, dict, type(None))):
        raise TypeError(f"a setting is a number, a text, a path, a list or a mapping, not {type(value).__name__}")
    return value
