//! Ten thousand requests that were damaged at random: each has an answer, and the server still serves afterwards.

use std::io::{Read, Write};
use std::time::Duration;

use oarlock_serve::{Limits, Options};
use serde_json::json;

use crate::client::{Server, ask, ask_with, request};
use crate::fake::Fake;

const N_REQUESTS: usize = 10_000;

/// A generator of numbers that is the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let tools =
        json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }]);
    let rich = json!({
        "stream": true, "n": 2, "stop": ["a", "é"], "logprobs": true, "top_logprobs": 2, "tools": tools,
        "logit_bias": { "1": 2 }, "temperature": 0.5, "seed": 1, "max_tokens": 4, "stream_options": { "include_usage": true },
    });
    let bodies = [
        (
            "/v1/chat/completions",
            ask("say <think>a</think><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>é"),
        ),
        ("/v1/chat/completions", ask_with("count 3", rich)),
        (
            "/v1/completions",
            json!({ "prompt": ["user: say a", "b"], "echo": true, "logprobs": 2, "max_tokens": 2 }),
        ),
        ("/v1/completions", json!({ "prompt": [[97, 98]], "stream": true, "n": 2 })),
        ("/v1/embeddings", json!({ "input": ["a", "b"], "encoding_format": "base64" })),
        ("/v1/score/evaluation", json!({ "messages": ["a"], "max_length": 2 })),
        ("/tokenize", json!({ "content": "aé", "with_pieces": true })),
        ("/detokenize", json!({ "tokens": [1, 2, 3] })),
        ("/apply-template", ask("a")),
        (
            "/v1/messages",
            json!({
                "max_tokens": 3, "stream": true, "system": [{ "type": "text", "text": "a" }],
                "messages": [{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a" }] }],
                "tools": [{ "name": "f", "input_schema": {} }], "thinking": { "type": "enabled" },
            }),
        ),
        (
            "/v1/responses",
            json!({
                "stream": true, "input": [{ "type": "function_call", "call_id": "a", "name": "f", "arguments": "{}" }],
                "tools": [{ "type": "function", "name": "f" }], "reasoning": { "effort": "low" }, "metadata": {},
            }),
        ),
    ];
    let posts = bodies.iter().map(|(path, body)| request(path, "", body.to_string().as_bytes()));
    let get = b"GET /v1/models/fake HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_vec();
    posts.chain([get]).collect()
}

/// Values that stand where others are expected.
const ODD: [&str; 14] = [
    "null",
    "-1",
    "1e400",
    "99999999999999999999",
    "\"\"",
    "[]",
    "{}",
    "[[[]]]",
    "true",
    "\"\\ud800\"",
    "0.1",
    "-0",
    "{\"a\":1}",
    "\"\\u0000\"",
];

fn mutated(seed: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let begin = seed.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    // Mostly the body, whose length then is right again.
    let is_body = begin < seed.len() && numbers.below(4) > 0;
    let mut bytes = if is_body { seed[begin..].to_vec() } else { seed.to_vec() };
    for _ in 0..=numbers.below(2) {
        let at = numbers.below(bytes.len());
        match numbers.below(6) {
            0 => bytes[at] = numbers.below(256) as u8,
            1 => bytes.truncate(at.max(1)),
            2 => {
                let to = (at + 1 + numbers.below(8)).min(bytes.len());
                bytes.drain(at..to);
            }
            3 => {
                let to = (at + numbers.below(40)).min(bytes.len());
                let copy = bytes[at..to].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                // A whole value is replaced by another one.
                let colons: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == b':').collect();
                if let Some(colon) = colons.get(numbers.below(colons.len())) {
                    let rest = &bytes[colon + 1..];
                    let to =
                        rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']')).unwrap_or(rest.len());
                    let odd = ODD[numbers.below(ODD.len())].bytes();
                    bytes.splice(colon + 1..colon + 1 + to, odd);
                }
            }
        }
        if bytes.is_empty() {
            bytes.push(b'x');
        }
    }
    if !is_body {
        return bytes;
    }
    let path = seed.split(|byte| *byte == b' ').nth(1).unwrap();
    request(std::str::from_utf8(path).unwrap(), "", &bytes)
}

const N_THREADS: usize = 8;

/// The statuses of some of the requests; none, where the server has hung up.
fn statuses(server: &Server, seeds: &[Vec<u8>], thread: usize) -> Vec<String> {
    let mut numbers = Numbers(20_261_127 + thread as u64);
    let status = |index: usize| {
        let request = mutated(&seeds[index % seeds.len()], &mut numbers);
        let mut stream = server.connect();
        // The server may hang up before it has everything.
        _ = stream.write_all(&request);
        let mut reply = Vec::new();
        _ = stream.read_to_end(&mut reply);
        let status = reply.get(9..12).map(|status| String::from_utf8_lossy(status).into_owned());
        let status = status.unwrap_or_default();
        // Faults are those of the client, or of a connection that ends too early; none is the server's.
        assert!(!status.starts_with('5'), "{status}: {:?}", String::from_utf8_lossy(&request));
        status
    };
    (0..N_REQUESTS / N_THREADS).map(status).collect()
}

#[test]
fn damaged_requests_are_answered() {
    // A head or a body that has lost its end is not waited for.
    let time = Duration::from_millis(20);
    let limits = Limits { head_time: time, body_time: time, ..Limits::STANDARD };
    let server = Server::start(Fake::new(), Options { limits, ..Options::local() });
    let seeds = seeds();
    let statuses: Vec<String> = std::thread::scope(|scope| {
        let (server, seeds) = (&server, &seeds);
        let threads =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|thread| scope.spawn(move || statuses(server, seeds, thread)));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(statuses.len(), N_REQUESTS);
    let n = |wanted: &str| statuses.iter().filter(|status| *status == wanted).count();
    // Damage that changes nothing, and damage that is found.
    assert!(n("200") > 400 && n("400") > 5000, "{} and {}", n("200"), n("400"));
    server.chat(&ask("say still here")).ok();
}
