//! HTTP as far as clients of hubs need it: requests with headers, replies with a length, connections that stay open.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{State, modelscope, routes};

/// Which of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Hub,
    Cdn,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub server: Server,
    pub method: String,
    /// The path and the query, as they were written.
    pub target: String,
    /// Names in small letters.
    pub headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A reply.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body is the content of a file, to which faults apply.
    pub is_content: bool,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status, headers: Vec::new(), body: body.into(), is_content: false }
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Reply {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

pub fn serve(listener: TcpListener, server: Server, state: Arc<State>) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = state.clone();
            std::thread::spawn(move || connection(stream, server, &state));
        }
    });
}

fn connection(stream: TcpStream, server: Server, state: &State) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(request) = read(&mut reader, server) {
        if state.is_down.load(Ordering::SeqCst) {
            return;
        }
        state.log.lock().unwrap().push(request.clone());
        if state.faults.lock().unwrap().hangs {
            std::thread::sleep(Duration::from_secs(60));
            return;
        }
        let reply = canned(&request, state).unwrap_or_else(|| match request.target.starts_with("/api/v1/") {
            true => modelscope::reply(&request, state),
            false => routes::reply(&request, state),
        });
        if write(&mut stream, &request, reply, state).is_none() {
            return;
        }
    }
}

/// An answer that a test has ordered.
fn canned(request: &Request, state: &State) -> Option<Reply> {
    let mut faults = state.faults.lock().unwrap();
    let at = faults.answers.iter().position(|(server, ..)| *server == request.server)?;
    let (_, status, headers) = faults.answers.remove(at);
    Some(headers.iter().fold(Reply::new(status, ""), |reply, (name, value)| reply.with(name, *value)))
}

fn read(reader: &mut BufReader<TcpStream>, server: Server) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, n)| n.parse().ok());
    reader.take(length.unwrap_or(0)).read_to_end(&mut Vec::new()).ok()?;
    Some(Request { server, method, target, headers })
}

/// Sends a reply. `None` if the connection ends with it.
fn write(stream: &mut TcpStream, request: &Request, mut reply: Reply, state: &State) -> Option<()> {
    let (mut cut, mut slow) = (None, None);
    if reply.is_content && request.method == "GET" {
        let mut faults = state.faults.lock().unwrap();
        slow = faults.slow;
        if faults.n_wrong > 0 && !reply.body.is_empty() {
            faults.n_wrong -= 1;
            reply.body[0] ^= 1;
        }
        if let Some((n_bytes, n_times)) = faults.cut_after
            && n_times > 0
            && reply.body.len() > n_bytes
        {
            faults.cut_after = Some((n_bytes, n_times - 1));
            cut = Some(n_bytes);
            if n_times == 1 {
                let mut answers = std::mem::take(&mut faults.answers_after_cut);
                faults.answers.append(&mut answers);
            }
        }
        if faults.forces_gzip {
            reply.headers.push(("Content-Encoding".to_owned(), "gzip".to_owned()));
        }
    }
    let without = state.faults.lock().unwrap().without.clone();
    let mut head = format!("HTTP/1.1 {} X\r\n", reply.status);
    let has_length = reply.headers.iter().any(|(name, _)| name == "Content-Length");
    if !has_length {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    for (name, value) in reply.headers.iter().filter(|(name, _)| !without.contains(&name.as_str())) {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes()).ok()?;
    if request.method == "HEAD" {
        return Some(());
    }
    let (part, pause) = slow.unwrap_or((1 << 16, Duration::ZERO));
    let end = cut.unwrap_or(reply.body.len());
    for bytes in reply.body[..end].chunks(part) {
        stream.write_all(bytes).ok()?;
        if reply.is_content {
            state.n_content_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        }
        std::thread::sleep(pause);
    }
    if cut.is_some() && state.faults.lock().unwrap().cut_hangs {
        std::thread::sleep(Duration::from_secs(60));
    }
    if cut.is_some() { None } else { Some(()) }
}

/// A text in an address as it is meant.
pub fn decoded(text: &str) -> String {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).and_then(|code| u8::from_str_radix(code, 16).ok());
        match (bytes[at], code) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap()
}

/// The values of a query.
pub fn query(target: &str) -> Vec<(String, String)> {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (name.to_owned(), decoded(value)));
    query.split('&').filter_map(pair).collect()
}

/// A content, whole or from the byte that is asked for.
pub fn content(request: &Request, state: &State, bytes: &[u8]) -> Reply {
    let ignores = state.faults.lock().unwrap().ignores_ranges;
    let from = request
        .header("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let mut reply = match from {
        Some(from) if !ignores && from >= bytes.len() => {
            return Reply::new(416, "").with("Content-Range", format!("bytes */{}", bytes.len()));
        }
        Some(from) if !ignores => Reply::new(206, &bytes[from..])
            .with("Content-Range", format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len())),
        _ => Reply::new(200, bytes),
    };
    reply.is_content = true;
    reply
}
