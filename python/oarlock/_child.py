"""A process of the program: it is started, watched and ended, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import IO, List, Mapping, Optional, Tuple

#: With it a run ends with this process, which holds the other end of its standard input.
STOP_WITH_STDIN = "OARLOCK_STOP_WITH_STDIN"

#: Signals that end a run, each with the seconds that it then has.
ENDING = ((signal.SIGINT, 10.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))

#: The most of what the program said that is kept for an exception.
KEPT = 64 << 10


@dataclass(frozen=True)
class Start:
    """What is started."""

    command: List[str]
    env: Mapping[str, str]
    cwd: str
    #: A file without a name that the command reads.
    file: Optional[IO[bytes]]

    def files(self) -> Tuple[int, ...]:
        """The open files that the process gets."""
        return () if self.file is None else (self.file.fileno(),)

    def readable(self, said: str) -> str:
        """What the process said, with a word for the file that has no name."""
        return said if self.file is None else said.replace(f"/proc/self/fd/{self.file.fileno()}", "settings")


class Child:
    """A process in a group of its own. What it says goes to a file without a name, so that it never waits for a reader."""

    def __init__(self, start: Start, shows: bool) -> None:
        self._start = start
        self._said: IO[bytes] = tempfile.TemporaryFile(prefix="oarlock-")
        self._told = 0
        # The last words, once they are read.
        self._last: Optional[str] = None
        self.stopped = False
        self.process: "subprocess.Popen[bytes]" = subprocess.Popen(
            start.command,
            cwd=start.cwd,
            env={**start.env, STOP_WITH_STDIN: "1"},
            pass_fds=start.files(),
            stdin=subprocess.PIPE,
            stdout=None if shows else subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,
        )

    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def said(self) -> str:
        """The end of what it said on standard error."""
        if self._last is not None:
            return self._last
        return self._start.readable(self._read(max(0, self._size() - KEPT)))

    def news(self) -> str:
        """The notes and warnings that it has said since the last call."""
        if self._last is not None:
            return ""
        text = self._read(self._told)
        whole = text[: text.rfind("\n") + 1]
        self._told += len(whole.encode("utf-8", "surrogateescape"))
        lines = whole.splitlines(keepends=True)
        return "".join(line for line in lines if line.startswith(("note: ", "warning: ")))

    def stop(self) -> None:
        """Ends it, if it runs, and waits. Whoever interrupts this ends it at once."""
        if not self.ended():
            self.stopped = True
        try:
            for number, patience in ENDING:
                if self._signal(number, patience):
                    break
        except BaseException:
            self._signal(signal.SIGKILL, 10.0)
            raise
        finally:
            self.tidy()

    def tidy(self) -> None:
        """Leaves nothing of a process that has ended."""
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except OSError:
                pass

        if self.ended() and self._last is None:
            self._last = self.said()
            self._said.close()
            if self._start.file is not None:
                self._start.file.close()

    def _signal(self, number: signal.Signals, patience: float) -> bool:
        if self.ended():
            return True
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass
        until = time.monotonic() + patience
        while not self.ended() and time.monotonic() < until:
            time.sleep(0.02)
        return self.ended()

    def _size(self) -> int:
        return os.fstat(self._said.fileno()).st_size

    def _read(self, begin: int) -> str:
        data = os.pread(self._said.fileno(), max(0, self._size() - begin), begin)
        return data.decode("utf-8", "surrogateescape")
