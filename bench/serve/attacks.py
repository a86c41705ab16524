"""Ways to be a bad client of an HTTP server, what may come of each, and within how many seconds."""

import json
import random
import socket
import struct
import time

# The documented limits in seconds, and what a busy machine may add.
HEAD_TIME, BODY_TIME, WRITE_TIME, DRAIN_TIME, SLACK = 10, 30, 60, 30, 5
# What does not wait, and what waits for its turn behind much that is large.
QUICK, LONG = 30, 300
BODY_BYTES, HUGE = 8 << 20, 100 << 20
CHAT = "/v1/chat/completions"
POSTS = [
    CHAT,
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/score/evaluation",
    "/tokenize",
    "/detokenize",
    "/apply-template",
]


def chat(**fields):
    return {"messages": [{"role": "user", "content": "Who keeps the lock?"}], "max_tokens": 8, **fields}


def head(path=CHAT, method="POST", lines=("Content-Type: application/json",), host="Host: localhost", close=True):
    close = ["Connection: close"] if close else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", *([host] if host else []), *close, *lines, "", ""]).encode()


def post(path, body, *lines):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, lines=("Content-Type: application/json", f"Content-Length: {len(body)}", *lines)) + body


class Attacker:
    """One bad client. Each method is one way to be bad, and returns what came of it."""

    def __init__(self, address, seed):
        self.address, self.numbers = address, random.Random(seed)

    def connect(self, timeout=WRITE_TIME + DRAIN_TIME, receive_bytes=None):
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(timeout)
        connection.connect(self.address)
        return connection

    def ask(self, request, path="", seconds=WRITE_TIME + DRAIN_TIME):
        """Sends it and reads to the end of the connection."""
        with self.connect(seconds) as connection:
            try:
                connection.sendall(request)
            except OSError:
                pass  # Its refusal can be read nevertheless.
            return outcome(read(connection), path)

    def pick(self, *choices):
        return self.numbers.choice(choices)

    def bad_json(self):
        good = json.dumps(chat()).encode()
        path = self.pick(*POSTS)
        body = self.pick(
            good[: self.numbers.randrange(len(good))],
            b"",
            b"NaN",
            b"[" * 60,
            b"[" * 100_000,
            b"\xff\xfe",
            b"{" + good,
            self.numbers.randbytes(self.numbers.randrange(1, 300)),
            b'{"model": "\\ud800"}',
            b"null",
            b"[]",
            b'"a"',
            b"[" + b"[]," * 300_000 + b"0]",
        )
        return self.ask(post(path, body), path)

    def bad_values(self):
        field, value = self.pick(
            ("messages", []),
            ("messages", "a"),
            ("messages", [{}]),
            ("messages", [{"role": "x", "content": "a"}]),
            ("max_tokens", 0),
            ("max_tokens", 1e300),
            ("n", 9),
            ("n", -1),
            ("temperature", 3),
            ("temperature", "hot"),
            ("top_p", -1),
            ("stop", [1]),
            ("stop", ["a"] * 99),
            ("tools", [1]),
            ("tool_choice", "required"),
            ("logit_bias", {"a": 1}),
            ("stream", 1),
            ("seed", 0.5),
            ("logit_bias", {"4000000000": 1}),
            ("response_format", {"type": "grammar"}),
            ("guided_json", {"type": "integer", "minimum": 2, "maximum": 1}),
            ("guided_regex", "("),
            ("guided_grammar", "start: " + "(" * 9999),
            ("top_logprobs", 5),
            ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
            ("chat_template_kwargs", {"messages": []}),
        )
        return self.ask(post(CHAT, chat(**{field: value})))

    def odd_values(self):
        field, value = self.pick(
            ("temperature", 1e-45),
            ("top_p", 1e-45),
            ("min_p", 1),
            ("top_p", 0),
            ("repetition_penalty", 0.01),
            ("repetition_penalty", 100),
            ("seed", -(2**63)),
            ("seed", 2**64 - 1),
            ("stop", ""),
            ("stop_token_ids", [4294967295]),
            ("presence_penalty", -2),
            ("logit_bias", {"1": 100, "01": -100}),
            ("max_completion_tokens", 3.0),
            ("user", {"a": None}),
            ("unknown", [[[]]]),
            ("response_format", {"type": "json_object"}),
            ("guided_regex", "(a|b)*a(a|b){200}"),
            ("messages", [{"role": "tool", "content": "\u0000\ufeff\u202e"}]),
        )
        fields = {"stop": "e", "temperature": 0.5, field: value}
        return self.ask(post(CHAT, chat(**fields)))

    def odd_tokens(self):
        ids = [self.numbers.randrange(-1, 60_000) for _ in range(20)]
        body = self.pick({"tokens": ids}, {"tokens": [4294967295]}, {"tokens": ["a"]}, {"tokens": []})
        return self.ask(post("/detokenize", body))

    def wrong_route(self):
        path = self.pick(
            "/",
            "/v2/chat/completions",
            "/v1/chat/completions/",
            "/v1//models",
            "/%00",
            "/%ff%fe",
            "/../../etc/passwd",
            "/v1/models/%ff",
            "/v1/models/" + "a" * 9000,
            "*",
            "http://localhost/x",
            "//",
            "/?a=b",
            "/v1/files",
        )
        return self.ask(head(path, self.pick("GET", "POST"), lines=("Content-Length: 0",)))

    def wrong_method(self):
        path, methods = self.pick(
            (CHAT, ("GET", "PUT", "DELETE", "PATCH", "TRACE", "BREW")),
            ("/health", ("POST", "DELETE")),
            ("/v1/messages", ("GET", "PUT")),
        )
        return self.ask(head(path, self.pick(*methods)), path)

    def wrong_headers(self):
        body = json.dumps(chat()).encode()
        length = f"Content-Length: {len(body)}"
        kind = "Content-Type: application/json"
        lines, host = self.pick(
            ([length], "Host: localhost"),
            ([length, "Content-Type: text/plain"], "Host: localhost"),
            ([length, kind, "Content-Encoding: gzip"], "Host: localhost"),
            ([length, kind], "Host: evil.example"),
            ([length, kind], None),
            ([length, kind], "Host: \x80"),
            ([length, kind, "Origin: https://evil.example"], "Host: localhost"),
        )
        return self.ask(head(lines=lines, host=host) + body)

    def no_http(self):
        return self.ask(
            self.pick(
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + self.numbers.randbytes(300),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET\r\n\r\n",
                b"\x00" * 100 + b"\r\n\r\n",
                b"GET /health HTTP/1.1\r\nNo colon\r\n\r\n",
                b"GET /health HTTP/1.1\r\nBad name : a\r\n\r\n",
                b"GET /hea lth HTTP/1.1\r\n\r\n",
                b"GET /health HTTP/1.1\r\nA: \x00\r\n\r\n",
                b"CONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
                b"ssh-2.0-x\r\n\r\n",
            )
        )

    def huge_head(self):
        lines = self.pick(["X: " + "a" * (40 << 10)], [f"X{n}: a" for n in range(200)], ["Cookie: " + "b" * (1 << 20)])
        return self.ask(head(self.pick("/health", CHAT), "GET", lines=lines))

    def huge_path(self):
        return self.ask(head("/v1/models/" + "a" * self.pick(40 << 10, 1 << 20), "GET"))

    def bad_length(self):
        length = self.pick("abc", "-1", "1e3", "99999999999999999999999", "5, 6", "0x10", "+5", "")
        return self.ask(head(lines=("Content-Type: application/json", f"Content-Length: {length}")) + b'{"a":1}')

    def two_lengths(self):
        return self.ask(
            head(lines=("Content-Type: application/json", "Content-Length: 2", "Content-Length: 3")) + b"{} "
        )

    def short_body(self):
        """Less than it says, and then the end of what is sent."""
        with self.connect() as connection:
            connection.sendall(head(lines=("Content-Type: application/json", "Content-Length: 1000")) + b'{"a":')
            connection.shutdown(socket.SHUT_WR)
            return outcome(read(connection))

    def long_body(self):
        """More than it says: the rest is no request."""
        body = json.dumps(chat()).encode()
        return self.ask(head(lines=("Content-Type: application/json", "Content-Length: 9")) + body)

    def bad_chunks(self):
        chunks = self.pick(
            b"zz\r\n{}\r\n0\r\n\r\n",
            b"ffffffffffffffffff\r\n",
            b"-1\r\n",
            b"2\r\n{}XX",
            b"2;" + b"a" * (20 << 10) + b"\r\n{}\r\n0\r\n\r\n",
        )
        return self.ask(head(lines=("Content-Type: application/json", "Transfer-Encoding: chunked")) + chunks)

    def bad_coding(self):
        coding = self.pick("gzip", "chunked, gzip", "identity", "xchunked")
        return self.ask(head(lines=("Content-Type: application/json", f"Transfer-Encoding: {coding}")) + b"{}")

    def huge_body(self):
        """One hundred megabytes, as long as somebody takes them."""
        is_chunked = self.pick(False, True)
        line = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {HUGE}"
        piece = b" " * (1 << 20)
        with self.connect() as connection:
            connection.sendall(head(lines=("Content-Type: application/json", line)))
            n_sent = 0
            try:
                while n_sent < HUGE:
                    connection.sendall(b"100000\r\n" + piece + b"\r\n" if is_chunked else piece)
                    n_sent += len(piece)
            except OSError:
                pass
            said = outcome(read(connection))
            return said if n_sent < HUGE // 2 else f"{said} after all of it"

    def large_prompt(self):
        """As much text as a body may have; the model has room for a thousandth of it."""
        content = self.pick("a", "word ", "\u00e9", "1", "<|im_start|>") * (BODY_BYTES // 20)
        return self.ask(post(CHAT, {"messages": [{"role": "user", "content": content}]}), seconds=LONG)

    def large_prompt_and_gone(self):
        content = self.pick("a", "word ", "\u00e9") * (BODY_BYTES // 8)
        return self.leave(post(CHAT, {"messages": [{"role": "user", "content": content}]}), self.numbers.random())

    def leave(self, request, seconds=0.0):
        """Goes away, half of the times with a reset."""
        with self.connect() as connection:
            try:
                connection.sendall(request)
            except OSError:
                pass
            time.sleep(seconds)
            if self.pick(False, True):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return "left"

    def gone_in_head(self):
        return self.leave(head()[: self.numbers.randrange(1, 60)])

    def gone_in_body(self):
        request = post(CHAT, chat())
        return self.leave(request[: -self.numbers.randrange(1, 40)])

    def gone_in_answer(self):
        return self.leave(post(CHAT, chat(max_tokens=200)), self.numbers.random() / 5)

    def gone_in_stream(self):
        with self.connect() as connection:
            connection.sendall(post(CHAT, chat(max_tokens=200, stream=True)))
            connection.recv(self.numbers.randrange(1, 2000))
            if self.pick(False, True):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return "left"

    def long_answer(self):
        """Wants all that there is, and goes away after a while."""
        return self.leave(post(CHAT, chat(max_tokens=1 << 30, ignore_eos=True, stream=True)), QUICK)

    def pipelined(self):
        """Twenty requests at once, good and bad: as many answers, in this order."""
        requests, wanted = [], []
        for last in [False] * 19 + [True]:
            method, path, status = self.pick(
                ("GET", "/health", 200), ("GET", "/nowhere", 404), ("GET", "/v1/models", 200), ("GET", CHAT, 405)
            )
            requests.append(head(path, method, close=last))
            wanted.append(status)
        with self.connect() as connection:
            connection.sendall(b"".join(requests))
            return "all in order" if statuses(read(connection)) == wanted else "out of order"

    def pipelined_behind_chat(self):
        """A request behind one that is refused, and one behind a whole answer."""
        bad, good = json.dumps(chat(n=99)).encode(), json.dumps(chat(max_tokens=1)).encode()
        lines = [("Content-Type: application/json", f"Content-Length: {len(body)}") for body in (bad, good)]
        parts = [
            head(lines=lines[0], close=False),
            bad,
            head(lines=lines[1], close=False),
            good,
            head("/health", "GET"),
        ]
        with self.connect() as connection:
            connection.sendall(b"".join(parts))
            return "all in order" if statuses(read(connection)) == [400, 200, 200] else "out of order"

    def silent(self):
        """Connects and says nothing, or half a head and no more."""
        with self.connect() as connection:
            connection.sendall(self.pick(b"", b"G", b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc"))
            return outcome(read(connection))

    def half_closed(self):
        with self.connect() as connection:
            connection.sendall(head()[:20])
            connection.shutdown(socket.SHUT_WR)
            return outcome(read(connection))

    def trickle(self, begin, rest):
        """One byte a second, until the server has enough of it."""
        with self.connect(timeout=1) as connection:
            connection.sendall(begin)
            said = b""
            for byte in rest:
                try:
                    connection.sendall(bytes([byte]))
                    said += connection.recv(1 << 16)
                    break
                except TimeoutError:
                    continue
                except OSError:
                    break
            else:
                return "never ended"
            return outcome(said + read(connection))

    def slow_head(self):
        return self.trickle(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX: ", b"a" * 100)

    def slow_body(self):
        return self.trickle(head(lines=("Content-Type: application/json", "Content-Length: 1000")), b" " * 100)

    def slow_chunks(self):
        return self.trickle(
            head(lines=("Content-Type: application/json", "Transfer-Encoding: chunked")), b"1\r\n \r\n" * 20
        )

    def endless_chunks(self):
        """A chunk, and never another one."""
        return self.ask(head(lines=("Content-Type: application/json", "Transfer-Encoding: chunked")) + b"1\r\n{\r\n")

    def slow_reader(self):
        """Reads a stream byte by byte, one a second for a while, then the rest."""
        with self.connect(receive_bytes=2048) as connection:
            connection.sendall(post(CHAT, chat(stream=True)))
            said = b""
            for _ in range(20):
                said += connection.recv(1)
                time.sleep(1)
            said += read(connection)
            return "whole" if b"data: [DONE]\n\n" in said else outcome(said)

    def no_reader(self):
        """Asks on and on and reads nothing: the answers fill all buffers, and then the server lets it go."""
        request = head("/v1/models", "GET", close=False) * 100
        with self.connect(receive_bytes=2048) as connection:
            try:
                while True:
                    connection.sendall(request)
            except TimeoutError:
                return "never let go"
            except OSError:
                return "let go"


def read(connection):
    """All up to the end of the connection, or as much as came before its reset; None where no end came in time."""
    said = b""
    try:
        while piece := connection.recv(1 << 16):
            said += piece
    except TimeoutError:
        return None
    except OSError:
        pass
    return said


def statuses(said):
    """The statuses of the answers of one connection."""
    return [int(part[:3]) for part in (said or b"").split(b"HTTP/1.1 ")[1:]]


def outcome(said, path=""):
    """What came of a request: the status of its first answer, whose error must have the form of its route,
    or the end."""
    if said is None:
        return "no end"
    if not said:
        return "closed"
    top, _, body = said.partition(b"\r\n\r\n")
    status = int(top.split(b" ")[1])
    if status < 400:
        return str(status)
    # What is no HTTP is refused below the routes, with a status alone.
    if not body or body.startswith(b"HTTP/1.1"):
        return f"{status} bare"
    body = body[
        : int(dict(line.lower().split(b": ", 1) for line in top.split(b"\r\n")[1:]).get(b"content-length", len(body)))
    ]
    try:
        value = json.loads(body)
        error = value["error"]
        is_form = isinstance(error["message"], str) and isinstance(error["type"], str)
        is_form &= (
            value.get("type") == "error" if path.startswith("/v1/messages") else "param" in error and "code" in error
        )
    except (ValueError, KeyError, TypeError):
        is_form = False
    return str(status) if is_form else f"{status} in another form"


# Ways to be bad: how often, what may come of it, and within how many seconds.
WAYS = [
    ("bad_json", 2000, "400", QUICK),
    ("bad_values", 1500, "400", QUICK),
    ("odd_values", 300, "200|400", QUICK * 4),
    ("odd_tokens", 300, "200|400", QUICK),
    ("wrong_route", 1000, "404|405|400 bare", QUICK),
    ("wrong_method", 600, "405", QUICK),
    ("wrong_headers", 700, "403|415", QUICK),
    ("no_http", 600, "400 bare|400|403|404|closed", HEAD_TIME + SLACK),
    ("huge_head", 300, "431 bare", QUICK),
    ("huge_path", 100, "414 bare|431 bare", QUICK),
    ("bad_length", 300, "400 bare", QUICK),
    ("two_lengths", 100, "400 bare", QUICK),
    ("short_body", 300, "400|closed", QUICK),
    ("long_body", 200, "400", QUICK),
    ("bad_chunks", 300, "400", QUICK),
    ("bad_coding", 100, "400 bare", QUICK),
    ("huge_body", 30, "413", QUICK),
    ("large_prompt", 30, "400|503", LONG),
    ("large_prompt_and_gone", 60, "left", QUICK),
    ("gone_in_head", 200, "left", QUICK),
    ("gone_in_body", 200, "left", QUICK),
    ("gone_in_answer", 100, "left", QUICK),
    ("gone_in_stream", 100, "left", 4 * QUICK),
    ("pipelined", 200, "all in order", QUICK),
    ("pipelined_behind_chat", 50, "all in order", 4 * QUICK),
    ("half_closed", 100, "closed|400 bare", QUICK),
]
# Those that take their time all begin at once.
SLOW_WAYS = [
    ("silent", 100, "closed", HEAD_TIME + SLACK),
    ("slow_head", 50, "closed", HEAD_TIME + SLACK),
    ("slow_body", 30, "408", BODY_TIME + SLACK),
    ("slow_chunks", 20, "408", BODY_TIME + SLACK),
    ("endless_chunks", 20, "408", BODY_TIME + SLACK),
    ("slow_reader", 6, "whole", 4 * QUICK),
    ("long_answer", 4, "left", QUICK + SLACK),
    ("no_reader", 4, "let go", WRITE_TIME + 2 * SLACK),
]
