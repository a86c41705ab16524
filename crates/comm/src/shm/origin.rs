//! Which process started a rank: what tells apart two runs that were given the same address.

use std::fs;

use crate::call::digest;
use crate::error::{Error, Result};
use crate::liveness::process;

/// The user's word for a run whose ranks have no common launcher, such as ranks started by hand in two terminals.
pub(super) const RUN: &str = "OARLOCK_RUN_ID";
/// The longest chain of scripts between a launcher and a rank.
const DEPTH: usize = 64;

/// Who started a rank. Equal for the ranks of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The launcher's process; 0 where the user's word counts instead.
    pub(super) pid: u32,
    /// A digest of that process's start, or of the user's word.
    pub(super) mark: u64,
}

impl Origin {
    /// The nearest process above this one that does not have the variables of this rank: between a launcher and its
    /// rank there may be scripts, which have them.
    pub(super) fn of_this_process(own: &[(&'static str, String)]) -> Result<Origin> {
        if let Some(word) = std::env::var_os(RUN) {
            return Ok(Origin { pid: 0, mark: digest(word.as_encoded_bytes()) });
        }
        let parent =
            rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get().unsigned_abs());
        let entries: Vec<Vec<u8>> =
            own.iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect();
        let mut pid = parent;
        for _ in 0..DEPTH {
            match above(pid, &entries) {
                Some(next) => pid = next,
                None => {
                    let start = process(pid).map_or(0, |(_, start)| start);
                    return Ok(Origin { pid, mark: digest(&start.to_ne_bytes()) });
                }
            }
        }
        Err(Error::Join(format!("no launcher among the {DEPTH} processes above this one")))
    }
}

/// The parent of a process that has all these variables; `None` for one that has not, or that hides them.
fn above(pid: u32, entries: &[Vec<u8>]) -> Option<u32> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let has = |entry: &Vec<u8>| environment.split(|&byte| byte == 0).any(|other| other == entry.as_slice());
    if entries.is_empty() || !entries.iter().all(has) {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok().filter(|&pid| pid != 0)
}

/// What to call a process in a message.
pub(super) fn named(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match (name.trim(), process(pid)) {
        ("", _) => format!("process {pid}"),
        (name, Ok(('T' | 't', _))) => format!("process {pid} ({name}, stopped by a signal)"),
        (name, _) => format!("process {pid} ({name})"),
    }
}

/// The process that holds the abstract socket `name`, if it can be found.
pub(super) fn holder(name: &str) -> Option<u32> {
    let sockets = fs::read_to_string("/proc/net/unix").ok()?;
    let suffix = format!(" @{name}");
    // Num RefCount Protocol Flags Type St Inode Path; that of the listener has the flag of listening or is unconnected.
    let inodes: Vec<String> = sockets
        .lines()
        .filter(|line| line.ends_with(&suffix))
        .filter_map(|line| Some(format!("socket:[{}]", line.split_whitespace().nth(6)?)))
        .collect();
    let holds = |pid: u32| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| {
            fs::read_link(file.path()).is_ok_and(|to| inodes.iter().any(|i| to.as_os_str() == &**i))
        })
    };
    let pids = fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|&pid| holds(pid))
}

#[cfg(test)]
mod tests {
    use super::super::socket::Listener;
    use super::*;

    #[test]
    fn the_launcher_is_the_first_without_the_variables_of_the_rank() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get() as u32;
        let found = Origin::of_this_process(&[("OARLOCK_TEST_NOBODY_HAS_THIS", "1".into())]).unwrap();
        assert_eq!(found.pid, parent);
        assert_eq!(found, Origin::of_this_process(&[]).unwrap());
        // All that this process was started with, its parent may have as well; it is then passed over.
        assert_eq!(above(std::process::id(), &[b"OARLOCK_TEST_NOBODY_HAS_THIS=1".to_vec()]), None);
        let environment = fs::read("/proc/self/environ").unwrap();
        let some = environment.split(|&b| b == 0).next().unwrap().to_vec();
        assert_eq!(above(std::process::id(), &[some]), Some(parent));
    }

    #[test]
    fn who_holds_a_name_is_found() {
        let name = format!("oarlock-test-holder-{}", std::process::id());
        assert_eq!(holder(&name), None);
        let _held = Listener::bind(&name).unwrap().unwrap();
        assert_eq!(holder(&name), Some(std::process::id()));
        assert!(named(std::process::id()).starts_with(&format!("process {} (", std::process::id())));
    }
}
