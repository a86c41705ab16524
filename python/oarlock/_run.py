"""A training run of the program, whose records are read while it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, AsyncIterator, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from . import _display, _settings
from ._binary import binary, environment
from ._child import Child, Start
from ._curve import Curve
from ._error import failure
from ._record import FILE, Follower, Log, of_line

Config = Union[str, "os.PathLike[str]", Mapping[str, object]]

#: The seconds between two looks at the file of records.
EVERY = 0.05

#: The line of `--print-config` with the folder of the run, and where that is written.
OUTPUT_DIR = re.compile(r"^ +output_dir +(\S(?:.*\S)?) {2,}\S.*$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    #: The folder of the run, with its model.
    output_dir: Path
    #: Optimizer steps done.
    steps: int
    #: The last loss that was logged, and that of the last evaluation.
    loss: Optional[float]
    eval_loss: Optional[float]
    #: What the run wrote into all_results.json.
    results: Dict[str, Any]
    #: The exit code of the program.
    returncode: int
    #: Whether it was stopped before its end.
    stopped: bool


def train(
    config: Config,
    *,
    ranks: Optional[int] = None,
    on_log: Optional[Callable[[Log], object]] = None,
    env: Optional[Mapping[str, str]] = None,
    cwd: Union[str, "os.PathLike[str]", None] = None,
    show: Optional[bool] = None,
    check: bool = True,
    **settings: object,
) -> Run:
    """Starts a training run, whose records the result yields while it goes on.

    ``config`` is a file, the name of a recipe inside the program (``"pretrain"``), or a mapping of the same keys;
    ``settings`` are keys that count more. ``ranks`` is ``num_processes``. The run goes on whether its records are read or
    not, and ends with this process at the latest.

    ``on_log`` is called with each record while somebody waits for the run or reads its records. ``show`` is whether the
    progress is shown then: a curve in a notebook, the line of the program on a terminal; both are shown by default where
    there is one. With ``check=False`` a run that fails raises no exception at its end.
    """
    if ranks is not None:
        settings["num_processes"] = ranks
    place: str = os.path.abspath(os.fspath(cwd)) if cwd is not None else os.getcwd()
    variables = environment(env)
    file: Optional[IO[bytes]] = None
    if isinstance(config, Mapping):
        # Settings may be secrets: they are in no list of processes, and in a file without a name.
        file = tempfile.TemporaryFile(prefix="oarlock-")
        file.write(_settings.text({**config, **settings}).encode())
        file.flush()
        words = [f"/proc/self/fd/{file.fileno()}"]
    else:
        words = [os.fspath(config), *(f"{name}={_settings.word(value)}" for name, value in settings.items())]
    command = [str(binary()), "train", *words]
    start = Start(command, variables, place, file)
    try:
        output, text = _examine(start)
        return Run(start, Path(place, output), text, on_log, show, check)
    except BaseException:
        if file is not None:
            file.close()
        raise


def _examine(start: Start) -> Tuple[str, str]:
    """The folder of the run and all of its settings; what is wrong with them is raised before anything starts."""
    said = subprocess.run(
        [*start.command, "--print-config"],
        cwd=start.cwd,
        env=start.env,
        pass_fds=start.files(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
    found = OUTPUT_DIR.search(said.stdout)
    if said.returncode != 0 or found is None:
        raise failure(start.readable(said.stderr), said.returncode or 1)
    return found.group(1), said.stdout


class Run:
    """A run that was started: iterate over it for its records, or ``wait()`` for its end.

    In a notebook it is shown as the curve of its losses.
    """

    def __init__(
        self,
        start: Start,
        output_dir: Path,
        config: str,
        on_log: Optional[Callable[[Log], object]],
        show: Optional[bool],
        check: bool,
    ) -> None:
        #: The folder of the run.
        self.output_dir = output_dir
        #: All settings of the run with their origins, as ``--print-config`` shows them.
        self.config = config
        self._on_log = on_log
        self._check = check
        self._curve = Curve()
        # Read only by somebody who iterates; who only looks at the curve leaves them here.
        self._ready: Deque[Log] = deque(maxlen=10_000)
        self._evaluation: Optional[float] = None
        self._steps = self._total = 0
        self._waited = False
        in_notebook = _display.notebook() is not None
        self._picture = _display.Picture(self._svg) if in_notebook and show is not False else None
        shows = self._picture is None and (show if show is not None else _display.terminal())
        self._follower = Follower(output_dir / FILE)
        self._child = Child(start, shows)
        self._end = weakref.finalize(self, _abandon, self._child, self._follower)

    @property
    def returncode(self) -> Optional[int]:
        """The exit code of the program; None while it runs."""
        return self._child.process.poll()

    @property
    def history(self) -> List[Log]:
        """The records in the file of the run, also those from before it was resumed."""
        try:
            lines = (self.output_dir / FILE).read_bytes().split(b"\n")
        except OSError:
            return []
        return [record for record in map(of_line, lines) if record is not None]

    @property
    def output(self) -> str:
        """The end of what the program said on standard error."""
        return self._child.said()

    def stop(self) -> None:
        """Stops the run as Ctrl-C does, and waits until it has ended. Nothing of it is left running."""
        self._waited = True
        self._child.stop()

    def wait(self, timeout: Optional[float] = None) -> Result:
        """Waits for the end. A run that fails raises an OarlockError, and a timeout a TimeoutError; the run then goes on."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._step():
            self._ready.clear()
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"the run goes on after {timeout} s")
        return self.result()

    def result(self) -> Result:
        """How the run ended, once it has."""
        code = self.returncode
        if code is None:
            raise RuntimeError("the run goes on; wait() for it")
        results: Dict[str, Any] = {}
        try:
            results = json.loads((self.output_dir / "all_results.json").read_bytes())
        except (OSError, ValueError):
            pass
        loss = self._curve.last.get("loss") if self._curve.last is not None else None
        return Result(self.output_dir, self._steps, loss, self._evaluation, results, code, self._child.stopped)

    def __iter__(self) -> Iterator[Log]:
        """The records, each as soon as it is written, until the run ends."""
        while self._step():
            while self._ready:
                yield self._ready.popleft()

    async def __aiter__(self) -> AsyncIterator[Log]:
        """The same for ``async for``. What cancels the task stops the run."""
        try:
            while self._step(sleeps=False):
                if not self._ready:
                    await asyncio.sleep(EVERY)
                while self._ready:
                    yield self._ready.popleft()
        except asyncio.CancelledError:
            await asyncio.get_running_loop().run_in_executor(None, self.stop)
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<oarlock.Run {self._state()}>"

    def _repr_html_(self) -> str:
        self._take()
        return self._svg()

    def _step(self, sleeps: bool = True) -> bool:
        """Takes what has come; False once the run has ended and all of it was read. An interrupt stops the run."""
        self._waited = True
        try:
            ended = self._child.ended()
            found = self._take()
            if self._picture is not None:
                self._picture.renew(at_once=ended and not found)
            if not found and not ended and sleeps:
                time.sleep(EVERY)
            if found or not ended:
                return True
        except BaseException:
            self.stop()
            raise
        self._finish()
        return False

    def _take(self) -> bool:
        """Takes the records that have come; whether there were any."""
        lines = self._follower.poll()
        for record in map(of_line, lines):
            if record is None:
                continue
            self._curve.add(record)
            self._steps, self._total = record["step"], record["total_steps"]
            self._evaluation = record.get("eval_loss", self._evaluation)
            self._ready.append(record)
            if self._on_log is not None:
                self._on_log(record)
        news = self._child.news()
        if news:
            sys.stderr.write(news)
        return bool(lines)

    def _finish(self) -> None:
        """Ends the reading; raises what went wrong."""
        self._follower.close()
        self._child.tidy()
        code = self._child.process.returncode
        if code != 0 and self._check and not self._child.stopped:
            raise failure(self._child.said(), code)

    def _state(self) -> str:
        """The run in a line."""
        code = self.returncode
        last = self._curve.last
        step = f"step {self._steps}/{self._total}" if self._steps else "starting"
        state = "running" if code is None else "stopped" if self._child.stopped else "done" if code == 0 else f"failed ({code})"
        parts = [str(self.output_dir.name), state, step]
        if last is not None and "loss" in last:
            parts.append(f"loss {last['loss']:.4f}")
        if self._evaluation is not None:
            parts.append(f"evaluation {self._evaluation:.4f}")
        if code is None and last is not None and "tokens_per_second" in last:
            parts.append(f"{last['tokens_per_second']:,.0f} tokens/s, {last.get('remaining', 0):.0f} s left")
        return " · ".join(parts)

    def _svg(self) -> str:
        return self._curve.svg(self._state())

    def __del__(self) -> None:
        if not getattr(self, "_waited", True) and self.returncode is None:
            warnings.warn(
                "a run was stopped because nothing refers to it: wait() for it, or keep it in a variable",
                RuntimeWarning,
                stacklevel=2,
            )


def _abandon(child: Child, follower: Follower) -> None:
    """Ends a run that nobody can reach any more."""
    child.stop()
    follower.close()
