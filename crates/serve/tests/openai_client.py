#!/usr/bin/env python3
"""Calls the server with the official Python client: every call that programs for OpenAI's API make.

    cargo build -p oarlock-serve --example fake_model
    python3 -m venv VENV && VENV/bin/pip install openai
    VENV/bin/python crates/serve/tests/openai_client.py target/debug/examples/fake_model

Tried with openai 3.51.0. What fails is an error of Python; at the end it says how many calls were right.
"""

import asyncio
import subprocess
import sys
import time

import openai
from pydantic import BaseModel

KEY = "a-key-for-tests"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
done = []


def check(name, holds, seen=None):
    assert holds, (name, seen)
    done.append(name)


def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def user(text):
    return [{"role": "user", "content": text}]


def models(client):
    listed = client.models.list()
    check("models", [model.id for model in listed] == ["fake", "owner/fake-lora"], listed)
    check("one model", client.models.retrieve("owner/fake-lora").id == "owner/fake-lora")


def chats(client):
    reply = client.chat.completions.create(model="fake", messages=user("say Hello world"))
    choice = reply.choices[0]
    check("chat", (choice.message.content, choice.finish_reason) == ("Hello world", "stop"), reply)
    check("usage", reply.usage.total_tokens == reply.usage.prompt_tokens + 2, reply.usage)
    check("timings", reply.timings["predicted_n"] == 2, reply)
    check("fingerprint", reply.system_fingerprint == "fp_fake", reply)
    reply = client.chat.completions.create(model="fake", messages=user("count 5"), n=3, seed=4)
    texts = [choice.message.content for choice in reply.choices]
    check("n", len(set(texts)) == 3, texts)
    again = client.chat.completions.create(model="fake", messages=user("count 5"), n=3, seed=4)
    check("seed", [choice.message.content for choice in again.choices] == texts, again)
    reply = client.chat.completions.create(model="fake", messages=user("say one two three"), stop=[" three"])
    check("stop", reply.choices[0].message.content == "one two", reply)
    reply = client.chat.completions.create(model="fake", messages=user("count 9"), max_completion_tokens=2)
    check("length", reply.choices[0].finish_reason == "length", reply)
    reply = client.chat.completions.create(
        model="fake", messages=user("say a 😀"), logprobs=True, top_logprobs=2)
    tokens = reply.choices[0].logprobs.content
    check("logprobs", bytes(byte for token in tokens for byte in token.bytes).decode() == "a 😀", tokens)
    check("top_logprobs", all(len(token.top_logprobs) == 2 for token in tokens), tokens)
    reply = client.chat.completions.create(
        model="fake", messages=user("say this </think> that"),
        extra_body={"chat_template_kwargs": {"enable_thinking": True}, "top_k": 5, "min_p": 0.1})
    message = reply.choices[0].message
    check("thoughts", (message.reasoning_content, message.content) == ("this", "that"), reply)
    raw = client.chat.completions.with_raw_response.create(model="fake", messages=user("say a"))
    check("raw response", raw.headers["x-request-id"].startswith("req_"), raw.headers)
    check("request id", raw.parse()._request_id == raw.headers["x-request-id"])


