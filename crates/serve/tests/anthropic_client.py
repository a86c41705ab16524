#!/usr/bin/env python3
"""Calls `/v1/messages` with Anthropic's Python client, as coding agents do.

    cargo build -p oarlock-serve --example fake_model
    python3 -m venv VENV && VENV/bin/pip install anthropic
    VENV/bin/python crates/serve/tests/anthropic_client.py target/debug/examples/fake_model

Tried with anthropic 2.14.0.
"""

import subprocess
import sys

import anthropic

KEY = "a-key-for-tests"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'
TOOLS = [{"name": "weather", "input_schema": {"type": "object"}}]
done = []


def check(name, holds, seen=None):
    assert holds, (name, seen)
    done.append(name)


def ask(client, text, **fields):
    messages = [{"role": "user", "content": text}]
    return client.messages.create(model="fake", max_tokens=100, messages=messages, **fields)


def calls(client):
    reply = ask(client, "say Hello world", system="be kind")
    check("message", (reply.content[0].text, reply.stop_reason) == ("Hello world", "end_turn"), reply)
    check("usage", reply.usage.output_tokens == 2, reply)
    reply = ask(client, f"say <think>hm</think> so {CALL}", tools=TOOLS)
    check("parts", [block.type for block in reply.content] == ["thinking", "text", "tool_use"], reply)
    check("input", reply.content[2].input == {"city": "Bonn"} and reply.stop_reason == "tool_use", reply)
    result = {"type": "tool_result", "tool_use_id": reply.content[2].id, "content": "sunny"}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": [result, {"type": "text", "text": "say fine"}]},
    ]
    reply = client.messages.create(model="fake", max_tokens=100, messages=messages, tools=TOOLS)
    check("round trip", reply.content[0].text == "fine", reply)
    messages = [{"role": "user", "content": f"say <think>hm so</think> a b {CALL}"}]
    with client.messages.stream(model="fake", max_tokens=100, messages=messages, tools=TOOLS) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("stream", text == "a b" and final.content[2].input == {"city": "Bonn"}, final)
    check("thoughts of a stream", final.content[0].thinking == "hm so", final)
    counted = client.messages.count_tokens(model="fake", messages=[{"role": "user", "content": "a"}])
    check("count", counted.input_tokens == len("user: a\x01\nassistant: "), counted)
    for kind, wrong in (
        (anthropic.BadRequestError, lambda: ask(client, "say a", tool_choice={"type": "perhaps"}, tools=TOOLS)),
        (anthropic.AuthenticationError, lambda: ask(client.with_options(api_key="wrong"), "say a")),
    ):
        try:
            wrong()
        except kind as error:
            check(kind.__name__, True, error)
            continue
        raise AssertionError(f"{kind.__name__} was not raised")


def main(program):
    server = subprocess.Popen([program, "0", KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip().removesuffix("/v1")
        with anthropic.Anthropic(base_url=url, api_key=KEY) as client:
            calls(client)
    finally:
        server.kill()
    print(f"anthropic {anthropic.__version__}: {len(done)} checks are right: {', '.join(done)}")


if __name__ == "__main__":
    main(sys.argv[1])
