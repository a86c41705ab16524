"""Tests of the package with the program that OARLOCK_BINARY names, or the one that is installed with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any, Dict, List

import oarlock
from oarlock import Log
from oarlock._binary import binary
from oarlock._curve import POINTS, Axis, Curve
from oarlock._error import problems
from oarlock._record import Follower, of_line, seconds
from oarlock._settings import word

#: A few steps of a recipe.
SHORT: Dict[str, Any] = {"logging_steps": 1, "eval_strategy": "no", "plot_loss": False, "num_processes": 1}


def is_running(pid: int) -> bool:
    """Whether a process is there and not only waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def below(pid: int) -> List[int]:
    """The processes below one."""
    children: List[str] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += task.read_text().split()
        except OSError:
            pass
    return [one for child in children for one in [int(child), *below(int(child))]]


class Runs(unittest.TestCase):
    """Runs of a recipe, in one folder."""

    folder: "tempfile.TemporaryDirectory[str]"
    before: str
    logs: List[Log]
    result: oarlock.Result

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.before = os.getcwd()
        os.chdir(cls.folder.name)
        with oarlock.train("pretrain", max_steps=3, **SHORT) as run:
            cls.logs = list(run)
        cls.result = run.result()

    @classmethod
    def tearDownClass(cls) -> None:
        os.chdir(cls.before)
        cls.folder.cleanup()

    def gone(self, pids: List[int]) -> None:
        """Asserts that processes end."""
        until = time.monotonic() + 10
        while any(map(is_running, pids)) and time.monotonic() < until:
            time.sleep(0.02)
        self.assertEqual([pid for pid in pids if is_running(pid)], [])

    def endless(self, output: str, **settings: object) -> oarlock.Run:
        """A run that does not end by itself, after its first step."""
        run = oarlock.train("pretrain", max_steps=10**6, output_dir=output, **{**SHORT, **settings})
        for log in run:
            if log["step"] >= 1:
                break
        return run

    def test_records_come_with_their_numbers(self) -> None:
        steps = [log for log in self.logs if "loss" in log]
        self.assertEqual([log["step"] for log in steps], [1, 2, 3])
        self.assertTrue(all(0 < log.get("loss", 0) < 10 and log["total_steps"] == 3 for log in steps))
        self.assertEqual((self.result.returncode, self.result.steps, self.result.stopped), (0, 3, False))
        self.assertIn("train_loss", self.result.results)
        self.assertTrue((self.result.output_dir / "model.safetensors").is_file())

    def test_a_mapping_is_a_configuration(self) -> None:
        seen: List[Log] = []
        settings = {"stage": "pt", "model_name_or_path": Path("recipes/minimind-small"), "train_from_scratch": True}
        data = {"dataset": "recipes/corpus/heldout.jsonl", "cutoff_len": 64, "bf16": True, "output_dir": "out/two  blanks"}
        zero = {"deepspeed": {"zero_optimization": {"stage": 2}}, "adam_beta2": 0.95}
        run = oarlock.train({**settings, **data, **zero}, ranks=2, on_log=seen.append, max_steps=2, logging_steps=1)
        result = run.wait(120)
        self.assertEqual(result.output_dir.name, "two  blanks")
        self.assertEqual([log["step"] for log in seen], [1, 2])
        self.assertEqual(len(run.history), 2)
        self.assertIn("adam_beta2", run.config)

    def test_what_is_wrong_is_raised_before_anything_starts(self) -> None:
        with self.assertRaises(oarlock.OarlockError) as caught:
            oarlock.train("pretrain", learning_rat=1, bf16="maybe")
        self.assertEqual((caught.exception.returncode, len(caught.exception.diagnostics)), (2, 2))
        self.assertIn("did you mean `learning_rate`?", str(caught.exception))
        with self.assertRaises(oarlock.OarlockError) as caught:
            oarlock.train({"hub_token": "hf_secret", "learning_rat": 1})
        self.assertIn("settings:", str(caught.exception))
        self.assertNotIn("hf_secret", str(caught.exception))

    def test_what_goes_wrong_later_is_raised_at_the_end(self) -> None:
        Path("broken.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
        run = oarlock.train("pretrain", dataset="broken.jsonl", output_dir="out/broken", **SHORT)
        with self.assertRaises(oarlock.OarlockError) as caught:
            run.wait(120)
        self.assertIn("broken.jsonl:2", str(caught.exception))
        result = oarlock.train("pretrain", dataset="broken.jsonl", output_dir="out/broken", check=False, **SHORT).wait(120)
        self.assertEqual(result.returncode, 1)

    def test_stopping_leaves_no_process(self) -> None:
        run = self.endless("out/stopped", num_processes=2)
        pids = [run._child.process.pid, *below(run._child.process.pid)]
        self.assertGreaterEqual(len(pids), 3)
        run.stop()
        self.gone(pids)
        self.assertTrue(run.result().stopped)
        self.assertEqual(list(run), [])

    def test_an_interrupt_stops_the_run(self) -> None:
        run = self.endless("out/interrupted", num_processes=2)
        pids = [run._child.process.pid, *below(run._child.process.pid)]
        # A shell that starts these tests in the background has SIGINT ignored.
        handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGALRM: lambda *_: signal.raise_signal(signal.SIGINT)}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            with self.assertRaises(KeyboardInterrupt):
                run.wait(60)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        self.gone(pids)

    def test_a_run_ends_with_its_process(self) -> None:
        code = "import oarlock, os, signal; run = oarlock.train('pretrain', max_steps=10**6, output_dir='out/orphan', " \
               "logging_steps=1, num_processes=2)\nfor log in run: break\n" \
               "print(run._child.process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
        package = str(Path(oarlock.__file__).parents[1])
        env = {**os.environ, "PYTHONPATH": package, "OARLOCK_BINARY": str(binary())}
        said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, encoding="utf-8", check=False)
        self.assertTrue(said.stdout.strip(), said.stderr)
        self.gone([int(said.stdout)])

    def test_a_run_that_nobody_refers_to_is_stopped(self) -> None:
        with self.assertWarns(RuntimeWarning):
            run = oarlock.train("pretrain", max_steps=10**6, output_dir="out/lost", **SHORT)
            pid = run._child.process.pid
            del run
        self.gone([pid])

    def test_a_slow_reader_slows_nothing_and_misses_nothing(self) -> None:
        run = oarlock.train("pretrain", max_steps=6, output_dir="out/slow", **SHORT)
        steps = []
        for log in run:
            if "loss" in log:
                steps.append(log["step"])
            if len(steps) == 1:
                until = time.monotonic() + 60
                while run.returncode is None and time.monotonic() < until:
                    time.sleep(0.05)
                self.assertEqual(run.returncode, 0, "the run waits for its reader")
        self.assertEqual(steps, [1, 2, 3, 4, 5, 6])

    def test_a_resumed_run_yields_what_is_new(self) -> None:
        more: Dict[str, Any] = {**SHORT, "output_dir": "out/resumed", "overwrite_output_dir": False, "save_steps": 2}
        oarlock.train("pretrain", max_steps=2, **more).wait(120)
        steps = [log["step"] for log in oarlock.train("pretrain", max_steps=4, **more) if "loss" in log]
        self.assertEqual(steps, [3, 4])

    def test_records_are_read_by_tasks(self) -> None:
        async def steps() -> List[int]:
            found = []
            async for log in oarlock.train("pretrain", max_steps=2, output_dir="out/task", **SHORT):
                if "loss" in log:
                    found.append(log["step"])
            return found

        async def cancelled() -> int:
            run = oarlock.train("pretrain", max_steps=10**6, output_dir="out/cancelled", **SHORT)

            async def read() -> None:
                async for _ in run:
                    pass

            task = asyncio.ensure_future(read())
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return run._child.process.pid

        self.assertEqual(asyncio.run(steps()), [1, 2])
        self.gone([asyncio.run(cancelled())])

    def test_a_trained_model_writes(self) -> None:
        options: Dict[str, Any] = {"max_new_tokens": 6, "temperature": 0}
        text = oarlock.generate("out/pretrain", "Nils and", **options)
        self.assertFalse(text.startswith("Nils"))
        self.assertEqual("".join(oarlock.generate("out/pretrain", "Nils and", stream=True, **options)), text)
        answer = oarlock.generate("out/pretrain", [{"role": "user", "content": "Who are you?"}], **options)
        self.assertNotIn("User:", answer)
        with self.assertRaises(ValueError):
            oarlock.generate("out/pretrain", [{"role": "assistant", "content": "I?"}])
        with self.assertRaises(oarlock.OarlockError):
            oarlock.generate("nowhere", "x")

    def test_a_curve_is_a_picture(self) -> None:
        run = oarlock.train("pretrain", max_steps=2, output_dir="out/curve", **SHORT)
        run.wait(120)
        root = xml.fromstring(run._repr_html_())
        self.assertTrue(root.tag.endswith("svg"))
        self.assertIn("curve · done · step 2/2", root.get("aria-label", ""))

    def test_the_module_is_the_program(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(Path(oarlock.__file__).parents[1]), "OARLOCK_BINARY": str(binary())}
        said = subprocess.run([sys.executable, "-m", "oarlock", "--version"], env=env, capture_output=True, check=False)
        self.assertEqual(said.stdout.split()[:1], [b"oarlock"])
        self.assertEqual(oarlock.run(["--version"]).stdout.encode(), said.stdout)
        self.assertEqual(oarlock.run(["train", "nothing"]).returncode, 2)


