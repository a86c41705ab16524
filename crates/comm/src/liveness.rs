//! Whether a process of this machine lives, as /proc says. A zombie is dead.

use std::io;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::ledger::RankState;

/// Where the process that began at `start` (0 where that is not known) stands in its life.
pub(crate) fn look(pid: u32, start: u64) -> RankState {
    match (pid == std::process::id(), start) {
        (true, _) => RankState::Running,
        (_, 0) => without_proc(pid),
        _ => judge(process(pid), start),
    }
}

/// What an entry of /proc says about a process that began at `start`.
fn judge(entry: io::Result<(char, u64)>, start: u64) -> RankState {
    let gone =
        |e: &io::Error| e.kind() == io::ErrorKind::NotFound || Errno::from_io_error(e) == Some(Errno::SRCH);
    match entry {
        Ok((_, other)) if other != start => RankState::Dead,
        Ok(('Z' | 'X' | 'x', _)) => RankState::Dead,
        Ok(('T' | 't', _)) => RankState::Stopped,
        Err(error) if gone(&error) => RankState::Dead,
        // Not to be able to look (too many open files) says nothing about the other.
        Ok(_) | Err(_) => RankState::Running,
    }
}

/// Where a system has no /proc a zombie looks alive; the launcher sees its end all the same.
fn without_proc(pid: u32) -> RankState {
    match Pid::from_raw(pid as i32).map(rustix::process::test_kill_process) {
        Some(Err(Errno::SRCH)) => RankState::Dead,
        _ => RankState::Running,
    }
}

/// State letter and start time of a process, in clock ticks since boot.
pub(crate) fn process(pid: u32) -> io::Result<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse(stat: &str) -> Option<(char, u64)> {
    // The name in parentheses may hold anything, also parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let (state, start) = process(std::process::id()).unwrap();
        assert!(matches!(state, 'R' | 'S') && start > 0, "{state} {start}");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !matches!(process(child.id()), Ok(('Z', _))) {
            std::thread::yield_now();
        }
        assert_eq!(judge(process(child.id()), process(child.id()).unwrap().1), RankState::Dead);
        child.wait().unwrap();
        assert_eq!(judge(process(child.id()), 1), RankState::Dead);
        assert_eq!(without_proc(child.id()), RankState::Dead);
    }

    #[test]
    fn only_what_is_known_counts_as_dead() {
        let name_with_parentheses = format!("12 (a) b) T {}77 0", "1 ".repeat(18));
        assert_eq!(parse(&name_with_parentheses), Some(('T', 77)));
        assert_eq!(parse("12 (a) R 1 2"), None);
        assert_eq!(judge(Ok(('T', 77)), 77), RankState::Stopped);
        assert_eq!(judge(Ok(('S', 77)), 77), RankState::Running);
        assert_eq!(judge(Ok(('S', 77)), 76), RankState::Dead);
        assert_eq!(judge(Err(Errno::SRCH.into()), 77), RankState::Dead);
        assert_eq!(judge(Err(Errno::MFILE.into()), 77), RankState::Running);
        assert_eq!(without_proc(std::process::id()), RankState::Running);
    }
}
