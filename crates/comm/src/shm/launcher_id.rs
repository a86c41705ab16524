//! Which process launched a rank: it tells apart two runs that were given the same address.

use std::fs;

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::procfs::stat;

/// The variable that names a run whose ranks have no common launcher, such as ranks started by hand in two terminals.
pub(super) const RUN_ID: &str = "OARLOCK_RUN_ID";
/// The longest chain of scripts between a launcher and a rank.
const DEPTH: usize = 64;

/// What launched a rank. Equal for the ranks of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LauncherId {
    /// The launcher's process; 0 where `OARLOCK_RUN_ID` names the run.
    pub(super) pid: u32,
    /// A digest of that process's start time, or of `OARLOCK_RUN_ID`.
    pub(super) digest: u64,
}

impl LauncherId {
    /// Finds the nearest ancestor of this process that does not have the variables of this rank. Scripts between a launcher
    /// and its rank have them.
    pub(super) fn of_this_process(variables: &[(&'static str, String)]) -> Result<LauncherId> {
        if let Some(name) = std::env::var_os(RUN_ID) {
            return Ok(LauncherId { pid: 0, digest: digest(name.as_encoded_bytes()) });
        }
        let parent =
            rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get().unsigned_abs());
        let entries: Vec<Vec<u8>> =
            variables.iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect();
        let mut pid = parent;
        for _ in 0..DEPTH {
            match parent_if_has(pid, &entries) {
                Some(next) => pid = next,
                None => {
                    let start = stat(pid).map_or(0, |(_, start)| start);
                    return Ok(LauncherId { pid, digest: digest(&start.to_ne_bytes()) });
                }
            }
        }
        Err(Error::Join(format!("no launcher among the {DEPTH} processes above this one")))
    }
}

/// The parent of a process that has all these variables; `None` for one that does not, or whose environment is hidden.
fn parent_if_has(pid: u32, entries: &[Vec<u8>]) -> Option<u32> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let has = |entry: &Vec<u8>| environment.split(|&byte| byte == 0).any(|other| other == entry.as_slice());
    if entries.is_empty() || !entries.iter().all(has) {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok().filter(|&pid| pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_is_the_first_without_the_variables_of_the_rank() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get() as u32;
        let found = LauncherId::of_this_process(&[("OARLOCK_TEST_NOBODY_HAS_THIS", "1".into())]).unwrap();
        assert_eq!(found.pid, parent);
        assert_eq!(found, LauncherId::of_this_process(&[]).unwrap());
        // A process that has all the variables is passed over.
        assert_eq!(parent_if_has(std::process::id(), &[b"OARLOCK_TEST_NOBODY_HAS_THIS=1".to_vec()]), None);
        let environment = fs::read("/proc/self/environ").unwrap();
        let some = environment.split(|&b| b == 0).next().unwrap().to_vec();
        assert_eq!(parent_if_has(std::process::id(), &[some]), Some(parent));
    }
}
