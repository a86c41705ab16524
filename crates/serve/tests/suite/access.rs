//! Who may use the server: keys, names, pages.

use std::io::{Read, Write};

use oarlock_serve::{ApiKey, Options};

use crate::client::{Reply, Server, ask, request};
use crate::fake::Fake;

fn with_keys() -> Server {
    let api_keys = ["key-one", "key-two"].iter().map(|key| ApiKey::new(key).unwrap()).collect();
    Server::start(Fake::new(), Options { api_keys, ..Options::local() })
}

fn get(server: &Server, path: &str, head: &str) -> Reply {
    Reply::read(
        &mut server.send(format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{head}\r\n").as_bytes()),
    )
}

#[test]
fn a_key_is_asked_for_before_anything_else() {
    let server = with_keys();
    for head in
        ["", "Authorization: Bearer key-three\r\n", "Authorization: key-one\r\n", "X-Api-Key: key\r\n"]
    {
        for path in ["/v1/models", "/metrics", "/nowhere"] {
            let reply = get(&server, path, &format!("Host: localhost\r\n{head}"));
            let error = reply.error(401);
            assert_eq!(
                (&error["type"], &error["code"]),
                (&"authentication_error".into(), &"invalid_api_key".into())
            );
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        }
    }
    let error = server.post("/v1/messages", &ask("say a")).json();
    assert_eq!((&error["type"], &error["error"]["type"]), (&"error".into(), &"authentication_error".into()));
    for head in
        ["Authorization: Bearer key-one\r\n", "authorization: bearer key-two\r\n", "X-Api-Key: key-two\r\n"]
    {
        // With a key the name does not matter.
        assert_eq!(get(&server, "/v1/models", &format!("Host: any.example\r\n{head}")).status, 200);
    }
    assert_eq!(get(&server, "/health", "Host: localhost\r\n").status, 200);
    assert_eq!(get(&server, "/v1/health", "Host: localhost\r\n").status, 200);
}

#[test]
fn a_wrong_key_is_refused_while_the_body_still_comes() {
    let server = with_keys();
    let mut stream = server.connect();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    stream.write_all(format!("{head}Content-Length: 1000\r\n\r\n{{").as_bytes()).unwrap();
    // Nothing of the rest is sent.
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Reply::of(&bytes).error(401);
}

#[test]
fn a_refused_client_can_send_the_rest() {
    let server = with_keys();
    let request = request("/v1/chat/completions", "", &[b' '; 200 << 10]);
    let mut stream = server.send(&request);
    let mut bytes = Vec::new();
    // The connection ends; it is not reset, which other systems would show in the place of the answer.
    stream.read_to_end(&mut bytes).unwrap();
    Reply::of(&bytes).error(401);
}

#[test]
fn without_a_key_only_names_of_this_machine_are_answered() {
    let options = Options { allowed_hosts: vec!["box.example".to_owned()], ..Options::local() };
    let server = Server::start(Fake::new(), options);
    for host in ["localhost:1", "127.0.0.1", "[::1]:8000", "BOX.example"] {
        assert_eq!(get(&server, "/v1/models", &format!("Host: {host}\r\n")).status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1", ""] {
        let error = get(&server, "/v1/models", &format!("Host: {host}\r\n")).error(403);
        assert_eq!(error["type"], "permission_error", "{host}");
    }
    get(&server, "/health", "Host: evil.example\r\n").error(403);
}

#[test]
fn pages_of_others_are_refused() {
    let options = Options { allowed_origins: vec!["https://chat.example".to_owned()], ..Options::local() };
    let server = Server::start(Fake::new(), options);
    let body = ask("say a").to_string();
    let from = |origin: &str| {
        let request = request("/v1/chat/completions", &format!("Origin: {origin}\r\n"), body.as_bytes());
        Reply::read(&mut server.send(&request))
    };
    for origin in ["https://evil.example", "null", "https://chat.example.evil.example"] {
        let reply = from(origin);
        reply.error(403);
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
    let reply = from("http://localhost:3000");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, None));
    let reply = from("https://chat.example");
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://chat.example"));
    assert_eq!(reply.status, 200);
    let preflight = |origin: &str| {
        let head = format!("Host: localhost\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n");
        let request = format!("OPTIONS /v1/chat/completions HTTP/1.1\r\nConnection: close\r\n{head}\r\n");
        Reply::read(&mut server.send(request.as_bytes()))
    };
    let reply = preflight("https://chat.example");
    assert_eq!((reply.status, reply.header("access-control-allow-methods")), (204, Some("GET, POST")));
    preflight("https://evil.example").error(403);
    preflight("http://localhost:3000").error(405);
}

#[test]
fn a_form_of_a_page_is_no_request() {
    let server = Server::plain();
    let body = ask("say a").to_string();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", ""] {
        let head =
            format!("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n");
        let head = format!("{head}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        Reply::read(&mut server.send(&[head.as_bytes(), body.as_bytes()].concat())).error(415);
    }
    let head = "Content-Encoding: gzip\r\n";
    let request = request("/v1/chat/completions", head, body.as_bytes());
    Reply::read(&mut server.send(&request)).error(415);
}

#[test]
fn requests_have_names() {
    let server = Server::plain();
    let first = server.get("/v1/models");
    let second = server.get("/v1/models");
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
    let own = get(&server, "/v1/models", "Host: localhost\r\nX-Request-ID: mine-1\r\n");
    assert_eq!(own.header("x-request-id"), Some("mine-1"));
    let long = format!("Host: localhost\r\nX-Request-ID: {}\r\n", "a".repeat(200));
    assert!(get(&server, "/v1/models", &long).header("x-request-id").unwrap().starts_with("req_"));
}
