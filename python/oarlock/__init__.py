"""Trains language models with the program ``oarlock``, which lies beside this package.

    import oarlock

    for log in oarlock.train("pretrain", max_steps=100):
        print(log["step"], log.get("loss"))
    print(oarlock.generate("out/pretrain", "Captain Sorrel"))

The program runs as a process of its own. It needs no other package, and this package needs none either.
"""

from ._binary import binary, run
from ._error import OarlockError
from ._generate import generate
from ._record import Log
from ._run import Result, Run, train

__all__ = ["Log", "OarlockError", "Result", "Run", "binary", "generate", "run", "train"]