class Parts(unittest.TestCase):
    """Parts that need no program."""

    def test_lines_are_read_once_whatever_becomes_of_the_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "log")
            path.write_text("1\n2\n3\n")
            follower = Follower(path)
            self.assertEqual(follower.poll(), [])
            with path.open("a") as file:
                file.write("4\n5")
                file.flush()
                self.assertEqual(follower.poll(), [b"4"])
                file.write("5\n")
            self.assertEqual(follower.poll(), [b"55"])
            # A run goes on from a checkpoint: the file is another one, with the first lines of the old.
            other = Path(folder, "other")
            other.write_text("1\n2\n")
            other.replace(path)
            self.assertEqual(follower.poll(), [])
            with path.open("a") as file:
                file.write("3 again\n")
            self.assertEqual(follower.poll(), [b"3 again"])
            # A run begins anew.
            path.unlink()
            self.assertEqual(follower.poll(), [])
            path.write_text("0\n")
            self.assertEqual(follower.poll(), [b"0"])
            path.write_text("")
            self.assertEqual(follower.poll(), [])
            follower.close()

    def test_records_have_the_names_of_this_package(self) -> None:
        line = {"current_steps": 2, "total_steps": 4, "epoch": 0.5, "loss": 1.5, "lr": 0.1, "throughput": 7.5, "memory_gb": 0.5,
                "elapsed_time": "1 day, 0:01:05", "remaining_time": "0:00:02", "percentage": 50.0, "rewards/margins": 0.25}
        record = of_line(json.dumps(line).encode())
        expected = {"step": 2, "total_steps": 4, "epoch": 0.5, "loss": 1.5, "lr": 0.1, "tokens_per_second": 7.5, "memory_mb": 512.0,
                    "time": 86465.0, "remaining": 2.0, "metrics": {"rewards/margins": 0.25}}
        self.assertEqual(record, expected)
        self.assertIsNone(of_line(b"half a li"))
        self.assertIsNone(of_line(b'{"loss": 1}'))
        self.assertEqual(seconds("nonsense"), 0.0)

    def test_values_are_written_as_the_program_reads_them(self) -> None:
        values = [True, None, 1e-5, "no", Path("a/b"), ["x", "y"], {"a": 1}]
        self.assertEqual([word(value) for value in values], ["true", "null", "1e-05", "no", "a/b", '["x", "y"]', '{"a": 1}'])
        with self.assertRaises(TypeError):
            word(object())

    def test_a_long_curve_stays_small(self) -> None:
        curve = Curve()
        for step in range(1, 20_000):
            curve.add({"step": step, "total_steps": 20_000, "epoch": 0.0, "loss": 1 + 1 / step, "lr": 1e-3})
        curve.add({"step": 20_000, "total_steps": 20_000, "epoch": 0.0, "loss": float("nan")})
        self.assertLess(len(curve.loss.points), 2 * POINTS)
        self.assertLess(len(curve.svg("a <run>")), 60_000)
        xml.fromstring(curve.svg("a <run> & \"more\""))
        self.assertEqual(xml.fromstring(Curve().svg("a <run>")).text, "a <run>")
        # A run goes back to a checkpoint.
        curve.add({"step": 10, "total_steps": 20_000, "epoch": 0.0, "loss": 3.0})
        self.assertLessEqual(curve.loss.points[-1][0], 10)

    def test_axes_have_round_values(self) -> None:
        self.assertEqual(Axis(0, 100, 0, 1).ticks(), [0, 20, 40, 60, 80, 100])
        for low, high in [(0.1, 0.11), (2.5, 7.25), (0, 672), (-1e-9, 1e-9)]:
            ticks = Axis(low, high, 0, 1).ticks()
            self.assertTrue(2 <= len(ticks) <= 7 and all(low - 1e-12 <= tick <= high + 1e-12 for tick in ticks), ticks)

    def test_problems_are_told_apart(self) -> None:
        self.assertEqual(problems("  × a\n   help: b\n  × c\n"), ["  × a\n   help: b", "  × c"])
        self.assertEqual(problems("killed"), ["killed"])


if __name__ == "__main__":
    unittest.main()
