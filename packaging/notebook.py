"""Writes a notebook that trains and shows the curve, and checks what came of it.

    python3 packaging/notebook.py write FILE.ipynb
    python3 packaging/notebook.py check FILE.ipynb      # after nbconvert has executed it
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List

CELLS = [
    "import oarlock\nrun = oarlock.train('pretrain', max_steps=20, logging_steps=2, output_dir='out/notebook')\nrun.wait().steps",
    "run",
    "import os, signal, threading\n"
    "run = oarlock.train('pretrain', max_steps=10**6, logging_steps=1, output_dir='out/interrupted')\n"
    "threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
    "try:\n    for log in run: pass\nexcept KeyboardInterrupt:\n    print('interrupted', run.returncode, run.result().stopped)",
]


def main() -> int:
    """Writes the notebook, or checks it."""
    action, path = sys.argv[1], Path(sys.argv[2])
    if action == "write":
        cells: List[Dict[str, Any]] = [
            {"cell_type": "code", "execution_count": None, "id": f"cell{index}", "metadata": {}, "outputs": [], "source": source}
            for index, source in enumerate(CELLS)
        ]
        kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        path.write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
        return 0
    outputs: List[List[Dict[str, Any]]] = [cell["outputs"] for cell in json.loads(path.read_text())["cells"]]
    trained, shown, interrupted = (json.dumps(output, ensure_ascii=False) for output in outputs)
    for text, where in (
        ("<svg", trained), ("notebook · done · step 20/20", trained), ('"20"', trained),
        ("<svg", shown), ("interrupted 130 True", interrupted),
    ):
        if text not in where:
            print(f"the notebook has no {text!r} where it should: {where[:2000]}", file=sys.stderr)
            return 1
    pictures = trained.count("<svg")
    if pictures != 1:
        print(f"the notebook has {pictures} pictures of one run", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
