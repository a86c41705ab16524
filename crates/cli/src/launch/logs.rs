//! The files of a run's ranks, laid out as torchrun does: `<log_dir>/<run id>_xxxxxxxx/attempt_N/<local rank>/`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::MemfdFlags;
use serde_json::Value;

use super::spec::{Output, PerRank, Streams};
use crate::error::{Error, Result};

/// The folder of a run.
#[derive(Debug)]
pub(super) struct Logs(PathBuf);

/// The folder of a round.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Where it is.
    pub(super) folder: PathBuf,
}

impl Logs {
    /// A new folder, if the output needs one.
    pub(super) fn create(output: &Output, run_id: &str) -> Result<Option<Logs>> {
        let writes = |of: &PerRank| {
            let writes = |streams: &Streams| streams.out || streams.err;
            writes(&of.all) || of.ranks.iter().any(|(_, streams)| writes(streams))
        };
        let filters = output.filters.iter().any(|words| !words.is_empty());
        let wanted = writes(&output.redirects) || writes(&output.tee) || filters;
        let parent = match &output.log_dir {
            Some(folder) => folder.clone(),
            None if wanted => std::env::temp_dir(),
            None => return Ok(None),
        };
        std::fs::create_dir_all(&parent).map_err(Error::io("create", &parent))?;
        let prefix = format!("{}_", run_id.replace(['/', '\0'], "_"));
        let folder = tempfile::Builder::new().prefix(&prefix).rand_bytes(8).tempdir_in(&parent);
        let folder = folder.map_err(Error::io("create a folder in", &parent))?.keep();
        Ok(Some(Logs(folder)))
    }

    /// Where it is.
    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// The folder of a round, with one for each rank.
    pub(super) fn attempt(&self, restart: u32, n_ranks: usize) -> Result<Attempt> {
        let folder = self.0.join(format!("attempt_{restart}"));
        for rank in 0..n_ranks {
            let of_rank = folder.join(rank.to_string());
            std::fs::create_dir_all(&of_rank).map_err(Error::io("create", &of_rank))?;
        }
        Ok(Attempt { folder })
    }
}

impl Attempt {
    /// A file of a rank.
    pub(super) fn log(&self, rank: usize, name: &str) -> PathBuf {
        self.folder.join(rank.to_string()).join(name)
    }
}

/// Where a rank may write why it failed (`TORCHELASTIC_ERROR_FILE`): beside its logs, or, where there are none, in
/// memory of this process, which is gone with it.
#[derive(Debug)]
pub(super) struct ErrorFile {
    path: PathBuf,
    memory: Option<File>,
}

/// What a rank wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The traceback, else the message.
    pub text: String,
    /// When, in seconds since 1970, if it says.
    pub seconds: Option<u64>,
}

impl ErrorFile {
    /// One for a rank.
    pub(super) fn create(attempt: Option<&Attempt>, rank: usize) -> Result<ErrorFile> {
        if let Some(attempt) = attempt {
            return Ok(ErrorFile { path: attempt.log(rank, "error.json"), memory: None });
        }
        let file = rustix::fs::memfd_create("error.json", MemfdFlags::CLOEXEC);
        let file =
            File::from(file.map_err(|error| Error::io("create", "error.json in memory")(error.into()))?);
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        Ok(ErrorFile { path, memory: Some(file) })
    }

    /// Where the rank writes.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the user finds it afterward.
    pub(super) fn kept(&self) -> Option<&Path> {
        self.memory.is_none().then_some(self.path.as_path())
    }

    /// What the rank wrote, if it did.
    pub(super) fn message(&self) -> Option<Message> {
        let mut text = String::new();
        match &self.memory {
            Some(file) => {
                let mut file: &File = file;
                file.seek(SeekFrom::Start(0)).ok()?;
                file.take(oarlock_comm::MAX_CONFIG_BYTES).read_to_string(&mut text).ok()?;
            }
            None => text = oarlock_comm::read_text(&self.path, oarlock_comm::MAX_CONFIG_BYTES).ok()?,
        }
        message(&text)
    }
}

/// Reads what torch's `record` writes, `{"message": {"message": …, "extraInfo": {"py_callstack": …}}}`; of anything
/// else the text itself.
fn message(text: &str) -> Option<Message> {
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    let plain = Message { text: text.to_owned(), seconds: None };
    let Ok(value) = serde_json::from_str::<Value>(text) else { return Some(plain) };
    let message = &value["message"];
    let info = &message["extraInfo"];
    let said = [&info["py_callstack"], &message["message"], message].into_iter().find_map(Value::as_str);
    let seconds = match &info["timestamp"] {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    Some(Message { text: said.map_or(plain.text, |said| said.trim_end().to_owned()), seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_writes_is_read_in_every_form() {
        let read = |text: &str| message(text).map(|message| (message.text, message.seconds));
        let recorded = r#"{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback\n  x\n", "timestamp": "1700000000"}}}"#;
        assert_eq!(read(recorded), Some(("Traceback\n  x".to_owned(), Some(1_700_000_000))));
        assert_eq!(read(r#"{"message": "out of data"}"#), Some(("out of data".to_owned(), None)));
        assert_eq!(read("not json {"), Some(("not json {".to_owned(), None)));
        assert_eq!(read("[1, 2]"), Some(("[1, 2]".to_owned(), None)));
        assert_eq!(read(" \n"), None);
    }

    #[test]
    fn a_file_in_memory_is_written_by_another_process_through_its_path() {
        let file = ErrorFile::create(None, 0).unwrap();
        assert_eq!(file.message(), None);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "echo '{\"message\": \"m\"}' > \"$0\""]).arg(file.path());
        assert!(command.status().unwrap().success());
        assert_eq!(file.message().unwrap().text, "m");
        assert_eq!(file.kept(), None);
    }

    #[test]
    fn folders_are_those_of_torchrun() {
        let there = tempfile::tempdir().unwrap();
        let tee = PerRank { all: Streams { out: true, err: false }, ranks: Vec::new() };
        let output = Output { log_dir: Some(there.path().join("logs")), tee, ..Output::default() };
        let logs = Logs::create(&output, "a/b").unwrap().unwrap();
        let attempt = logs.attempt(2, 3).unwrap();
        let name = logs.folder().file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("a_b_") && name.len() == 12, "{name}");
        assert_eq!(attempt.log(2, "stdout.log"), logs.folder().join("attempt_2/2/stdout.log"));
        assert!(logs.folder().join("attempt_2/2").is_dir());
        assert!(Logs::create(&Output::default(), "x").unwrap().is_none());
    }
}
