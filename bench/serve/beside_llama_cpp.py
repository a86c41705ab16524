"""How fast `oarlock serve` and llama.cpp answer from the same files on the same cores, in turns.

    python beside_llama_cpp.py --oarlock oarlock --llama FOLDER f32=model-F32.gguf q8_0=model-Q8_0.gguf --threads 2

FOLDER has the shared libraries of llama.cpp (libllama, libggml), such as those in the npm package
`@node-llama-cpp/linux-x64`; they are called through ctypes. `oarlock export MODEL --gguf TYPE` makes the files.

Each round asks both for each file: prompts of 512 tokens, and 128 tokens behind them, of one text and of eight at once.
Ours is measured over HTTP, with prompts that the server has read before when tokens are timed; it guesses no tokens,
unless `--speculative-tokens` says so.
The share of bandwidth is what one text reads of the file per second (the embedding counts once, as output weights), by
what `memchr` reads on all threads. All rounds are printed as JSON, and their medians as a table.
"""

import argparse
import ctypes as c
import glob
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

PROMPT, ANSWER, BATCH = 512, 128, 8


def prompt(number):
    return [100 + (7 * i + 31 * number) % 5000 for i in range(PROMPT)]


def bandwidth(n_threads):
    """Bytes per second that all threads read, at best."""
    size, libc = 256 << 20, c.CDLL(None)
    libc.memchr.argtypes, libc.memchr.restype = [c.c_void_p, c.c_int, c.c_size_t], c.c_void_p
    buffers = [(c.c_char * size)() for _ in range(n_threads)]
    for buffer in buffers:
        c.memset(buffer, 1, size)

    def once():
        threads = [threading.Thread(target=libc.memchr, args=(buffer, 0, size)) for buffer in buffers]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return n_threads * size / (time.perf_counter() - begin)

    return max(once() for _ in range(10))


