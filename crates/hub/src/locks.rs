//! Locks that keep two processes from downloading the same file twice. They are a courtesy: no result depends on them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use crate::progress::{Event, Progress};

/// How often a lock that somebody holds is tried again.
const EVERY: Duration = Duration::from_millis(100);

/// How long a holder may do nothing that can be seen. Some network file systems never give a lock back.
const IDLE: Duration = Duration::from_secs(120);

/// A lock that is held until it is dropped, or none on a file system that has no locks.
pub(crate) struct Lock(#[expect(dead_code, reason = "it is held for its lock")] Option<File>);

/// What shows that the holder of a lock works: the files in this folder whose names begin so.
pub(crate) struct Signs<'s> {
    pub(crate) folder: &'s Path,
    pub(crate) begin: &'s str,
}

impl Lock {
    /// Waits for a lock, for as long as its holder is seen to work.
    pub(crate) fn wait(path: &Path, signs: &Signs<'_>, name: &str, progress: &Progress) -> Lock {
        // A folder that cannot be made or written has no locks; what is downloaded is safe without.
        let folder = path.parent().map(fs::create_dir_all);
        let Some(Ok(file)) = folder.map(|_| oarlock_files::open_or_create(path)) else { return Lock(None) };
        let mut seen = (signs.seen(), Instant::now());
        let mut is_said = false;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Lock(Some(file)),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(_) => return Lock(None),
            }
            if !is_said {
                progress(&Event::Waiting { path: name });
                is_said = true;
            }
            std::thread::sleep(EVERY);
            let now = signs.seen();
            if now != seen.0 {
                seen = (now, Instant::now());
            } else if seen.1.elapsed() > IDLE {
                return Lock(None);
            }
        }
    }
}

impl Signs<'_> {
    /// The names and lengths of the files.
    fn seen(&self) -> Vec<(PathBuf, u64)> {
        let Ok(entries) = fs::read_dir(self.folder) else { return Vec::new() };
        let is_sign = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(self.begin);
        let length = |entry: fs::DirEntry| (entry.path(), entry.metadata().map_or(0, |found| found.len()));
        let mut seen: Vec<_> = entries.flatten().filter(is_sign).map(length).collect();
        seen.sort();
        seen
    }
}
