"""The records of a run: how they are called here, and the file from which they are read while it grows."""

from __future__ import annotations

import json
import os
from array import array
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional, TypedDict, cast
from zlib import crc32

#: The file of a run with its records.
FILE = "trainer_log.jsonl"

#: The most bytes that are read at once.
CHUNK = 1 << 20


class Progress(TypedDict):
    """How far a run is."""

    #: Optimizer steps done.
    step: int
    #: Optimizer steps of the whole run.
    total_steps: int
    #: Passes over the data, with the part of the current one.
    epoch: float


class Log(Progress, total=False):
    """A record of a run, of a step or of an evaluation. What is not known is not there."""

    #: The mean loss since the last record.
    loss: float
    #: The learning rate.
    lr: float
    #: The norm of the gradients before clipping.
    grad_norm: float
    #: Tokens of all ranks in a second, since the last record.
    tokens_per_second: float
    #: Tokens trained on so far.
    total_tokens: int
    #: The peak memory of a rank, in MiB.
    memory_mb: float
    #: The loss of an evaluation.
    eval_loss: float
    #: Seconds since the run began, and seconds that are left.
    time: float
    remaining: float
    #: All other numbers: those of the objective, and losses of named data sets.
    metrics: Dict[str, float]


#: What the names of the file are called here.
NAMES = {"current_steps": "step", "throughput": "tokens_per_second"}

#: All names of a record.
KNOWN = Log.__required_keys__ | Log.__optional_keys__

#: What follows from the others.
LEFT_OUT = ("percentage",)


def of_line(line: bytes) -> Optional[Log]:
    """The record in a line; none where it is not one."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    if not isinstance(values, dict) or not all(name in values for name in ("current_steps", "total_steps", "epoch")):
        return None
    record: Dict[str, object] = {}
    metrics: Dict[str, float] = {}
    for name, value in cast(Dict[str, Any], values).items():
        known = NAMES.get(name, name)
        if name == "elapsed_time":
            record["time"] = seconds(str(value))
        elif name == "remaining_time":
            record["remaining"] = seconds(str(value))
        elif name == "memory_gb" and isinstance(value, (int, float)):
            record["memory_mb"] = round(value * 1024, 1)
        elif known in KNOWN:
            record[known] = value
        elif name not in LEFT_OUT and isinstance(value, (int, float)):
            metrics[name] = value
    if metrics:
        record["metrics"] = metrics
    return cast(Log, record)


def seconds(text: str) -> float:
    """The seconds of a time as the program writes it: ``0:01:05``, or ``2 days, 0:01:05``."""
    days, _, clock = text.rpartition(", ")
    total = 0.0
    try:
        for part in clock.split(":"):
            total = total * 60 + float(part)
        return total + 86400 * int(days.split()[0]) if days else total
    except ValueError:
        return 0.0


class Follower:
    """Reads the whole lines of a file that grows, each once.

    Lines that stood there before are passed over, also where the file is written again with some of them, as a run does
    that goes on from a checkpoint. Nobody waits for the reader: the run writes a file, and this reads it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # A number for each line in its place, by which it is known again.
        self._seen = array("Q")
        self._file: Optional[BinaryIO] = None
        self._begin(None)
        while self.poll():
            pass

    def _begin(self, file: Optional[BinaryIO]) -> None:
        if self._file is not None:
            self._file.close()
        self._file = file
        self._index = 0
        self._size = 0
        self._rest = b""

    def poll(self) -> List[bytes]:
        """The lines that have come since the last call, as far as they are read at once."""
        try:
            found = os.stat(self.path)
        except OSError:
            return []
        own = os.fstat(self._file.fileno()) if self._file is not None else None
        if own is None or (own.st_dev, own.st_ino) != (found.st_dev, found.st_ino) or own.st_size < self._size:
            try:
                self._begin(open(self.path, "rb"))
            except OSError:
                return []
        assert self._file is not None
        lines: List[bytes] = []
        while not lines:
            data = self._file.read(CHUNK)
            if not data:
                break
            self._size += len(data)
            *whole, self._rest = (self._rest + data).split(b"\n")
            lines = [line for line in whole if self._is_new(line)]
        return lines

    def _is_new(self, line: bytes) -> bool:
        number = crc32(line) << 32 | len(line) & 0xFFFFFFFF
        index, self._index = self._index, self._index + 1
        if index < len(self._seen) and self._seen[index] == number:
            return False
        del self._seen[index:]
        self._seen.append(number)
        return True

    def close(self) -> None:
        """Ends the reading."""
        if self._file is not None:
            self._file.close()
            self._file = None