class Oarlock:
    """A server, for as long as it is needed."""

    def __init__(self, program, file, dtype, n_threads, n_guesses):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [program, "serve", file, "--port", str(self.port), "--threads", str(n_threads), "--device", "cpu"]
        command += ["--dtype", dtype, "--speculative-tokens", str(n_guesses)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self):
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5).read()
                return self
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None:
                    raise SystemExit("oarlock serve has ended") from None
                time.sleep(0.1)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def ask(self, ids, n_tokens):
        body = {"prompt": ids, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        reply = json.load(urllib.request.urlopen(request, timeout=600))
        if reply["usage"]["completion_tokens"] != n_tokens:
            raise SystemExit(f"expected {n_tokens} tokens: {reply['usage']}")

    def at_once(self, prompts, n_tokens):
        """Seconds until all of them are answered."""
        threads = [threading.Thread(target=self.ask, args=(ids, n_tokens)) for ids in prompts]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begin

    def measure(self, number):
        self.ask(prompt(number)[:32], 4)
        result = {}
        for n in (1, BATCH):
            prompts = [prompt(number + n + i) for i in range(n)]
            reading = self.at_once(prompts, 1)
            # Read before, but for the last page.
            again, whole = self.at_once(prompts, 1), self.at_once(prompts, ANSWER + 1)
            result[f"prompt {n}"] = n * PROMPT / reading
            result[f"decode {n}"] = n * ANSWER / (whole - again)
        return result


class Params(c.Structure):
    """Room for the parameters of a model or a context."""

    _fields_ = [("words", c.c_int32 * 128)]


class Batch(c.Structure):
    _fields_ = [
        ("n", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.c_void_p),
        ("pos", c.POINTER(c.c_int32)),
        ("n_seq", c.POINTER(c.c_int32)),
        ("seq", c.POINTER(c.POINTER(c.c_int32))),
        ("logits", c.POINTER(c.c_int8)),
    ]


class Llama:
    """A model in llama.cpp."""

    def __init__(self, folder, file, n_threads):
        def library(name):
            found = sorted(glob.glob(f"{folder}/{name}.so*") + glob.glob(f"{folder}/{name}.v*.so*"))
            if not found:
                raise SystemExit(f"there is no {name} in {folder}")
            return c.CDLL(found[0], mode=c.RTLD_GLOBAL)

        library("libggml-base")
        ggml, self.lib = library("libggml"), library("libllama")
        ggml.ggml_backend_load_all_from_path(os.fsencode(folder))
        self.quiet = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda *_: None)
        self.lib.llama_log_set(self.quiet, None)
        functions = {
            "llama_model_default_params": (Params, []),
            "llama_context_default_params": (Params, []),
            "llama_model_load_from_file": (c.c_void_p, [c.c_char_p, Params]),
            "llama_init_from_model": (c.c_void_p, [c.c_void_p, Params]),
            "llama_batch_init": (Batch, [c.c_int32] * 3),
            "llama_decode": (c.c_int32, [c.c_void_p, Batch]),
            "llama_get_memory": (c.c_void_p, [c.c_void_p]),
            "llama_memory_clear": (None, [c.c_void_p, c.c_bool]),
        }
        for name, (result, arguments) in functions.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        model = self.lib.llama_model_load_from_file(os.fsencode(file), self.lib.llama_model_default_params())
        params = self.lib.llama_context_default_params()
        words = params.words
        words[0], words[1], words[2], words[3] = BATCH * (PROMPT + ANSWER), 2048, 512, BATCH
        # Threads of one token and of prompts stand beside each other; both are four by default.
        at = next(i for i in range(4, 16) if words[i] == words[i + 1] == 4)
        words[at] = words[at + 1] = n_threads
        self.context = self.lib.llama_init_from_model(model, params)
        if not self.context:
            raise SystemExit("llama.cpp does not open the file")
        self.batch = self.lib.llama_batch_init(PROMPT, 0, BATCH)

    def decode(self, tokens):
        """Tokens, each with its position, its text, and whether its logits are asked for."""
        self.batch.n = len(tokens)
        for i, (token, position, sequence, logits) in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i], self.batch.n_seq[i] = token, position, 1
            self.batch.seq[i][0], self.batch.logits[i] = sequence, logits
        if self.lib.llama_decode(self.context, self.batch) != 0:
            raise SystemExit("llama_decode fails")

    def measure(self, number):
        self.decode([(1, i, 0, 0) for i in range(32)])
        result = {}
        for n in (1, BATCH):
            self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
            begin = time.perf_counter()
            for i in range(n):
                ids = prompt(number + n + i)
                self.decode([(id, at, i, int(at == PROMPT - 1)) for at, id in enumerate(ids)])
            middle = time.perf_counter()
            for at in range(ANSWER):
                self.decode([(200 + at, PROMPT + at, i, 1) for i in range(n)])
            end = time.perf_counter()
            result[f"prompt {n}"] = n * PROMPT / (middle - begin)
            result[f"decode {n}"] = n * ANSWER / (end - middle)
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="NAME=FILE", help="bf16 and f16 as NAME compute in that dtype")
    parser.add_argument("--oarlock", default="oarlock", help="the program")
    parser.add_argument("--llama", required=True, help="the folder of the libraries")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--speculative-tokens", type=int, default=0, help="answers to these prompts repeat themselves: guesses flatter"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    files = dict(word.split("=", 1) for word in options.files)
    if options.one:
        # A process of its own, whose memory is gone afterwards.
        ((number, file),) = files.items()
        print(json.dumps(Llama(options.llama, file, options.threads).measure(int(number))))
        return
    bytes_per_second = bandwidth(options.threads)
    rounds = []
    for number in range(0, 100 * options.rounds, 100):
        for name, file in files.items():
            dtype = name if name == "bf16" else "f32"
            with Oarlock(options.oarlock, file, dtype, options.threads, options.speculative_tokens) as ours:
                rounds.append({"file": name, "engine": "oarlock", **ours.measure(number)})
            print(json.dumps(rounds[-1]), flush=True)
            command = [sys.executable, __file__, "--one", "--llama", options.llama, "--threads", str(options.threads)]
            said = subprocess.run([*command, f"{number}={file}"], check=True, stdout=subprocess.PIPE)
            rounds.append({"file": name, "engine": "llama.cpp", **json.loads(said.stdout)})
            print(json.dumps(rounds[-1]), flush=True)
    print(f"\n{options.threads} threads, which read {bytes_per_second / 1e9:.1f} GB/s; tokens per second, medians of {options.rounds} rounds\n")
    columns = [f"{what} {n}" for what in ("prompt", "decode") for n in (1, BATCH)]
    print("| file | engine | " + " | ".join(columns) + " | share of bandwidth |")
    print("|---|---|" + "---:|" * (len(columns) + 1))
    for name, file in files.items():
        for engine in ("oarlock", "llama.cpp"):
            of = [row for row in rounds if row["file"] == name and row["engine"] == engine]
            medians = {column: statistics.median(row[column] for row in of) for column in columns}
            share = medians["decode 1"] * os.path.getsize(file) / bytes_per_second
            print(f"| {name} | {engine} | " + " | ".join(f"{medians[column]:.1f}" for column in columns) + f" | {share:.0%} |")


if __name__ == "__main__":
    main()
