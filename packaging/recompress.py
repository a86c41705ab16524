#!/usr/bin/env python3
"""Compresses the files of a wheel again, in the same format and as small as Zopfli can. It takes a minute.

    target/wheel-tools/bin/python packaging/recompress.py oarlock-….whl

It needs zopflipy. The files, their order, their times and so their hashes in the wheel stay.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import zopfli  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]


def main() -> int:
    """Replaces the wheel that is named."""
    wheel = Path(sys.argv[1])
    smaller = wheel.with_suffix(".smaller")
    with zipfile.ZipFile(wheel) as old, zopfli.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED, iterations=1) as new:
        for entry in old.infolist():
            again = zipfile.ZipInfo(entry.filename, entry.date_time)
            again.external_attr, again.create_system = entry.external_attr, entry.create_system
            again.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(again, old.read(entry))
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(smaller) as new:
        if [entry.filename for entry in old.infolist()] != [entry.filename for entry in new.infolist()]:
            print(f"{smaller} has other files than {wheel}", file=sys.stderr)
            return 1
        for name in old.namelist():
            if old.read(name) != new.read(name):
                print(f"{name} is another one in {smaller}", file=sys.stderr)
                return 1
    smaller.replace(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
