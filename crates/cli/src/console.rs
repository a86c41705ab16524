//! The output of a command, and how it ends.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use oarlock::Occupied;
use oarlock::checkpoint::Manifest;
use oarlock_config::settings::secret::masked;
use oarlock_engine::report::terminal::shown;

use crate::config::render::{render, visible};
use crate::config::{Problem, Problems};
use crate::error::Error;

/// What can go wrong at the command line: an error, or a list of problems with the configuration.
pub(crate) enum Failure {
    /// One error.
    Error(Error),
    /// Everything that is wrong with what was written.
    Problems(Problems),
    /// Already reported; this is the exit code.
    Reported(u8),
}

impl Failure {
    /// The exit code of the process.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Error(_) => 1,
            Failure::Problems(_) => 2,
            Failure::Reported(code) => *code,
        }
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        match error.into() {
            Error::Library(oarlock::Error::Config(problems)) => Failure::Problems(problems),
            error => Failure::Error(error),
        }
    }
}

/// How a command ends.
pub(crate) type Outcome = Result<(), Failure>;

/// What lets a command replace files that it did not write.
pub(crate) const OVERWRITE: &str = "--overwrite";

/// A failure of a command that writes into a folder; where something is in the way there, with what to do about it, which
/// `allows` names among others.
pub(crate) fn occupied(error: impl Into<Error>, allows: &str) -> Failure {
    match error.into() {
        Error::Library(oarlock::Error::Occupied(occupied)) => {
            Problems::from(blocked(&occupied, allows)).into()
        }
        error => error.into(),
    }
}

/// The problem of a folder in which something is in the way.
pub(crate) fn blocked(occupied: &Occupied, allows: &str) -> Problem {
    let help = match occupied.can_overwrite {
        true => format!("name another folder, or add {allows} to replace it"),
        false => "name another folder, or move it away".to_owned(),
    };
    Problem::new(format!("`{}` is not written into: {}", occupied.folder.display(), occupied.what()))
        .help(help)
}

/// Refuses to write a folder that is to come into being as a whole where something lies there already.
pub(crate) fn refuse_taken(folder: &Path, overwrite: bool) -> Outcome {
    let is_free = std::fs::read_dir(folder).map_or(!folder.exists(), |mut entries| entries.next().is_none());
    if is_free || (overwrite && Manifest::open(folder).is_ok()) {
        return Ok(());
    }
    if overwrite {
        let message =
            format!("`{}` is there already, and is not a whole checkpoint of this program", folder.display());
        return Err(Problems::from(Problem::new(message).help("name another folder, or move it away")).into());
    }
    let problem = Problem::new(format!("`{}` is there already", folder.display()));
    Err(Problems::from(
        problem.help(format!("name another folder, or add {OVERWRITE} to replace a checkpoint")),
    )
    .into())
}

/// Prints what went wrong, and returns the exit code of the process.
pub(crate) fn exit(outcome: Outcome) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    match &failure {
        Failure::Reported(_) => {}
        Failure::Problems(problems) => {
            let (color, width) = terminal();
            eprint_styled(&render(problems, color, width));
        }
        // It may quote the names of a damaged file.
        Failure::Error(error) => {
            eprint(&format!("error: {}\n", visible(&masked(&error.to_string()), 10_000)))
        }
    }
    ExitCode::from(failure.code())
}

/// Writes to standard output; a reader that goes away, as `head` does, ends the command quietly. A terminal gets nothing that it
/// would obey: the text may quote what others wrote.
pub(crate) fn print(text: &str) -> Outcome {
    if std::io::stdout().is_terminal() { print_styled(&shown(text)) } else { print_styled(text) }
}

/// The same for a text of which no part is of others as it is: its colors reach a terminal.
pub(crate) fn print_styled(text: &str) -> Outcome {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::Reported(0)),
        result => Ok(result.map_err(Error::io("write to", "standard output"))?),
    }
}

/// How long a text waits for a reader of standard error, who may have stopped reading.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes to standard error. If that fails, or nobody reads, only the exit code reports the failure. A terminal gets nothing that
/// it would obey.
pub(crate) fn eprint(text: &str) {
    if std::io::stderr().is_terminal() { eprint_styled(&shown(text)) } else { eprint_styled(text) }
}

/// The same for a text of which no part is of others as it is.
fn eprint_styled(text: &str) {
    let write = |text: &str| {
        let _ = std::io::stderr().write_all(text.as_bytes());
    };
    let (owned, (written, wait)) = (text.to_owned(), mpsc::channel());
    let apart = move || {
        write(&owned);
        let _ = written.send(());
    };
    match std::thread::Builder::new().spawn(apart) {
        Ok(_) => drop(wait.recv_timeout(PATIENCE)),
        // The process may have no more threads.
        Err(_) => write(text),
    }
}

/// Whether standard error is a terminal that shows colors, and its width.
pub(crate) fn terminal() -> (bool, usize) {
    let stderr = std::io::stderr();
    let width = rustix::termios::tcgetwinsize(&stderr).map_or(0, |size| usize::from(size.ws_col));
    let width = Some(width).filter(|width| *width > 0).unwrap_or(100);
    (stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none(), width)
}
