#!/usr/bin/env python3
"""Plants the faults of engine.txt and host.txt in a copy of the repository, one at a time; the tests that are named must fail.

    python3 bench/faults/plant.py                 # all, about a minute each
    python3 bench/faults/plant.py stream wait     # those with one of these words in their text or tests
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / "target/faults"
LISTS = ["engine.txt", "host.txt"]
# The tests take seconds. One that hangs has found the fault as well, since tests in CI have a limit.
LIMIT = 600


def faults():
    found = []
    lines = [line for name in LISTS for line in (ROOT / "bench/faults" / name).read_text().splitlines()]
    for line in lines:
        if not line or line.startswith("#"):
            continue
        key, value = line.split(":", 1)
        value = value.removeprefix(" ").replace("\\n", "\n")
        if key == "fault":
            found.append({"fault": value})
        else:
            found[-1][key] = value
    return found


def cargo(copy, arguments):
    """The exit status and the output; None when the limit is over."""
    command = ["cargo", *arguments[:1], "--quiet", "--target-dir", TARGET, *arguments[1:]]
    with subprocess.Popen(
        command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as run:
        try:
            output, _ = run.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return None, ""
    return run.returncode, output


def first_failure(output):
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if "panicked at" in line:
            return " ".join([line.strip(), *lines[number + 1 : number + 2]])
    return next((line.strip() for line in lines if line.startswith("error")), "the tests end with an error")


def plant(copy, fault):
    """Whether the fault is found, and by what."""
    file = copy / fault["file"]
    text = file.read_text()
    if text.count(fault["old"]) != 1:
        return False, f"{fault['old']!r} is {text.count(fault['old'])} times in {fault['file']}"
    file.write_text(text.replace(fault["old"], fault.get("new", "")))
    built, output = cargo(copy, ["build", "-p", "oarlock-cli"]) if "oarlock-cli" in fault["test"] else (0, "")
    if built == 0:
        status, output = cargo(copy, ["test", *fault["test"].split()])
    file.write_text(text)
    if built != 0 or "could not compile" in output:
        return False, "it does not compile: " + first_failure(output)
    if status is None:
        return True, f"still running after {LIMIT} s"
    return status != 0, first_failure(output) if status else "the tests pass"


def main():
    words = sys.argv[1:]
    chosen = [fault for fault in faults() if not words or any(word in fault["fault"] + fault["test"] for word in words)]
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "copy"
        # Files are as new as the copy, so that cargo takes nothing with a fault from a run before.
        ignored = shutil.ignore_patterns("target", ".git", "out")
        shutil.copytree(ROOT, copy, ignore=ignored, copy_function=shutil.copy)
        for tests in sorted({fault["test"] for fault in chosen}):
            if "-p oarlock-cli" in tests:
                cargo(copy, ["build", "-p", "oarlock-cli"])
            status, output = cargo(copy, ["test", *tests.split()])
            if status != 0:
                sys.exit(f"without a fault this fails: cargo test {tests}\n{output}")
        for fault in chosen:
            start = time.monotonic()
            caught, how = plant(copy, fault)
            found += caught
            seconds = time.monotonic() - start
            print(f"{'found ' if caught else 'MISSED'} {fault['fault']} ({seconds:.0f} s)\n       {how}", flush=True)
    print(f"{found} of {len(chosen)} faults were found")
    sys.exit(found < len(chosen))


main()
