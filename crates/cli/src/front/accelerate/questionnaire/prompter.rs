//! Prompts for answers: at a terminal, or by lines of text.

use std::io::{self, BufRead, IsTerminal, Read, StdinLock, Stdout, Write};
use std::os::fd::AsFd;

use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

/// Asks a user.
pub trait Prompter {
    /// Asks for a line of text.
    fn input(&mut self, question: &str) -> Result<String, PromptError>;

    /// Asks for one of several choices; returns its index.
    fn select(&mut self, question: &str, choices: &[&str], default: usize) -> Result<usize, PromptError>;

    /// Shows why the question is repeated.
    fn message(&mut self, message: &str) -> Result<(), PromptError>;
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The input has ended.
    #[error(
        "the input ended at the question \"{0}\"; nothing was written. Answer all questions, or write a file with `accelerate config default`"
    )]
    Ended(String),
    /// Ctrl-C.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// The answers cannot be kept.
    #[error("{0}; nothing was written")]
    Refused(&'static str),
    /// The terminal or the file fails.
    #[error("cannot ask: {0}; nothing was written")]
    Io(#[from] std::io::Error),
}

/// Answers are lines, and a choice is a number or a name.
pub struct LinePrompter<R, W> {
    /// Where answers come from.
    pub input: R,
    /// Where questions go.
    pub output: W,
}

impl<R: BufRead, W: Write> Prompter for LinePrompter<R, W> {
    fn input(&mut self, question: &str) -> Result<String, PromptError> {
        self.output.write_all(question.as_bytes())?;
        self.output.flush()?;
        match read_line(&mut self.input, question) {
            // The error begins a line of its own.
            Err(PromptError::Ended(question)) => {
                writeln!(self.output)?;
                Err(PromptError::Ended(question))
            }
            line => line,
        }
    }

    fn select(&mut self, question: &str, choices: &[&str], default: usize) -> Result<usize, PromptError> {
        writeln!(self.output, "\n{question}")?;
        for (i, choice) in choices.iter().enumerate() {
            writeln!(self.output, "  {i}  {choice}")?;
        }
        loop {
            let line = match self.input(&format!("A number [{default}] ")) {
                Err(PromptError::Ended(_)) => return Err(PromptError::Ended(question.to_owned())),
                line => line?,
            };
            let named = || choices.iter().position(|choice| choice.eq_ignore_ascii_case(line.trim()));
            match line.trim().parse::<usize>() {
                _ if line.trim().is_empty() => return Ok(default),
                Ok(i) if i < choices.len() => return Ok(i),
                Err(_) if let Some(i) = named() => return Ok(i),
                _ => self.message(&format!("please answer with a number from 0 to {}", choices.len() - 1))?,
            }
        }
    }

    fn message(&mut self, message: &str) -> Result<(), PromptError> {
        Ok(writeln!(self.output, "{message}")?)
    }
}

fn read_line(input: &mut impl BufRead, question: &str) -> Result<String, PromptError> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Err(PromptError::Ended(question.trim().to_owned()));
    }
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

/// A terminal with keys: arrows and digits move in a menu.
pub struct TerminalPrompter {
    lines: LinePrompter<StdinLock<'static>, Stdout>,
}

impl TerminalPrompter {
    /// The terminal of this process, if it has one at both ends that can move its cursor.
    pub fn here() -> Option<TerminalPrompter> {
        let moves = std::env::var("TERM").is_ok_and(|term| term != "dumb" && !term.is_empty());
        let terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && moves;
        terminal.then(|| TerminalPrompter {
            lines: LinePrompter { input: io::stdin().lock(), output: io::stdout() },
        })
    }
}

/// The terminal without echo, and keys as they come; as it was, when this goes away.
struct Keys {
    before: Termios,
}

impl Keys {
    fn on() -> io::Result<Keys> {
        let input = io::stdin();
        let before = termios::tcgetattr(input.as_fd())?;
        let mut keys = before.clone();
        // Ctrl-C comes as a key, too, so that the terminal is put right before the end.
        keys.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN);
        keys.special_codes[SpecialCodeIndex::VMIN] = 1;
        keys.special_codes[SpecialCodeIndex::VTIME] = 0;
        // What was typed ahead stays.
        termios::tcsetattr(input.as_fd(), OptionalActions::Drain, &keys)?;
        Ok(Keys { before })
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // Where these fail the terminal is gone.
        let _ = io::stdout().write_all(b"\x1b[?25h").and_then(|()| io::stdout().flush());
        let _ = termios::tcsetattr(io::stdin().as_fd(), OptionalActions::Drain, &self.before);
    }
}

