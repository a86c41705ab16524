"""Whether a server outlasts clients that mean it harm: ten thousand bad requests, each with its right answer.

    python hostile.py http://localhost:8000 -- oarlock serve MODEL --port 8000
    python hostile.py http://localhost:8000 --pid PID

Meanwhile another client chats and is answered. Afterwards the server has as many threads and open files as before, and
its memory is what it was, but for what it may keep unused. The first form starts the server itself. In the end it sends
SIGTERM while answers are written, and the server finishes them and exits with 0. The exit code is 1 if anything was
otherwise.
"""

import argparse
import collections
import concurrent.futures
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

from attacks import CHAT, DRAIN_TIME, QUICK, SLACK, SLOW_WAYS, WAYS, WRITE_TIME, Attacker, chat, outcome, post, read
from process import Process

# What an engine may keep of memory that it does not use.
UNUSED_MB = 256
BUSY = ["oarlock_requests_processing", "oarlock_requests_deferred"]


class Table:
    """What came of each way."""

    def __init__(self, ways):
        self.wanted = {name: (wanted.split("|"), seconds) for name, _, wanted, seconds in ways}
        self.lock, self.seen = threading.Lock(), collections.defaultdict(collections.Counter)
        self.slowest, self.n_wrong = collections.Counter(), collections.Counter()

    def count(self, name, came, seconds):
        wanted, most = self.wanted[name]
        with self.lock:
            self.seen[name][came] += 1
            self.slowest[name] = max(self.slowest[name], seconds)
            self.n_wrong[name] += came not in wanted or seconds > most

    def run(self, address, name, seed):
        begin = time.monotonic()
        try:
            came = getattr(Attacker(address, seed), name)()
        except Exception as error:  # Whatever it is, the server has not answered as it should.
            came = f"{type(error).__name__} {error}"
        self.count(name, came, time.monotonic() - begin)

    def print(self):
        print(f"{'way':<22} {'n':>5} {'slowest s':>9} {'wrong':>5}  what came of it")
        for name in self.wanted:
            came = ", ".join(f"{what} ({n})" for what, n in self.seen[name].most_common())
            print(f"{name:<22} {self.seen[name].total():5} {self.slowest[name]:9.1f} {self.n_wrong[name]:5}  {came}")


def polite(url, seconds=4 * QUICK, **fields):
    """Asks as everybody should be able to; the seconds that the answer took."""
    begin = time.monotonic()
    request = urllib.request.Request(
        url + CHAT, json.dumps(chat(**fields)).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=seconds) as response:
        json.load(response)["choices"][0]
    return time.monotonic() - begin


def metric(url, name):
    with urllib.request.urlopen(url + "/metrics", timeout=QUICK) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def attack(url, address, scale):
    """All of it; the table, and how long a polite client waited meanwhile."""
    table, waited, ended = Table([*WAYS, *SLOW_WAYS]), [], threading.Event()

    def ask_politely():
        while not ended.wait(2):
            try:
                waited.append(polite(url))
            except (OSError, ValueError, KeyError) as error:
                waited.append(f"{type(error).__name__} {error}")

    numbers = random.Random(20261127)
    several = lambda ways: [(name, numbers.random()) for name, n, _, _ in ways for _ in range(max(1, n // scale))]
    slow, quick = several(SLOW_WAYS), several(WAYS)
    numbers.shuffle(quick)
    client = threading.Thread(target=ask_politely)
    client.start()
    # The slow ones have threads of their own, so that they hold their connections while the others come.
    with concurrent.futures.ThreadPoolExecutor(len(slow)) as many, concurrent.futures.ThreadPoolExecutor(32) as few:
        for pool, ways in ((many, slow), (few, quick)):
            for name, seed in ways:
                pool.submit(table.run, address, name, seed)
    ended.set()
    client.join()
    return table, waited


def settle(url, server):
    """Waits until nothing of the attack is left: answers that nobody reads, and threads that wait for work."""
    until = time.monotonic() + WRITE_TIME
    while time.monotonic() < until and any(metric(url, name) > 0 for name in BUSY):
        time.sleep(1)
    # Idle threads of the runtime end after ten seconds.
    time.sleep(12)
    polite(url)
    time.sleep(1)
    return server.memory_mb(), server.n_threads(), server.n_files()


def end(url, address, process):
    """SIGTERM while answers are written and wait; what was wrong."""
    said = {}

    def ask(number):
        with Attacker(address, 0).connect() as connection:
            connection.sendall(post(CHAT, chat(stream=True, max_tokens=60, seed=number, ignore_eos=True)))
            said[number] = read(connection)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    try:
        code = process.wait(2 * DRAIN_TIME)
    except subprocess.TimeoutExpired:
        code = "none"
    seconds = time.monotonic() - begin
    whole = sum(b"data: [DONE]" in (text or b"") for text in said.values())
    refused = sum(outcome(text) == "503" or b'"unavailable_error"' in (text or b"") for text in said.values())
    print(f"SIGTERM with {len(said)} streams: {whole} whole, {refused} refused, exit code {code} after {seconds:.1f} s")
    return code != 0 or seconds > DRAIN_TIME + SLACK or not whole or whole + refused != len(said)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="such as http://localhost:8000")
    parser.add_argument("--pid", type=int, help="the process of a server that runs already")
    parser.add_argument("--scale", type=int, default=1, help="divides the number of requests")
    parser.add_argument("command", nargs="*", help="behind --: starts the server")
    options = parser.parse_args()
    if bool(options.command) == bool(options.pid):
        parser.error("give the process of a server, or a command that starts one")
    process = subprocess.Popen(options.command, stdout=subprocess.DEVNULL) if options.command else None
    parts = urllib.parse.urlsplit(options.url)
    address = (parts.hostname, parts.port)
    is_wrong = False
    try:
        wait_for(address)
        server = Process(options.pid or process.pid)
        # One round before the measurement: what a process has allocated once it may keep.
        attack(options.url, address, options.scale * 10)
        before = settle(options.url, server)
        begin = time.monotonic()
        table, waited = attack(options.url, address, options.scale)
        seconds = time.monotonic() - begin
        after = settle(options.url, server)
        table.print()
        answered = [wait for wait in waited if isinstance(wait, float)]
        n_all = sum(seen.total() for seen in table.seen.values())
        print(f"{n_all} requests in {seconds:.0f} s, {table.n_wrong.total()} wrong")
        print(
            f"{len(answered)} of {len(waited)} polite chats were answered meanwhile, at most {max(answered):.1f} s each"
        )
        for problem in {wait for wait in waited if not isinstance(wait, float)}:
            print(f"polite chat: {problem}")
        for name, old, new in zip(("memory MiB", "threads", "files"), before, after):
            print(f"{name}: {old:.0f} before, {new:.0f} after")
        is_wrong = table.n_wrong.total() > 0 or len(answered) < len(waited) or after[1:] != before[1:]
        is_wrong |= after[0] > before[0] + UNUSED_MB
        if process:
            is_wrong |= end(options.url, address, process)
    finally:
        if process and process.poll() is None:
            process.kill()
    return int(is_wrong)


def wait_for(address):
    """Until somebody listens."""
    for _ in range(600):
        try:
            socket.create_connection(address).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nobody listens at {address}")


if __name__ == "__main__":
    sys.exit(main())
