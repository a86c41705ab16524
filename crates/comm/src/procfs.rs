//! What /proc says about the processes of this machine: whether one lives, its name, its sockets. A zombie is dead.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::ledger::RankState;

/// The state of the process that began at `start`, in clock ticks since boot (0 where that is not known).
pub(crate) fn state(pid: u32, start: u64) -> RankState {
    match (pid == std::process::id(), start) {
        (true, _) => RankState::Running,
        (_, 0) => without_proc(pid),
        _ => from_stat(stat(pid), start),
    }
}

/// The state of the process that began at `start`, from its entry in /proc.
fn from_stat(entry: io::Result<(char, u64)>, start: u64) -> RankState {
    let gone =
        |e: &io::Error| e.kind() == io::ErrorKind::NotFound || Errno::from_io_error(e) == Some(Errno::SRCH);
    match entry {
        Ok((_, other)) if other != start => RankState::Dead,
        Ok(('Z' | 'X' | 'x', _)) => RankState::Dead,
        Ok(('T' | 't', _)) => RankState::Stopped,
        Err(error) if gone(&error) => RankState::Dead,
        // An entry that cannot be read (too many open files) says nothing about the process.
        Ok(_) | Err(_) => RankState::Running,
    }
}

/// On a system without /proc a zombie looks alive; the launcher sees its end all the same.
fn without_proc(pid: u32) -> RankState {
    match Pid::from_raw(pid as i32).map(rustix::process::test_kill_process) {
        Some(Err(Errno::SRCH)) => RankState::Dead,
        _ => RankState::Running,
    }
}

/// State letter and start time of a process, in clock ticks since boot.
pub(crate) fn stat(pid: u32) -> io::Result<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse(stat: &str) -> Option<(char, u64)> {
    // The name in parentheses may hold anything, also parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Whether something keeps a process from running: a signal, a debugger, or the freezer of a control group.
pub(crate) fn is_held(pid: u32) -> bool {
    let groups = || std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    matches!(stat(pid), Ok(('T' | 't', _))) || is_frozen(&groups(), Path::new("/sys/fs/cgroup"))
}

/// Whether a control group of these is frozen: version 2, or the freezer of version 1.
fn is_frozen(groups: &str, root: &Path) -> bool {
    groups.lines().any(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or("/"));
        let (tree, file, says) = match controllers {
            "" => (root.to_owned(), "cgroup.events", "frozen 1"),
            "freezer" => (root.join("freezer"), "freezer.state", "FROZEN"),
            _ => return false,
        };
        let text = std::fs::read_to_string(tree.join(path.trim_start_matches('/')).join(file));
        text.is_ok_and(|text| text.lines().any(|line| line == says))
    })
}

/// The name of a process in messages.
pub(crate) fn describe(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match (name.trim(), stat(pid)) {
        ("", _) => format!("process {pid}"),
        (name, Ok(('T' | 't', _))) => format!("process {pid} ({name}, stopped by a signal)"),
        (name, _) => format!("process {pid} ({name})"),
    }
}

/// The abstract sockets whose names begin so, at most `most` of them.
pub(crate) fn sockets_named(prefix: &str, most: usize) -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let begins = format!(" @{prefix}");
    let name = |line: &str| line.rsplit_once(&begins).map(|(_, rest)| format!("{prefix}{rest}"));
    let mut names: Vec<String> = sockets.lines().filter_map(name).collect();
    names.sort();
    names.dedup();
    names.truncate(most);
    names
}

/// The user of a process.
pub(crate) fn user(pid: u32) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|entry| entry.uid())
}

/// The process that has the abstract socket `name` open, if it can be found.
pub(crate) fn socket_owner(name: &str) -> Option<u32> {
    let sockets = std::fs::read_to_string("/proc/net/unix").ok()?;
    let suffix = format!(" @{name}");
    // Columns: Num RefCount Protocol Flags Type St Inode Path.
    let inodes: Vec<String> = sockets
        .lines()
        .filter(|line| line.ends_with(&suffix))
        .filter_map(|line| Some(format!("socket:[{}]", line.split_whitespace().nth(6)?)))
        .collect();
    let holds = |pid: u32| {
        let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| {
            std::fs::read_link(file.path()).is_ok_and(|to| inodes.iter().any(|i| to.as_os_str() == &**i))
        })
    };
    let pids = std::fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|&pid| holds(pid))
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let (state, start) = stat(std::process::id()).unwrap();
        assert!(matches!(state, 'R' | 'S') && start > 0, "{state} {start}");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !matches!(stat(child.id()), Ok(('Z', _))) {
            std::thread::yield_now();
        }
        assert_eq!(from_stat(stat(child.id()), stat(child.id()).unwrap().1), RankState::Dead);
        child.wait().unwrap();
        assert_eq!(from_stat(stat(child.id()), 1), RankState::Dead);
        assert_eq!(without_proc(child.id()), RankState::Dead);
    }

    #[test]
    fn only_what_is_known_counts_as_dead() {
        let name_with_parentheses = format!("12 (a) b) T {}77 0", "1 ".repeat(18));
        assert_eq!(parse(&name_with_parentheses), Some(('T', 77)));
        assert_eq!(parse("12 (a) R 1 2"), None);
        assert_eq!(from_stat(Ok(('T', 77)), 77), RankState::Stopped);
        assert_eq!(from_stat(Ok(('S', 77)), 77), RankState::Running);
        assert_eq!(from_stat(Ok(('S', 77)), 76), RankState::Dead);
        assert_eq!(from_stat(Err(Errno::SRCH.into()), 77), RankState::Dead);
        assert_eq!(from_stat(Err(Errno::MFILE.into()), 77), RankState::Running);
        assert_eq!(without_proc(std::process::id()), RankState::Running);
    }

    #[test]
    fn a_frozen_group_holds_its_processes() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let file = root.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        put("a/b/cgroup.events", "populated 1\nfrozen 1\n");
        put("a/cgroup.events", "populated 1\nfrozen 0\n");
        put("freezer/x/freezer.state", "FROZEN\n");
        let frozen = |groups: &str| is_frozen(groups, root.path());
        assert!(frozen("0::/a/b\n") && frozen("5:freezer:/x\n0::/a\n"));
        assert!(!frozen("0::/a\n") && !frozen("0::/none\n5:freezer:/\n4:cpu:/a/b\n") && !frozen(""));
        assert!(!is_held(std::process::id()));
    }

    #[test]
    fn the_owner_of_a_socket_is_found() {
        let name = format!("oarlock-test-owner-{}", std::process::id());
        assert_eq!(socket_owner(&name), None);
        let _held = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        assert_eq!(socket_owner(&name), Some(std::process::id()));
        assert_eq!(user(std::process::id()), Some(rustix::process::getuid().as_raw()));
        let second = format!("{name}-2");
        let _other = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&second).unwrap()).unwrap();
        assert_eq!(sockets_named(&format!("{name}-"), 9), [second.as_str()]);
        assert_eq!(sockets_named(&name, 1), [name.as_str()]);
        assert!(describe(std::process::id()).starts_with(&format!("process {} (", std::process::id())));
    }
}