/// What a key does in a menu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Up,
    Down,
    Digit(usize),
    Enter,
    Interrupt,
    End,
    Other,
}

fn key(input: &mut impl Read) -> io::Result<Key> {
    let mut next = || -> io::Result<Option<u8>> {
        let mut byte = [0];
        Ok((input.read(&mut byte)? == 1).then_some(byte[0]))
    };
    Ok(match next()? {
        None | Some(4) => Key::End,
        Some(3) => Key::Interrupt,
        Some(b'\r' | b'\n') => Key::Enter,
        Some(digit @ b'0'..=b'9') => Key::Digit(usize::from(digit - b'0')),
        // An arrow is ESC [ A, or ESC O A.
        Some(0x1b) => match (next()?, next()?) {
            (Some(b'[' | b'O'), Some(b'A')) => Key::Up,
            (Some(b'[' | b'O'), Some(b'B')) => Key::Down,
            _ => Key::Other,
        },
        Some(_) => Key::Other,
    })
}

impl Prompter for TerminalPrompter {
    fn input(&mut self, question: &str) -> Result<String, PromptError> {
        self.lines.input(question)
    }

    fn select(&mut self, question: &str, choices: &[&str], default: usize) -> Result<usize, PromptError> {
        let LinePrompter { input, output } = &mut self.lines;
        let _keys = Keys::on()?;
        write!(output, "\n{question}\n(arrows or digits, then Enter)\n\x1b[?25l")?;
        let mut at = default;
        show(output, choices, at)?;
        loop {
            let pressed = key(input)?;
            at = match pressed {
                Key::Up => at.saturating_sub(1),
                Key::Down => (at + 1).min(choices.len() - 1),
                Key::Digit(digit) if digit < choices.len() => digit,
                _ => at,
            };
            // Back to the first line of the menu.
            write!(output, "\x1b[{}A", choices.len())?;
            match pressed {
                Key::Enter => {
                    // The menu and the line about keys make room for what was chosen.
                    write!(output, "\x1b[1A\r\x1b[J{}\n", choices[at])?;
                    output.flush()?;
                    return Ok(at);
                }
                Key::Interrupt | Key::End => {
                    write!(output, "\x1b[{}B\r", choices.len())?;
                    output.flush()?;
                    let ended = pressed == Key::End;
                    return Err(if ended {
                        PromptError::Ended(question.to_owned())
                    } else {
                        PromptError::Interrupted
                    });
                }
                _ => show(output, choices, at)?,
            }
        }
    }

    fn message(&mut self, message: &str) -> Result<(), PromptError> {
        self.lines.message(message)
    }
}

/// Writes the lines of a menu and leaves the cursor below them.
fn show(output: &mut impl Write, choices: &[&str], at: usize) -> io::Result<()> {
    for (i, choice) in choices.iter().enumerate() {
        let mark = if i == at { "➔" } else { " " };
        let line = if i == at { format!("\x1b[32m{choice}\x1b[0m") } else { (*choice).to_owned() };
        write!(output, "\r\x1b[K {mark} {line}\n")?;
    }
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(line: &str) -> Result<usize, PromptError> {
        let mut prompter = LinePrompter { input: line.as_bytes(), output: Vec::new() };
        prompter.select("Which?", &["no", "fp16", "bf16"], 1)
    }

    #[test]
    fn a_line_chooses_by_number_or_name() {
        for (line, expected) in [("0\n", 0), ("\n", 1), (" BF16 \n", 2), ("7\n-1\nx\n2\n", 2), ("2", 2)] {
            assert_eq!(chosen(line).unwrap(), expected, "{line:?}");
        }
        assert!(matches!(chosen("9\n"), Err(PromptError::Ended(question)) if question == "Which?"));
    }

    #[test]
    fn an_end_of_the_input_ends_the_line_of_the_question() {
        let mut prompter = LinePrompter { input: &b""[..], output: Vec::new() };
        assert!(
            matches!(prompter.input("How many? "), Err(PromptError::Ended(question)) if question == "How many?")
        );
        assert_eq!(prompter.output, b"How many? \n");
    }

    #[test]
    fn keys_are_told_apart() {
        let mut typed: &[u8] = b"\x1b[A\x1bOB7x\r\x03\x1b[C";
        let expected =
            [Key::Up, Key::Down, Key::Digit(7), Key::Other, Key::Enter, Key::Interrupt, Key::Other, Key::End];
        for one in expected {
            assert_eq!(key(&mut typed).unwrap(), one);
        }
    }
}
