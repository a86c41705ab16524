//! The hostfile: a line `NAME slots=N` for each machine.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::config::Problem;
use crate::config::location::{Location, SourceText, ValueSource};
use crate::console::eprint;

/// Machines with their slots, in the order of the file.
pub type Pool = Vec<(String, usize)>;

/// More slots than any machine has, and more machines than any run.
const MOST_SLOTS: usize = 1 << 16;
const MOST_MACHINES: usize = 1 << 16;

/// What is wrong with a hostfile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A machine that stands twice.
    #[error("the hostfile names `{0}` twice")]
    Twice(String),
    /// A line of another form.
    #[error("`{0}` is not a machine of a hostfile")]
    BadLine(String),
    /// A name that no machine has.
    #[error("`{0}` is not a name of a machine")]
    BadName(String),
    /// More machines than any run has.
    #[error("the hostfile names more than {} machines", MOST_MACHINES)]
    TooMany,
    /// No machine at all.
    #[error("the hostfile names no machine")]
    Empty,
}

impl Error {
    fn help(&self) -> &'static str {
        match self {
            Error::Twice(_) => "write one line for each machine, with all of its slots",
            Error::BadName(_) => {
                "a name or address has letters, digits and the characters -_.:,@[]%, and does not begin with -"
            }
            Error::TooMany => "is this the file that was meant?",
            Error::BadLine(_) | Error::Empty => {
                "write `NAME slots=N`, as in `worker-1 slots=4`; # begins a comment"
            }
        }
    }
}

/// The machines of a text, or what is wrong with it and where.
pub fn parse(text: &str) -> Result<Pool, (Error, Range<usize>)> {
    let (mut pool, mut known) = (Pool::new(), HashSet::new());
    let mut start = 0;
    for whole in text.split_inclusive('\n') {
        let line = whole.trim();
        let indent = whole.len() - whole.trim_start().len();
        let location = start + indent..start + indent + line.len();
        start += whole.len();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match machine(line) {
            None => return Err((Error::BadLine(line.to_owned()), location)),
            Some((name, _)) if !is_name(name) => return Err((Error::BadName(name.to_owned()), location)),
            Some((name, _)) if !known.insert(name) => {
                return Err((Error::Twice(name.to_owned()), location));
            }
            Some(_) if pool.len() == MOST_MACHINES => return Err((Error::TooMany, location)),
            Some((name, slots)) => pool.push((name.to_owned(), slots)),
        }
    }
    if pool.is_empty() { Err((Error::Empty, 0..0)) } else { Ok(pool) }
}

/// `NAME slots=N`, and whatever follows the number.
fn machine(line: &str) -> Option<(&str, usize)> {
    let (name, rest) = line.split_once(char::is_whitespace)?;
    let number = rest.trim_start().strip_prefix("slots=")?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    let slots = number[..digits].parse().ok().filter(|slots| *slots <= MOST_SLOTS)?;
    Some((name, slots))
}

/// What stands behind the slots of each line, beside a comment and the `max_slots` of MPI, and is not read, with its line.
pub fn unread(text: &str) -> Vec<(usize, String)> {
    let of_line = |line: &str| -> Option<String> {
        let line = line.split('#').next()?;
        let (_, behind) = line.split_once("slots=")?;
        let words = behind.trim_start_matches(|c: char| c.is_ascii_digit()).split_whitespace();
        let words: Vec<&str> =
            words.filter(|word| !word.replace('-', "_").starts_with("max_slots=")).collect();
        (!words.is_empty()).then(|| words.join(" "))
    };
    (1..).zip(text.lines()).filter_map(|(number, line)| Some((number, of_line(line)?))).collect()
}

/// Whether a machine can have this name. What another shell or `ssh` would take for more than a name is none.
fn is_name(name: &str) -> bool {
    !name.starts_with('-') && name.chars().all(|c| c.is_alphanumeric() || "-_.:,@[]%".contains(c))
}

/// The machines of a file; `None` if there is none.
pub fn read(path: &Path) -> Result<Option<Pool>, Problem> {
    if !path.is_file() {
        return Ok(None);
    }
    let name = path.display().to_string();
    let text = oarlock_comm::read_text(path, oarlock_comm::MAX_CONFIG_BYTES)
        .map_err(|error| Problem::new(format!("cannot read the hostfile `{name}`: {error}")))?;
    for (number, words) in unread(&text) {
        eprint(&format!("note: {name}:{number}: `{words}` is not read; a line is `NAME slots=N`\n"));
    }
    parse(&text).map(Some).map_err(|(error, bytes)| {
        let source = Arc::new(SourceText { read_from: ValueSource::File, name, text, words: Vec::new() });
        Problem::new(error.to_string()).at(&Location { source, bytes }, "").help(error.help())
    })
}
