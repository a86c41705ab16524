//! Queues, clients that go away, and the end of a server.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use oarlock_serve::{Ended, Limits, Options};
use serde_json::{Value, json};

use crate::client::{Reply, Server, ask, ask_with, wait_for};
use crate::fake::Fake;

fn slow(fake: Fake, limits: Limits) -> Server {
    Server::start(Fake { delay: Duration::from_millis(10), ..fake }, Options { limits, ..Options::local() })
}

fn streaming(content: &str) -> Value {
    ask_with(content, json!({ "stream": true }))
}

/// Reads until a text has come.
fn read_until(stream: &mut TcpStream, text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains(text) {
        let mut piece = [0; 512];
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&piece[..n]);
    }
    bytes
}

#[test]
fn a_client_that_goes_away_cancels_its_sequences() {
    let server = slow(Fake::new(), Limits::STANDARD);
    let mut stream =
        server.begin("/v1/chat/completions", &ask_with("count 4000", json!({ "stream": true, "n": 2 })));
    read_until(&mut stream, "\"content\":\" ");
    drop(stream);
    wait_for("the end of a stream", || server.state.n_canceled() == 2);
    // An answer as a whole, of which nothing has been sent yet.
    let stream = server.begin("/v1/chat/completions", &ask("count 4000"));
    wait_for("the sequence", || server.state.n_running() == 1);
    stream.shutdown(Shutdown::Both).unwrap();
    wait_for("the end of an answer", || server.state.n_canceled() == 3);
    assert!(server.get("/metrics").text().contains("\noarlock_requests_canceled_total 2\n"));
}

#[test]
fn a_sequence_that_waits_is_canceled_too() {
    let server = slow(Fake { n_slots: 1, ..Fake::new() }, Limits::STANDARD);
    let _first = server.begin("/v1/chat/completions", &ask("hang"));
    wait_for("the first", || server.state.n_running() == 1);
    let second = server.begin("/v1/chat/completions", &streaming("say a"));
    wait_for("the second", || server.state.n_sequences() == 2);
    drop(second);
    wait_for("the end of the second", || server.state.n_canceled() == 1);
}

#[test]
fn a_stop_string_ends_the_sequence() {
    let server = slow(Fake::new(), Limits::STANDARD);
    let text = format!("say a STOP{}", " b".repeat(1000));
    let reply = server.chat(&ask_with(&text, json!({ "stop": "STOP" }))).ok();
    assert_eq!(reply["choices"][0]["message"]["content"], "a ");
    wait_for("the end of the sequence", || server.state.n_canceled() == 1);
    assert!(reply["usage"]["completion_tokens"].as_u64().unwrap() < 5);
}

#[test]
fn a_stop_string_ends_no_other_answer() {
    let server = slow(Fake::new(), Limits::STANDARD);
    let text = format!("either a STOP{}", " b".repeat(1000));
    let mut stream =
        server.begin("/v1/chat/completions", &ask_with(&text, json!({ "stop": "STOP", "n": 2, "seed": 0 })));
    wait_for("the end of the first", || server.state.n_canceled() == 1);
    assert_eq!(server.state.n_running(), 1);
    let reply = Reply::read(&mut stream).ok();
    let content = |choice: usize| reply["choices"][choice]["message"]["content"].as_str().unwrap();
    assert_eq!((content(0), content(1).split(' ').count()), ("a ", 61));
}

#[test]
fn a_full_queue_is_said_politely() {
    let server = slow(Fake { n_places: 2, ..Fake::new() }, Limits::STANDARD);
    let _first = server.begin("/v1/chat/completions", &ask("hang"));
    wait_for("the first", || server.state.n_sequences() == 1);
    // Of three answers one finds a place, which is given back.
    for stream in [false, true] {
        let reply = server.chat(&ask_with("hang", json!({ "n": 3, "stream": stream })));
        let error = reply.error(429);
        assert_eq!((&error["code"], reply.header("retry-after")), (&json!("rate_limit_exceeded"), Some("2")));
        wait_for("the place", || server.state.n_sequences() == 1);
    }
    server.chat(&ask("say a")).ok();
}

