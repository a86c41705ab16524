#!/usr/bin/env python3
"""Plants the faults of engine.txt and host.txt one at a time; the tests that are named must fail.

    python3 bench/faults/plant.py                         # all, in a copy of the repository
    python3 bench/faults/plant.py stream wait             # those with one of these words in their text or tests
    python3 bench/faults/plant.py --list host.txt         # those of one list
    python3 bench/faults/plant.py --in-place              # in this checkout, whose build is warm; what is planted is taken back
    python3 bench/faults/plant.py --log faults.log        # goes on where a call with the same file ended

Faults of one crate follow each other, since each change of a crate builds it and all that is above it.
"""
import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = ["engine.txt", "host.txt"]
# The tests take seconds. One that hangs has found the fault as well, since tests in CI have a limit.
LIMIT = 600


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="plant only faults with one of these in their text or tests")
    parser.add_argument("--list", choices=LISTS, help="only the faults of this list")
    parser.add_argument("--in-place", action="store_true", help="plant in this checkout, in files without other changes")
    parser.add_argument("--log", type=pathlib.Path, help="note results here, and leave out what was found before")
    return parser.parse_args()


def faults(lists):
    found = []
    lines = [line for name in lists for line in (ROOT / "bench/faults" / name).read_text().splitlines()]
    for line in lines:
        if not line or line.startswith("#"):
            continue
        key, value = line.split(":", 1)
        value = value.removeprefix(" ").replace("\\n", "\n")
        if key == "fault":
            found.append({"fault": value})
        else:
            found[-1][key] = value
    # The sort keeps the order of the lists within the tests of a crate.
    return sorted(found, key=lambda fault: (fault["file"].split("/")[1], fault["test"].split()[1:4]))


def cargo(folder, arguments):
    """The exit status and the output; None when the limit is over."""
    target = [] if folder == ROOT else ["--target-dir", ROOT / "target/faults"]
    command = ["cargo", *arguments[:1], *target, *arguments[1:]]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as run:
        try:
            output, _ = run.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return None, ""
    return run.returncode, output


def n_run(output):
    """How many tests ran."""
    return sum(int(n) for n in re.findall(r"^running (\d+) test", output, re.M))


def first_failure(output):
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if found := re.match(r"thread '(.*?)' .*panicked at (\S+?):?$", line):
            return f"{found[1]}: {' '.join(lines[number + 1 : number + 2])[:160]}"
    return next((line.strip() for line in lines if line.startswith("error")), "the tests end with an error")


def test(folder, tests):
    """The exit status of the tests, None beyond the limit, and the output."""
    if "-p oarlock-cli" in tests:
        built, output = cargo(folder, ["build", "-p", "oarlock-cli"])
        if built != 0:
            return built, output
    return cargo(folder, ["test", *tests.split()])


def plant(folder, fault):
    """Whether the fault is found, and by what."""
    file = folder / fault["file"]
    text = file.read_text()
    if text.count(fault["old"]) != 1:
        return False, f"{fault['old']!r} is {text.count(fault['old'])} times in {fault['file']}"
    try:
        file.write_text(text.replace(fault["old"], fault.get("new", "")))
        status, output = test(folder, fault["test"])
    finally:
        file.write_text(text)
    if "could not compile" in output:
        return False, "it does not compile: " + first_failure(output)
    if status is None:
        return True, f"still running after {LIMIT} s"
    return status != 0, first_failure(output) if status else "the tests pass"


def without_faults(folder, chosen):
    """Ends unless the tests pass as the code is, and are there."""
    for tests in dict.fromkeys(fault["test"] for fault in chosen):
        start = time.monotonic()
        status, output = test(folder, tests)
        if status != 0 or n_run(output) == 0:
            sys.exit(f"without a fault this fails, or runs no test: cargo test {tests}\n{output}")
        print(f"passes {n_run(output)} tests of {tests} ({time.monotonic() - start:.0f} s)", flush=True)


def copy_of_repository(folder):
    copy = pathlib.Path(folder) / "copy"
    # Files are as new as the copy, so that cargo takes nothing with a fault from a run before.
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("target", ".git", "out"), copy_function=shutil.copy)
    return copy


def expect_clean(chosen):
    """Ends where a file has changes that a fault could not be told from."""
    files = sorted({fault["file"] for fault in chosen})
    changed = subprocess.run(["git", "status", "--porcelain", "--", *files], cwd=ROOT, capture_output=True, text=True, check=True)
    if changed.stdout:
        sys.exit(f"commit these first, since faults are planted in them:\n{changed.stdout}")


def known(log):
    """What a log says was found, with its line."""
    lines = log.read_text().splitlines() if log and log.exists() else []
    rows = [line for line in lines if line.startswith("| found |")]
    return {row.split(" | ")[1]: row for row in rows}


def run(args, folder, chosen, done):
    rows, missed = [], 0
    note = args.log.open("a") if args.log else None
    todo = [fault for fault in chosen if fault["fault"] not in done]
    without_faults(folder, todo)
    for fault in todo:
        start = time.monotonic()
        caught, how = plant(folder, fault)
        missed += not caught
        how = how.replace("|", "/")
        rows.append(f"| {'found' if caught else 'MISSED'} | {fault['fault']} | {how} | {time.monotonic() - start:.0f} |")
        print(rows[-1], flush=True)
        if note:
            print(rows[-1], file=note, flush=True)
    old = [done[fault["fault"]] for fault in chosen if fault["fault"] in done]
    print("\n| | fault | by | seconds |\n|---|---|---|---:|", *old, *rows, sep="\n")
    print(f"\n{len(chosen) - missed} of {len(chosen)} faults were found")
    return missed


def main():
    args = arguments()
    everything = faults([args.list] if args.list else LISTS)
    fits = lambda fault: not args.words or any(word in fault["fault"] + fault["test"] for word in args.words)
    chosen = [fault for fault in everything if fits(fault)]
    done = known(args.log)
    if args.in_place:
        expect_clean(chosen)
        sys.exit(run(args, ROOT, chosen, done) > 0)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(run(args, copy_of_repository(folder), chosen, done) > 0)


main()
