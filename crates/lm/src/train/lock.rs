//! One run at a time writes an output folder.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use oarlock_engine::{Error, Result};

/// How long a holder that is about to end is waited for, and how often it is looked at.
const ENDING: Duration = Duration::from_secs(30);
const ASK: Duration = Duration::from_millis(5);

/// The right to write an output folder. The kernel takes it back when the process ends, however it ends; the file
/// `run.lock` then says nothing any more, and the next run takes it over.
#[derive(Debug)]
pub struct OutputLock {
    path: PathBuf,
    /// Locked as long as it is open. `None` where the file system has no locks.
    file: Option<File>,
}

impl OutputLock {
    /// Takes the folder, which is made where it is missing.
    ///
    /// # Errors
    /// Another process holds it, which the message names; a folder that cannot be written.
    pub fn take(folder: &Path) -> Result<OutputLock> {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let (path, begin) = (folder.join("run.lock"), Instant::now());
        loop {
            let mut file = oarlock_files::open_or_create(&path).map_err(Error::io("create", &path))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let holder = holder(&mut file);
                    if !is_ending(&holder) || begin.elapsed() > ENDING {
                        return Err(held(folder, &holder));
                    }
                    std::thread::sleep(ASK);
                    continue;
                }
                // Some network file systems have no locks.
                Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {
                    return Ok(OutputLock { path, file: None });
                }
                Err(cause) => return Err(Error::io("lock", &path)(cause.into())),
            }
            // Its last holder may have removed it between opening and locking: then it is not this one that counts.
            if is_named(&file, &path)? {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                let write = file.set_len(0).and_then(|()| {
                    file.write_all(format!("process {} on {host}\n", std::process::id()).as_bytes())
                });
                write.map_err(Error::io("write", &path))?;
                return Ok(OutputLock { path, file: Some(file) });
            }
        }
    }

    /// Takes the folder again if somebody removed it while it was held.
    ///
    /// # Errors
    /// As [`take`](Self::take): another process may hold the folder that is there now.
    pub fn renew(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if is_named(file, &self.path)? {
            return Ok(());
        }
        let folder = self.path.parent().unwrap_or(Path::new(".")).to_path_buf();
        *self = OutputLock::take(&folder)?;
        Ok(())
    }
}

/// Removes what a run that was stopped left of its lock: this process, which is about to end, or one that has ended.
pub fn clear_lock(folder: &Path) {
    let path = folder.join("run.lock");
    let own = format!("process {} on ", std::process::id());
    match oarlock_comm::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES) {
        Err(_) => {}
        Ok(holder) if holder.starts_with(&own) => drop(fs::remove_file(&path)),
        // One that somebody holds stays.
        Ok(_) => drop(OutputLock::take(folder)),
    }
}

impl Drop for OutputLock {
    fn drop(&mut self) {
        // Removed before it is unlocked. A folder that is gone needs no lock, and the lock of another run stays.
        if self.file.as_ref().is_some_and(|file| is_named(file, &self.path).unwrap_or(false)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether this open file is the one that a path names.
fn is_named(file: &File, path: &Path) -> Result<bool> {
    let ours = file.metadata().map_err(Error::io("read", path))?;
    match fs::metadata(path) {
        Ok(named) => Ok((ours.dev(), ours.ino()) == (named.dev(), named.ino())),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(Error::io("read", path)(cause)),
    }
}

/// What the file says of its holder; nothing while that has not written its name yet.
fn holder(file: &mut File) -> String {
    let mut holder = String::new();
    let _ = file.take(1000).read_to_string(&mut holder);
    holder.trim().to_owned()
}

/// Whether the holder is a process of this machine that has been killed and is about to be gone. The kernel takes back its
/// memory first, and of a large one that takes seconds, and then its locks.
fn is_ending(holder: &str) -> bool {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let process = holder.strip_prefix("process ").and_then(|rest| rest.split_once(" on "));
    process.filter(|(_, on)| *on == host).and_then(|(id, _)| id.parse::<u32>().ok()).is_some_and(|id| {
        // A process without memory has no program any more.
        fs::read_link(format!("/proc/{id}/exe")).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    })
}

/// The error of a folder that another process writes.
fn held(folder: &Path, holder: &str) -> Error {
    let holder = if holder.is_empty() { "another process" } else { holder };
    Error::Usage(format!(
        "output_dir {} is written by another run ({holder}); wait for its end, or give another output_dir",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_writer_and_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("out");
        let first = OutputLock::take(&folder).unwrap();
        let error = OutputLock::take(&folder).unwrap_err().to_string();
        let process = format!("is written by another run (process {} on ", std::process::id());
        assert!(error.contains(&process), "{error}");
        drop(first);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        OutputLock::take(&folder).unwrap();
    }

    #[test]
    fn a_folder_that_was_removed_is_taken_again_and_another_runs_lock_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("out");
        let mut first = OutputLock::take(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        first.renew().unwrap();
        assert!(OutputLock::take(&folder).is_err());
        // Another run takes the folder before the first comes back to it.
        fs::remove_dir_all(&folder).unwrap();
        let second = OutputLock::take(&folder).unwrap();
        assert!(first.renew().unwrap_err().to_string().contains("is written by another run"));
        drop(first);
        assert!(OutputLock::take(&folder).is_err());
        drop(second);
        OutputLock::take(&folder).unwrap();
    }

    #[test]
    fn a_holder_that_is_about_to_end_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.lock");
        let lock = oarlock_files::open_or_create(&path).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // No process has such a number: it stands for one whose memory is gone already.
        fs::write(&path, format!("process {} on {host}\n", i32::MAX)).unwrap();
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(lock);
        });
        OutputLock::take(dir.path()).unwrap();
        late.join().unwrap();
        // A process of another machine is not looked at, and neither is one without a name.
        for holder in ["", "process 1 on another machine", &format!("process x on {host}")] {
            assert!(!is_ending(holder), "{holder}");
        }
        assert!(!is_ending(&format!("process {} on {host}", std::process::id())));
    }

    #[test]
    fn what_a_crash_leaves_behind_locks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("run.lock"), "process 4194999 on a longer name than the next one has\n")
            .unwrap();
        let lock = OutputLock::take(dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join("run.lock")).unwrap();
        assert!(
            text.starts_with(&format!("process {} on ", std::process::id())) && text.lines().count() == 1
        );
        drop(lock);
    }
}
