"""Text from a trained model: a prompt that is continued, or a question that is answered."""

from __future__ import annotations

import codecs
import io
import os
import signal
import subprocess
import tempfile
from typing import Iterator, List, Literal, Mapping, Optional, Sequence, Tuple, Union, cast, overload

from ._binary import binary, environment
from ._error import failure
from ._settings import word

Prompt = Union[str, Sequence[Mapping[str, str]]]

#: What the program writes before an answer, and behind it.
ASKED, ASKS = "User: Assistant: ", "\nUser: "


@overload
def generate(
    model: Union[str, "os.PathLike[str]"], prompt: Prompt, *, stream: Literal[False] = False, **sampling: object
) -> str: ...
@overload
def generate(
    model: Union[str, "os.PathLike[str]"], prompt: Prompt, *, stream: Literal[True], **sampling: object
) -> Iterator[str]: ...
def generate(
    model: Union[str, "os.PathLike[str]"], prompt: Prompt, *, stream: bool = False, **sampling: object
) -> Union[str, Iterator[str]]:
    """What a model writes behind a prompt, or its answer to a question.

    A text is continued. A list of messages, ``[{"role": "user", "content": …}]`` with a system message before it or not, is
    written by the model's chat template. ``sampling`` has the options of ``oarlock generate``: ``temperature=0``,
    ``max_new_tokens=64``, ``seed=1``, ``adapter="out/lora"``. With ``stream=True`` the pieces come as they are made.
    """
    pieces = _pieces(model, prompt, sampling)
    return pieces if stream else "".join(pieces)


def _pieces(
    model: Union[str, "os.PathLike[str]"], prompt: Prompt, sampling: Mapping[str, object]
) -> Iterator[str]:
    options = {"model": model, **sampling}
    if isinstance(prompt, str):
        begin, end, asked = prompt, "\n", None
        command, options = "generate", {**options, "prompt": prompt}
    else:
        begin, end, command = ASKED, ASKS, "chat"
        system, asked = _question(prompt)
        if system is not None:
            options["system"] = system
    words = [f"--{name.replace('_', '-')}={word(value)}" for name, value in options.items() if value is not None]
    return _read([str(binary()), command, *words], asked, begin, end)


def _question(messages: Sequence[Mapping[str, str]]) -> Tuple[Optional[str], str]:
    """The system message and the question of a conversation that begins."""
    said: List[Tuple[str, str]] = [(message["role"], message["content"]) for message in messages]
    system = said.pop(0)[1] if said and said[0][0] == "system" else None
    if len(said) != 1 or said[0][0] != "user":
        raise ValueError("messages are one of the user, with one of the system before it or not")
    question = said[0][1].strip()
    if not question or question in ("exit", "clear") or len(question.splitlines()) > 1:
        raise ValueError("the question is a line of text")
    return system, question


def _read(command: List[str], asked: Optional[str], begin: str, end: str) -> Iterator[str]:
    """What the command writes, without what stands before and behind the answer."""
    with tempfile.TemporaryFile(prefix="oarlock-") as said:
        process = subprocess.Popen(
            command,
            env=environment(None),
            stdin=subprocess.DEVNULL if asked is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
        )
        try:
            if process.stdin is not None and asked is not None:
                try:
                    process.stdin.write(f"{asked}\n".encode())
                    process.stdin.close()
                except BrokenPipeError:
                    pass
            output = cast(io.BufferedReader, process.stdout)
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            skipped, held = len(begin), ""
            while True:
                data = output.read1(1 << 16)
                text = decoder.decode(data, final=not data)
                begun, text = text[:skipped], text[skipped:]
                skipped -= len(begun)
                held += text
                if not data:
                    break
                # The last characters may be what stands behind the answer.
                ready, held = held[: -len(end)], held[-len(end) :]
                if ready:
                    yield ready
            code = process.wait()
            if code != 0:
                said.seek(0)
                raise failure(said.read().decode("utf-8", "replace"), code)
            held = held[: -len(end)] if held.endswith(end) else held
            if held:
                yield held
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            if process.stdout is not None:
                process.stdout.close()
