"""Whether the memory of a server stays the same while many clients chat with it for a long time.

    python soak.py http://localhost:8000 --pid PID --seconds 300 --clients 64

The clients take whole answers and streams. Some hang up in the middle, some want one token, a stop string or two
answers.
Each ten seconds are a line. The server keeps the keys and values of earlier prompts, up to its limit, and says in
/metrics how many bytes they take. It counts as warm once a minute has passed and they take 99 % of what they take at
the end. The exit code is 1 if an answer was not as it should be, if the server was not warm at half-time, or if its
memory at the end is more than 5 % above what it was when warm.
"""

import argparse
import collections
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse
import urllib.request

from process import Process

INTERVAL = 10
WARM_UP = 60
# The part of what earlier prompts take at the end that they take when the server is warm.
FULL = 0.99
# How long the last answers of all clients are waited for.
LAST_ANSWERS = 30
MOST_GROWTH = 1.05
WORDS = "the lock keeps a boat from drifting while water rises and falls between two gates of oak".split()


class Wrong(Exception):
    """An answer that is not as it should be."""


class Totals:
    """What all clients have seen."""

    def __init__(self):
        self.lock = threading.Lock()
        self.done, self.wrong = collections.Counter(), collections.Counter()

    def count(self, kind, problem=None):
        with self.lock:
            self.done[kind] += 1
            if problem:
                self.wrong[f"{kind}: {problem}"] += 1


class Client:
    """One client, which asks again and again. The same number draws the same requests."""

    def __init__(self, url, number, answer_tokens):
        self.address, self.numbers = urllib.parse.urlsplit(url), random.Random(number)
        self.answer_tokens = answer_tokens
        self.kinds = [self.whole, self.stream, self.leave_stream, self.leave_whole, self.one_token, self.stop, self.two]

    def post(self, **fields):
        content = " ".join(self.numbers.choices(WORDS, k=self.numbers.randint(3, 60)))
        n_tokens = self.numbers.randint(1, self.answer_tokens)
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": n_tokens, **fields}
        connection = http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=600)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def answer(self, **fields):
        connection = self.post(**fields)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            raise Wrong(f"status {response.status}")
        return json.loads(text)

    def whole(self):
        usage = self.answer()["usage"]
        if usage["completion_tokens"] > self.answer_tokens:
            raise Wrong("more tokens than were asked for")

    def one_token(self):
        if self.answer(max_tokens=1)["usage"]["completion_tokens"] > 1:
            raise Wrong("more than one token")

    def stop(self):
        if "a" in self.answer(stop="a")["choices"][0]["message"]["content"]:
            raise Wrong("the stop string is in the answer")

    def two(self):
        if len(self.answer(n=2)["choices"]) != 2:
            raise Wrong("not two answers")

    def stream(self, n_events=None):
        """Reads a stream, or so many of its events."""
        connection = self.post(stream=True)
        response = connection.getresponse()
        if response.status != 200:
            raise Wrong(f"status {response.status}")
        last = b""
        for line in response:
            if line.startswith(b"data: "):
                last = line.strip()
                if n_events == 0:
                    break
                n_events = n_events and n_events - 1
        # Closed with what has not been read, this is a reset for the server.
        response.close()
        connection.close()
        if n_events is None and last != b"data: [DONE]":
            raise Wrong("a stream without its end")

    def leave_stream(self):
        self.stream(self.numbers.randint(0, self.answer_tokens // 2))

    def leave_whole(self):
        connection = self.post()
        time.sleep(self.numbers.random() / 2)
        connection.close()

    def run(self, totals, end):
        while time.monotonic() < end:
            ask = self.numbers.choice(self.kinds)
            try:
                ask()
                totals.count(ask.__name__)
            except (Wrong, OSError, http.client.HTTPException, ValueError, KeyError) as error:
                totals.count(ask.__name__, f"{type(error).__name__} {error}")


def kept_mb(url):
    """What earlier prompts take of the server's memory, in MiB."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        for line in response.read().decode().splitlines():
            if line.startswith("oarlock_prefix_cache_bytes "):
                return float(line.split()[1]) / 2**20
    raise SystemExit("/metrics has no oarlock_prefix_cache_bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="such as http://localhost:8000")
    parser.add_argument("--pid", type=int, required=True, help="the process of the server")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--answer-tokens", type=int, default=32, help="the most tokens of an answer")
    options = parser.parse_args()
    server, totals = Process(options.pid), Totals()
    begin = time.monotonic()
    end = begin + options.seconds
    clients = [Client(options.url, number, options.answer_tokens) for number in range(options.clients)]
    # A client that still waits for its answer at the end is not waited for.
    threads = [threading.Thread(target=client.run, args=(totals, end), daemon=True) for client in clients]
    columns = f"{'seconds':>8} {'requests':>9} {'errors':>7} {'memory MiB':>11} {'prompts MiB':>12}"
    print(f"{columns} {'threads':>8} {'files':>6}")
    memory = []

    def line():
        kept = kept_mb(options.url)
        memory.append((time.monotonic() - begin, server.memory_mb(), kept))
        numbers = totals.done.total(), totals.wrong.total()
        seconds, mb, _ = memory[-1]
        print(
            f"{seconds:8.0f} {numbers[0]:9} {numbers[1]:7} {mb:11.1f} {kept:12.1f} {server.n_threads():8} "
            f"{server.n_files():6}",
            flush=True,
        )

    line()
    for thread in threads:
        thread.start()
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(INTERVAL, left))
        line()
    for thread in threads:
        thread.join(max(0, end + LAST_ANSWERS - time.monotonic()))
    print("done: " + ", ".join(f"{kind} {n}" for kind, n in sorted(totals.done.items())))
    for problem, n in totals.wrong.most_common(10):
        print(f"wrong {n} times: {problem}")
    last = memory[-1]
    warm = next(sample for sample in memory if sample is last or (sample[0] >= WARM_UP and sample[2] >= FULL * last[2]))
    for name, (seconds, mb, kept) in (("warm", warm), ("last", last)):
        print(f"{name}, after {seconds:.0f} s: {mb:.1f} MiB, of which prompts {kept:.1f}")
    is_flat = False
    if warm[0] > options.seconds / 2:
        print("not warm at half-time; let it run for longer")
    elif last[1] > MOST_GROWTH * warm[1]:
        print("the memory grows")
    else:
        is_flat = True
    return int(bool(totals.wrong) or not is_flat)


if __name__ == "__main__":
    sys.exit(main())