#[test]
fn nobody_waits_for_ever() {
    let limits = Limits { wait_time: Duration::from_millis(100), ..Limits::STANDARD };
    let server = slow(Fake { n_slots: 1, ..Fake::new() }, limits);
    let _first = server.begin("/v1/chat/completions", &ask("hang"));
    wait_for("the first", || server.state.n_running() == 1);
    for body in [ask("say a"), streaming("say a")] {
        let reply = server.chat(&body);
        assert_eq!(
            (reply.error(503)["type"].as_str(), reply.header("retry-after")),
            (Some("unavailable_error"), Some("1"))
        );
    }
    // The first has begun, and goes on.
    assert_eq!(server.state.n_running(), 1);
}

#[test]
fn what_has_begun_is_finished_at_the_end() {
    let mut server = slow(Fake { n_slots: 2, ..Fake::new() }, Limits::STANDARD);
    let mut idle = server.connect();
    let mut stream = server.begin("/v1/chat/completions", &streaming("count 60"));
    let head = read_until(&mut stream, "\"content\":\" ");
    let mut whole = server.begin("/v1/chat/completions", &ask("count 60"));
    wait_for("both", || server.state.n_running() == 2);
    let mut waiting = server.begin("/v1/chat/completions", &ask("say a"));
    let mut waiting_stream = server.begin("/v1/chat/completions", &streaming("say a"));
    wait_for("all four", || server.state.n_sequences() == 4);
    server.stop();
    // What waits is refused, and can be tried again elsewhere.
    for stream in [&mut waiting, &mut waiting_stream] {
        let reply = Reply::read(stream);
        reply.error(503);
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    // What has begun is complete.
    let mut bytes = head;
    stream.read_to_end(&mut bytes).unwrap();
    let (events, is_done) = Reply::of(&bytes).events();
    assert!(is_done);
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text.split(' ').count(), 61);
    assert_eq!(Reply::read(&mut whole).ok()["usage"]["completion_tokens"], 60);
    assert_eq!(idle.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(server.join(), Ended { n_cut_off: 0 });
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn the_end_does_not_wait_for_ever() {
    let limits = Limits { drain_time: Duration::from_millis(200), ..Limits::STANDARD };
    let mut server = slow(Fake::new(), limits);
    let mut stream = server.begin("/v1/chat/completions", &streaming("count 4000"));
    let mut bytes = read_until(&mut stream, "\"content\":\" ");
    let mut whole = server.begin("/v1/chat/completions", &ask("hang"));
    wait_for("both", || server.state.n_running() == 2);
    server.stop();
    assert_eq!(server.join(), Ended { n_cut_off: 2 });
    stream.read_to_end(&mut bytes).unwrap();
    let (events, is_done) = Reply::of(&bytes).events();
    assert_eq!((&events.last().unwrap()["error"]["type"], is_done), (&json!("unavailable_error"), false));
    Reply::read(&mut whole).error(503);
    wait_for("the end of the sequences", || server.state.n_canceled() == 2);
}

#[test]
fn a_request_that_comes_too_late_is_refused() {
    let mut server = slow(Fake::new(), Limits::STANDARD);
    let mut stream = server.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n");
    let _running = server.begin("/v1/chat/completions", &ask("count 60"));
    wait_for("the other", || server.state.n_running() == 1);
    server.stop();
    wait_for("the end of accepting", || TcpStream::connect(server.address).is_err());
    stream.write_all(b"\r\n").unwrap();
    Reply::read(&mut stream).error(503);
    assert_eq!(server.join(), Ended { n_cut_off: 0 });
}

#[test]
fn embeddings_take_turns_up_to_the_end() {
    let mut server = slow(Fake::new(), Limits::STANDARD);
    let body = json!({ "input": "a".repeat(100) });
    let mut first = server.begin("/v1/embeddings", &body);
    wait_for("the first", || server.state.n_embedding() == 1);
    let mut second = server.begin("/v1/embeddings", &body);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.state.n_embedding(), 1);
    server.stop();
    Reply::read(&mut second).error(503);
    assert_eq!(server.state.n_embedding(), 1);
    Reply::read(&mut first).ok();
    assert_eq!(server.join(), Ended { n_cut_off: 0 });
}

#[test]
fn while_a_server_ends_an_open_connection_gets_no_new_answer() {
    let mut server = slow(Fake::new(), Limits::STANDARD);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let body = ask("count 30").to_string();
    let one = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let mut stream = server.connect();
    // Two requests at once on one connection: the second has not begun when the server ends.
    stream.write_all(format!("{one}{one}").as_bytes()).unwrap();
    wait_for("the first", || server.state.n_running() == 1);
    server.stop();
    let mut bytes = Vec::new();
    _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 1, "{text}");
    assert_eq!(server.join(), Ended { n_cut_off: 0 });
}
