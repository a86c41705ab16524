//! A plain client: sockets, requests written by hand, answers taken apart.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oarlock_serve::{Ended, Options, Stop, serve, stop};
use serde_json::Value;

use crate::fake::{Fake, State};

/// A server on a free port, which ends with the test.
pub struct Server {
    pub address: SocketAddr,
    pub state: Arc<State>,
    stop: Option<Stop>,
    thread: Option<JoinHandle<Ended>>,
}

impl Server {
    pub fn start(fake: Fake, options: Options) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::clone(&fake.state);
        let (stop, stopped) = stop();
        let thread = std::thread::spawn(move || serve(listener, Arc::new(fake), options, stopped).unwrap());
        Server { address, state, stop: Some(stop), thread: Some(thread) }
    }

    pub fn plain() -> Server {
        Server::start(Fake::new(), Options::local())
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    pub fn send(&self, request: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        stream
    }

    pub fn get(&self, path: &str) -> Reply {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        Reply::read(&mut self.send(head.as_bytes()))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        Reply::read(&mut self.begin(path, body))
    }

    /// Sends a request and leaves its answer to be read.
    pub fn begin(&self, path: &str, body: &Value) -> TcpStream {
        self.send(request(path, "", body.to_string().as_bytes()).as_slice())
    }

    pub fn chat(&self, body: &Value) -> Reply {
        self.post("/v1/chat/completions", body)
    }

    /// Says that the server is to end.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.stop();
        }
    }

    /// Waits for the end.
    pub fn join(&mut self) -> Ended {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server has panicked");
        }
    }
}

/// A request with a body; `head` has further lines.
pub fn request(path: &str, head: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n{head}\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// A request that asks `say` or the like.
pub fn ask(content: &str) -> Value {
    serde_json::json!({ "model": "fake", "messages": [{ "role": "user", "content": content }] })
}

/// The same with further fields.
pub fn ask_with(content: &str, fields: Value) -> Value {
    let mut body = ask(content);
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    /// Reads up to the end of the connection.
    pub fn read(stream: &mut TcpStream) -> Reply {
        let mut bytes = Vec::new();
        // The server may reset a connection whose request it did not read.
        _ = stream.read_to_end(&mut bytes);
        Reply::of(&bytes)
    }

    pub fn of(bytes: &[u8]) -> Reply {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = &bytes[end + 4..];
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if is_chunked { unchunked(body) } else { body.to_vec() };
        Reply { status, head, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    pub fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{}: {text:?}", self.status))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The JSON answer of a request that went well.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The error of a request that did not, whose form is checked.
    #[track_caller]
    pub fn error(&self, status: u16) -> Value {
        let error = self.json()["error"].clone();
        assert_eq!(self.status, status, "{error}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
        assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some());
        assert!(self.header("x-request-id").is_some());
        error
    }

    /// The values of the events of a stream up to `[DONE]`, and whether that came.
    pub fn events(&self) -> (Vec<Value>, bool) {
        let text = self.text();
        let mut events = Vec::new();
        for frame in text.split("\n\n").filter(|frame| !frame.is_empty() && !frame.starts_with(':')) {
            let data = frame.strip_prefix("data: ").unwrap_or_else(|| panic!("{frame:?}"));
            if data == "[DONE]" {
                return (events, true);
            }
            events.push(serde_json::from_str(data).unwrap_or_else(|_| panic!("{data:?}")));
        }
        (events, false)
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let n = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        let data = &rest[end + 2..];
        if n == 0 || data.len() < n + 2 {
            break;
        }
        body.extend_from_slice(&data[..n]);
        rest = &data[n + 2..];
    }
    body
}

/// Waits until something holds.
#[track_caller]
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(10), "{what} did not come to hold");
        std::thread::sleep(Duration::from_millis(2));
    }
}
