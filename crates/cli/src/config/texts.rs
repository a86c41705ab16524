//! The texts of configuration files. A launcher hands those that it has read to the ranks that it starts, so that ranks that
//! are started again train what the run began with, whatever stands in the files by then.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use oarlock_config::settings::json;
use oarlock_config::settings::problem::Problem;
use rustix::fs::{MemfdFlags, memfd_create};

/// The variable with the path at which a rank finds the texts that its launcher has read.
const TEXTS: &str = "OARLOCK_TEXTS";

/// Texts by the paths of their files, as they were written.
type Texts = BTreeMap<String, String>;

/// What this process has read.
static READ: Mutex<Texts> = Mutex::new(Texts::new());

/// The text of a file: in a rank what its launcher has read.
///
/// # Errors
/// If it cannot be read or is not a text.
pub fn read_file(path: &str, what: &str) -> Result<String, Problem> {
    if let Some(text) = handed_down()?.get(path) {
        return Ok(text.clone());
    }
    let text = json::read_file(path, what)?;
    READ.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), text.clone());
    Ok(text)
}

/// What the launcher of this rank has read; nothing in a process that is not a rank of ours.
fn handed_down() -> Result<&'static Texts, Problem> {
    static HANDED: OnceLock<Result<Texts, String>> = OnceLock::new();
    let read = || match std::env::var(TEXTS) {
        Err(_) => Ok(Texts::new()),
        Ok(path) => {
            let bytes = oarlock_comm::read_file(&path, oarlock_comm::MAX_RECORDS_BYTES)
                .map_err(|error| format!("{path}: {error}"))?;
            serde_json::from_slice(&bytes).map_err(|error| format!("{path}: {error}"))
        }
    };
    HANDED.get_or_init(read).as_ref().map_err(|error| {
        Problem::new(format!("cannot read the configuration that the launcher of this rank keeps ({error})"))
            .help(format!("unset {TEXTS} where this process is not a rank of a launcher that runs"))
    })
}

/// What ranks are given: a variable, and the file that it names, which lives as long as this process keeps it.
pub struct RankVariable {
    _file: File,
    /// The variable and its value.
    pub variable: (String, String),
}

/// Keeps what this process has read for the ranks that it starts.
///
/// # Errors
/// When the system has no memory for it.
pub fn hand_down() -> io::Result<RankVariable> {
    let mut file = File::from(memfd_create("configuration", MemfdFlags::CLOEXEC)?);
    let texts = READ.lock().unwrap_or_else(PoisonError::into_inner).clone();
    file.write_all(&serde_json::to_vec(&texts)?)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Ok(RankVariable { _file: file, variable: (TEXTS.to_owned(), path) })
}
