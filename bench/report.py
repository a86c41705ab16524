"""How a bench measures its subjects in turn, and the report that it writes."""
import datetime
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

from subjects import HERE, Failed


class Report:
    """What is printed, and kept for --write; progress goes to the other stream."""

    def __init__(self):
        self.lines, self.raw = [], []

    def say(self, text=""):
        print(text, flush=True)
        self.lines.append(text)

    def table(self, head, rows):
        self.say("| " + " | ".join(head) + " |")
        self.say("|---" * len(head) + "|")
        for row in rows:
            self.say("| " + " | ".join(row) + " |")
        self.say()

    def note(self, what, value):
        """A single measurement, as it comes."""
        print(f"  {what}: {value}", file=sys.stderr, flush=True)
        self.raw.append(f"{what}: {value}")

    def write(self, file):
        """Everything so far, and every measurement."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join([*self.lines, "", "## Every measurement", "", "```", *self.raw, "```", ""]))


def in_turn(subjects, rounds, report, what, measure):
    """Every subject once a round; each round begins with another, so that none always follows the same. Failures are
    told and left out."""
    found = {subject.name: [] for subject in subjects}
    for round in range(rounds):
        first = round % max(len(subjects), 1)
        for subject in subjects[first:] + subjects[:first]:
            try:
                value = measure(subject)
            except Failed as failure:
                report.note(f"{what}, round {round + 1}, {subject.name}", f"failed: {failure}")
                continue
            report.note(f"{what}, round {round + 1}, {subject.name}", value if isinstance(value, tuple) else f"{value:.3f}")
            found[subject.name].append(value)
    return found


def spread(values, digits):
    """The median, and between what all lie."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})" if values else "failed"


def head(args, report):
    """What was run, where, and on which versions."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    git = lambda *words: subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True).stdout.strip()
    dirty = " with changes" if git("status", "--porcelain") else ""
    load = os.getloadavg()[0]
    report.say(f"# Bench of {datetime.date.today()}")
    report.say()
    report.say(f"- command: `{shlex.join([f'bench/{Path(sys.argv[0]).name}', *sys.argv[1:]])}`")
    report.say(f"- commit: {git('rev-parse', '--short', 'HEAD')}{dirty}")
    report.say(f"- machine: {cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}; load before: {load:.2f}")
    report.say(f"- {args.ranks} ranks x {args.threads} thread(s) on cores {', '.join(map(str, args.machine.cores))}; {args.batch} x {args.seq} tokens a rank and step; {args.rounds} rounds")
    if args.engines:
        versions = subprocess.run([args.python, "-m", "pip", "list", "--format", "json"], capture_output=True, text=True)
        wanted = re.findall(r"^([\w-]+)==", (HERE / "peers/requirements.txt").read_text(), re.MULTILINE)
        found = {p["name"]: p["version"] for p in json.loads(versions.stdout or "[]")}
        report.say("- peers: " + ", ".join(f"{name} {found.get(name, 'missing')}" for name in wanted))
    report.say()
    if load > 0.5:
        report.say("**The machine was not quiet: figures are not to be quoted.**")
        report.say()
