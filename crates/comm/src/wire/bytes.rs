//! Bytes that come from others: why none come any more, reads with a limit, and text that is safe to print.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long a handshake, and the rest of a frame that has begun, may take.
pub const PROMPT: Duration = Duration::from_secs(5);
/// A read looks this often whether it is still wanted.
const SLICE: Duration = Duration::from_millis(100);

/// Why nothing more comes from the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It closed the connection, or the system did.
    Closed(String),
    /// It said nothing in time.
    Silent,
    /// The caller stopped waiting.
    Stopped,
    /// It does not know the secret.
    WrongSecret,
    /// It has too many connections.
    Busy,
    /// It, or the address that it has reached, is public, and the run has no secret.
    NotPrivate,
    /// It speaks something else.
    Garbage(&'static str),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::Closed(cause) => f.write_str(cause),
            Broken::Silent => f.write_str("it did not answer in time"),
            Broken::Stopped => f.write_str("the wait was stopped"),
            Broken::WrongSecret => f.write_str("it does not know the secret"),
            Broken::Busy => f.write_str("it has too many connections"),
            Broken::NotPrivate => f.write_str("its address is public, and the run has no secret"),
            Broken::Garbage(what) => f.write_str(what),
        }
    }
}

/// Text of another process as it may be printed: at most `most` characters, in which what a terminal would obey, or what
/// turns the direction of text, is replaced.
pub fn printable(text: &str, most: usize) -> String {
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out: String = text.chars().take(most).map(|c| if obeyed(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(most).is_some() {
        out.push('…');
    }
    out
}

/// Bytes as text.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Random bytes.
///
/// # Errors
/// When the system has none.
pub fn nonce() -> Result<[u8; 32], Broken> {
    let mut nonce = [0u8; 32];
    match rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(32) => Ok(nonce),
        _ => Err(Broken::Closed("the system has no random bytes".into())),
    }
}

/// Sets a connection up for reads and writes with limits.
pub(super) fn prepare(stream: &TcpStream) -> Result<(), Broken> {
    let closed = |e: std::io::Error| Broken::Closed(e.to_string());
    stream.set_nonblocking(false).map_err(closed)?;
    stream.set_nodelay(true).map_err(closed)?;
    stream.set_read_timeout(Some(SLICE)).map_err(closed)?;
    stream.set_write_timeout(Some(PROMPT)).map_err(closed)
}

pub(super) fn write(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), Broken> {
    stream.write_all(bytes).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Broken::Silent,
        _ => Broken::Closed(e.to_string()),
    })
}

/// Fills the buffer. The limit is for all of it, so who sends a byte now and then gains nothing.
pub(super) fn read(
    stream: &mut TcpStream,
    mut buffer: &mut [u8],
    deadline: Instant,
    go_on: &dyn Fn() -> bool,
) -> Result<(), Broken> {
    while !buffer.is_empty() {
        if !go_on() {
            return Err(Broken::Stopped);
        }
        match stream.read(buffer) {
            Ok(0) => return Err(closed()),
            Ok(n) => buffer = &mut buffer[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(Broken::Closed(e.to_string())),
        }
        if !buffer.is_empty() && Instant::now() >= deadline {
            return Err(Broken::Silent);
        }
    }
    Ok(())
}

pub(super) fn closed() -> Broken {
    Broken::Closed("it closed the connection".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_moves_no_cursor_and_turns_no_line() {
        assert_eq!(printable("\x1b]0;owned\x07\u{9b}31m\r\nnö\u{202e}x", 99), "�]0;owned��31m��nö�x");
        assert_eq!(printable("abcdef", 3), "abc…");
        assert_eq!(printable("abc", 3), "abc");
        // What was made printable stays as it is.
        let once = printable("a\tb\u{0}c", 9);
        assert_eq!(printable(&once, 9), once);
    }
}
