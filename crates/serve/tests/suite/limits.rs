//! What nobody may exceed.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use oarlock_serve::{Limits, Options};
use serde_json::{Value, json};

use crate::client::{Reply, Server, ask, ask_with, request, wait_for};
use crate::fake::Fake;

fn with_limits(limits: Limits) -> Server {
    Server::start(Fake::new(), Options { limits, ..Options::local() })
}

const CHAT: &str =
    "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

#[test]
fn a_huge_body_is_refused_without_being_read() {
    let server = Server::plain();
    const N_BYTES: usize = 100 << 20;
    let mut stream = server.connect();
    stream.write_all(format!("{CHAT}Content-Length: {N_BYTES}\r\n\r\n").as_bytes()).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let piece = vec![b' '; 1 << 20];
    let mut n_sent = 0;
    // Buffers of the system take some MiB; then the server has hung up.
    while n_sent < N_BYTES && stream.write_all(&piece).is_ok() {
        n_sent += piece.len();
    }
    assert!(n_sent < N_BYTES / 2, "{n_sent} bytes were taken");
    Reply::read(&mut stream).error(413);
}

#[test]
fn a_body_without_a_length_ends_at_the_limit() {
    let server = with_limits(Limits { body_bytes: 64 << 10, ..Limits::STANDARD });
    let mut stream = server.connect();
    stream.write_all(format!("{CHAT}Transfer-Encoding: chunked\r\n\r\n").as_bytes()).unwrap();
    let piece = [b"1000\r\n".as_slice(), &[b' '; 0x1000], b"\r\n"].concat();
    for _ in 0..20 {
        if stream.write_all(&piece).is_err() {
            break;
        }
    }
    Reply::read(&mut stream).error(413);
    // Up to the limit it is fine.
    let mut body = ask("say a").to_string().into_bytes();
    body.resize(64 << 10, b' ');
    assert_eq!(Reply::read(&mut server.send(&request("/v1/chat/completions", "", &body))).status, 200);
}

#[test]
fn all_bodies_together_have_a_limit() {
    let server = with_limits(Limits { all_bodies_bytes: 8 << 10, ..Limits::STANDARD });
    let mut body = ask("say a").to_string().into_bytes();
    body.resize(6 << 10, b' ');
    let request = request("/v1/chat/completions", "", &body);
    // One that stays incomplete holds its part.
    // One of them is refused; it may be this one, which then begins again.
    let mut held = None;
    wait_for("the other request's refusal", || {
        held = Some(server.send(&request[..request.len() - 1]));
        Reply::read(&mut server.send(&request)).status == 503
    });
    drop(held);
    wait_for("room", || Reply::read(&mut server.send(&request)).status == 200);
}

#[test]
fn large_bodies_leave_room_for_others() {
    let server = with_limits(Limits { all_bodies_bytes: 1 << 20, ..Limits::STANDARD });
    let large = request("/v1/chat/completions", "", &[b' '; 700 << 10]);
    let mut held = None;
    wait_for("the other large request's refusal", || {
        held = Some(server.send(&large[..large.len() - 1]));
        Reply::read(&mut server.send(&large)).status == 503
    });
    server.chat(&ask("say a")).ok();
    drop(held);
    // Then there is room for it, and it is found to be no JSON.
    wait_for("room", || Reply::read(&mut server.send(&large)).status == 400);
}

fn n_prompts(server: &Server) -> usize {
    server.state.conversations.lock().unwrap().len()
}

#[test]
fn prompts_for_clients_that_have_gone_are_not_made() {
    let server = Server::plain();
    let n_threads = 4;
    let _all: Vec<_> = (0..n_threads).map(|_| server.begin("/v1/chat/completions", &ask("slow"))).collect();
    wait_for("the first", || n_prompts(&server) == n_threads);
    let gone: Vec<_> = (0..40).map(|_| server.begin("/v1/chat/completions", &ask("slow"))).collect();
    drop(gone);
    server.chat(&ask("say a")).ok();
    assert_eq!(n_prompts(&server), n_threads + 1);
}

#[test]
fn large_prompts_keep_nobody_waiting() {
    let server = Server::plain();
    let large = ask(&format!("slow{}", " ".repeat(300 << 10)));
    let mut all: Vec<_> = (0..6).map(|_| server.begin("/v1/chat/completions", &large)).collect();
    wait_for("the first", || n_prompts(&server) == 1);
    server.chat(&ask("say a")).ok();
    // One of them at a time, each for half a second.
    assert!(n_prompts(&server) < 4, "{}", n_prompts(&server));
    for stream in &mut all {
        assert_eq!(Reply::read(stream).error(400)["code"], "context_length_exceeded");
    }
}

#[test]
fn what_waits_for_a_thread_has_its_share_of_memory() {
    let server = with_limits(Limits { all_bodies_bytes: 1 << 20, ..Limits::STANDARD });
    let large = ask(&format!("slow{}", " ".repeat(500 << 10)));
    let _first = server.begin("/v1/chat/completions", &large);
    wait_for("the first", || n_prompts(&server) == 1);
    server.chat(&large).error(503);
}

