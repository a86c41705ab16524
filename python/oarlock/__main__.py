"""``python -m oarlock``: the program itself, with the same arguments."""

import os
import sys

from ._binary import binary


def main() -> None:
    """Becomes the program."""
    program = str(binary())
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, ["oarlock", *sys.argv[1:]])


if __name__ == "__main__":
    main()