def streams(client):
    chunks = list(client.chat.completions.create(
        model="fake", messages=user("say Hello 你 world"), stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check("stream", text == "Hello 你 world", chunks)
    check("usage of a stream", chunks[-1].usage.completion_tokens == 6 and not chunks[-1].choices, chunks[-1])
    check("one id", len({chunk.id for chunk in chunks}) == 1)
    with client.chat.completions.stream(model="fake", messages=user("say a b c"), n=2) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    check("stream helper", [choice.message.content for choice in final.choices] == ["a b c"] * 2, final)
    error = raised(openai.APIError, lambda: list(client.chat.completions.create(
        model="fake", messages=user("fail 2"), stream=True)))
    check("failure in a stream", "out of memory" in error.message and "status_code" not in vars(error), error)


def tools(client):
    messages = user(f"say let me see {CALL}")
    reply = client.chat.completions.create(model="fake", messages=messages, tools=TOOLS)
    choice = reply.choices[0]
    check("tools", choice.finish_reason == "tool_calls" and choice.message.content == "let me see", reply)
    call = choice.message.tool_calls[0]
    check("arguments", (call.function.name, call.function.arguments) == ("weather", '{"city":"Bonn"}'), call)
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}, *user("say fine")]
    reply = client.chat.completions.create(model="fake", messages=messages, tools=TOOLS)
    check("round trip", reply.choices[0].message.content == "fine", reply)
    with client.chat.completions.stream(model="fake", messages=user(f"say {CALL}{CALL}"), tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    check("tools of a stream", len(final.message.tool_calls) == 2 and final.finish_reason == "tool_calls", final)
    check("events of tools", "tool_calls.function.arguments.done" in kinds, kinds)


def refusals(client):
    class Answer(BaseModel):
        word: str

    reply = client.chat.completions.parse(
        model="fake", messages=user('say {"word":"oar"}'), response_format=Answer)
    check("parse", reply.choices[0].message.parsed == Answer(word="oar"), reply)
    error = raised(openai.BadRequestError, lambda: client.chat.completions.parse(
        model="owner/fake-lora", messages=user("say a"), response_format=Answer))
    check("parse without grammars", error.param == "response_format", error)
    reply = client.chat.completions.parse(model="fake", messages=user("say a"))
    check("parse of text", reply.choices[0].message.parsed is None and reply.choices[0].message.content == "a")
    error = raised(openai.BadRequestError, lambda: client.chat.completions.create(
        model="fake", messages=user("a" * 5000)))
    check("over-long", error.code == "context_length_exceeded", error)
    error = raised(openai.NotFoundError, lambda: client.chat.completions.create(
        model="none", messages=user("say a")))
    check("unknown model", error.code == "model_not_found", error)
    error = raised(openai.InternalServerError, lambda: client.with_options(
        max_retries=0).chat.completions.create(model="fake", messages=user("fail 1")))
    check("failure", error.status_code == 500, error)
    wrong = client.with_options(api_key="wrong")
    error = raised(openai.AuthenticationError, lambda: wrong.models.list())
    check("wrong key", error.code == "invalid_api_key", error)


def completions(client):
    reply = client.completions.create(model="fake", prompt=["user: say a", "user: say b"], n=2)
    check("completions", [choice.text for choice in reply.choices] == ["a", "a", "b", "b"], reply)
    reply = client.completions.create(model="fake", prompt="user: say a b", echo=True, logprobs=1)
    lists = reply.choices[0].logprobs
    check("echo", reply.choices[0].text == "user: say a ba b" and lists.token_logprobs[0] is None, reply)
    chunks = client.completions.create(model="fake", prompt="user: say a b", stream=True)
    check("stream of completions", "".join(chunk.choices[0].text for chunk in chunks) == "a b")


def responses(client):
    reply = client.responses.create(model="fake", input="say <think>hm</think> Hello", instructions="be kind")
    kinds = [item.type for item in reply.output]
    check("response", reply.output_text == "Hello" and kinds == ["reasoning", "message"], reply)
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
    reply = client.responses.create(model="fake", input=f"say {CALL}", tools=[tool])
    call = reply.output[0]
    check("function call", (call.type, call.arguments) == ("function_call", '{"city":"Bonn"}'), reply)
    items = [*reply.output, {"type": "function_call_output", "call_id": call.call_id, "output": "dry"}, *user("say ok")]
    check("its result", client.responses.create(model="fake", input=items, tools=[tool]).output_text == "ok")
    with client.responses.stream(model="fake", input=f"say <think>hm so</think> a b {CALL}", tools=[tool]) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    check("stream of a response", text == "a b" == final.output_text and len(final.output) == 3, final)
    error = raised(openai.BadRequestError, lambda: client.responses.create(
        model="fake", input="say a", previous_response_id=reply.id))
    check("nothing is stored", error.param == "previous_response_id", error)


def embeddings(client):
    reply = client.embeddings.create(model="fake", input=["ab", "c"])
    close = abs(reply.data[0].embedding[3] - 1e-3) < 1e-9
    check("embeddings", close and [round(value, 1) for value in reply.data[1].embedding[:2]] == [2.0, -0.5], reply)
    plain = client.embeddings.create(model="fake", input="ab", encoding_format="float")
    check("embeddings as numbers", plain.data[0].embedding[:3] == [3.0, -0.5, 2.0], plain)


def cancel(client, url):
    begin = time.monotonic()
    stream = client.chat.completions.create(model="fake", messages=user("count 4000"), stream=True)
    for _, _chunk in zip(range(5), stream):
        pass
    stream.close()
    error = raised(openai.APITimeoutError, lambda: client.with_options(
        timeout=0.3, max_retries=0).chat.completions.create(model="fake", messages=user("hang")))
    check("time-out", error is not None)
    deadline = time.monotonic() + 5
    while running(client, url) > 0:
        assert time.monotonic() < deadline, "sequences go on"
        time.sleep(0.01)
    check("cancel", time.monotonic() - begin < 5)


def running(client, url):
    text = client.get(url.replace("/v1", "") + "/metrics", cast_to=str)
    return float(next(line for line in text.splitlines() if line.startswith("oarlock_requests_processing ")).split()[1])


async def together(url):
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
        async def ask(seed):
            stream = await client.chat.completions.create(
                model="fake", messages=user("count 20"), seed=seed, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        alone = await ask(3)
        many = await asyncio.gather(*(ask(seed) for seed in range(64)))
        check("the same alone and among 64", many[3] == alone and len(set(many)) > 32, alone)


def main(program):
    server = subprocess.Popen([program, "0", KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip()
        with openai.OpenAI(base_url=url, api_key=KEY) as client:
            for calls in (models, chats, streams, tools, refusals, completions, responses, embeddings):
                calls(client)
            cancel(client, url)
        asyncio.run(together(url))
        server.stdin.close()
        check("end", server.wait(10) == 0 and "0 connections were cut off" in server.stdout.read())
    finally:
        server.kill()
    print(f"openai {openai.__version__}: {len(done)} checks are right: {', '.join(done)}")


if __name__ == "__main__":
    main(sys.argv[1])
