//! Texts of others on a terminal: of models, of files, of other machines. A terminal obeys some characters instead of showing
//! them; a text could take the place of what was said before it, or write the reader's next command.

use std::io::{self, IsTerminal, Write};

/// Whether a terminal obeys a character: the control characters but for the end of a line and the tab, and what turns the
/// direction of writing around, so that a line reads otherwise than it is. Marks of direction (U+200E, U+200F), which Arabic
/// and Hebrew need, turn nothing around.
pub fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && c != '\n' && c != '\t'
}

/// A text with U+FFFD in the place of each character that a terminal would obey.
pub fn shown(text: &str) -> String {
    text.chars().map(|c| if is_obeyed(c) { '\u{fffd}' } else { c }).collect()
}

/// A size of memory as people read it: in megabytes or gigabytes, which are powers of 1000 wherever this program speaks for
/// itself.
pub fn readable(bytes: u64) -> String {
    match bytes {
        0..10_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Standard output for texts of others: to a terminal they go as [`shown`]; a file or another program gets them as they are.
pub fn stdout() -> Box<dyn Write> {
    let out = io::stdout();
    if out.is_terminal() { Box::new(Shown(out)) } else { Box::new(out) }
}

/// Writes to standard error; to a terminal as [`shown`]. Where that fails there is nobody to tell.
pub fn eprint(text: &str) {
    let mut out = io::stderr();
    let text = if out.is_terminal() { shown(text) } else { text.to_owned() };
    let _ = out.write_all(text.as_bytes());
}

/// Writes texts as [`shown`]. Each write holds whole characters.
struct Shown<W>(W);

impl<W: Write> Write for Shown<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(shown(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_replaced_and_the_rest_stays() {
        for (text, expected) in [
            ("a\tb\nc", "a\tb\nc"),
            ("\u{1b}]0;owned\u{7}x", "\u{fffd}]0;owned\u{fffd}x"),
            ("pass\rfail", "pass\u{fffd}fail"),
            ("\u{9b}31m \u{7f}\u{8}\u{0}", "\u{fffd}31m \u{fffd}\u{fffd}\u{fffd}"),
            ("\u{202e}gpj.exe\u{2066}", "\u{fffd}gpj.exe\u{fffd}"),
            ("\u{5d0}\u{200f} \u{4f60}\u{597d} \u{1f600}", "\u{5d0}\u{200f} \u{4f60}\u{597d} \u{1f600}"),
        ] {
            assert_eq!(shown(text), expected);
            let mut out = Vec::new();
            Shown(&mut out).write_all(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