#[test]
fn slow_heads_and_bodies_end() {
    let time = Duration::from_millis(200);
    let server = with_limits(Limits { head_time: time, body_time: time, ..Limits::STANDARD });
    // Byte by byte, as a slowloris does; each byte for itself would be quick enough.
    let trickle = |begin: &str, rest: &[u8]| {
        let mut stream = server.connect();
        stream.write_all(begin.as_bytes()).unwrap();
        let begin = Instant::now();
        for byte in rest.iter().cycle() {
            if stream.write_all(&[*byte]).is_err() || begin.elapsed() > Duration::from_secs(1) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut bytes = Vec::new();
        _ = stream.read_to_end(&mut bytes);
        assert!(begin.elapsed() < Duration::from_secs(5));
        bytes
    };
    let reply = trickle("GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X: a\r\n");
    assert!(reply.is_empty(), "{}", String::from_utf8_lossy(&reply));
    let reply = trickle(&format!("{CHAT}Content-Length: 100000\r\n\r\n"), b" ");
    Reply::of(&reply).error(408);
    // A connection on which nothing comes.
    let mut stream = server.connect();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn heads_have_a_length() {
    let server = Server::plain();
    let head = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n", "a".repeat(40 << 10));
    let mut stream = server.connect();
    _ = stream.write_all(head.as_bytes());
    assert_eq!(Reply::read(&mut stream).status, 431);
    let head = format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: a\r\n".repeat(200));
    assert_eq!(Reply::read(&mut server.send(head.as_bytes())).status, 431);
}

#[test]
fn counts_are_limited() {
    let server = Server::plain();
    let message = json!({ "role": "user", "content": "say a" });
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    let call = json!({ "function": { "name": "f", "arguments": "{}" } });
    let calls = json!([{ "role": "assistant", "tool_calls": vec![call; 129] }]);
    let biases: serde_json::Map<String, Value> = (0..1025).map(|id| (id.to_string(), json!(1))).collect();
    let rows = [
        (json!({ "messages": vec![message.clone(); 1025] }), "messages"),
        (json!({ "messages": calls }), "messages[0].tool_calls"),
        (json!({ "stop": vec!["a"; 17] }), "stop"),
        (json!({ "stop": ["a".repeat(257)] }), "stop"),
        (json!({ "stop_token_ids": vec![1; 17] }), "stop_token_ids"),
        (json!({ "tools": vec![tool.clone(); 129] }), "tools"),
        (json!({ "n": 9 }), "n"),
        (json!({ "logit_bias": biases }), "logit_bias"),
    ];
    for (fields, param) in rows {
        let error = server.chat(&ask_with("say a", fields)).error(400);
        assert_eq!(error["param"], param, "{error}");
    }
    let most = json!({ "tools": vec![tool; 128], "n": 8, "stop": vec!["zz"; 16] });
    server.chat(&ask_with("say a", most)).ok();
    let mut long = vec![json!({ "role": "user", "content": "" }); 200];
    long.push(message);
    server.chat(&json!({ "messages": long })).ok();
}

#[test]
fn bodies_have_few_values_and_levels() {
    let server = Server::plain();
    let values = format!("{{\"messages\": [{}0]}}", "[],".repeat(300_000));
    let levels = format!("{{\"a\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
    for body in [values, levels, "{".to_owned(), "[]".to_owned(), String::new(), "\u{feff}{}".to_owned()] {
        let error =
            Reply::read(&mut server.send(&request("/v1/chat/completions", "", body.as_bytes()))).error(400);
        assert!(error["message"].as_str().unwrap().len() < 200, "{error}");
    }
}

#[test]
fn a_client_that_takes_nothing_is_let_go() {
    let limits = Limits { write_time: Duration::from_millis(200), ..Limits::STANDARD };
    let fake = Fake { context_length: 1 << 21, delay: Duration::from_millis(1), ..Fake::new() };
    let server = Server::start(fake, Options { limits, ..Options::local() });
    let fields = json!({ "stream": true, "logprobs": true, "top_logprobs": 20, "n": 4 });
    let mut stream = server.begin("/v1/chat/completions", &ask_with("count 100000", fields));
    // Nothing is read: the buffers of the system fill, and the sequences are canceled.
    wait_for("the end of the sequences", || server.state.n_canceled() == 4);
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    assert!(!bytes.ends_with(b"0\r\n\r\n"));
    assert!(read.is_ok() || read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
}

#[test]
fn connections_have_a_limit() {
    let server = with_limits(Limits { n_connections: 2, ..Limits::STANDARD });
    let held = [server.connect(), server.connect()];
    // Both have to be accepted before the third comes.
    std::thread::sleep(Duration::from_millis(50));
    let mut third = server.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    third.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let kind = third.read(&mut [0; 16]).map_err(|error| error.kind());
    assert!(matches!(kind, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{kind:?}");
    drop(held);
    third.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(Reply::read(&mut third).status, 200);
}
