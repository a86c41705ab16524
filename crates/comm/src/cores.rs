//! Which cores this process may use, and which of them belong to a rank.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::CpuSet;

use crate::error::{Error, Result};

/// The cores that this process may run on.
pub fn available_cores() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None);
    let listed: Vec<usize> = allowed
        .map_or_else(|_| Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect());
    if listed.is_empty() {
        // More cores than the set can name, or no such call: count them.
        return (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
    }
    listed
}

/// The cores of a rank: neighboring ones, split as evenly as possible. Where ranks outnumber cores, several share one.
pub fn cores_for_rank(local_rank: usize, local_world_size: usize) -> Vec<usize> {
    share(&available_cores(), local_rank, local_world_size)
}

/// The same for a given list of cores.
pub fn share(cores: &[usize], rank: usize, ranks: usize) -> Vec<usize> {
    if cores.is_empty() || ranks == 0 {
        return Vec::new();
    }
    if cores.len() < ranks {
        return vec![cores[rank % cores.len()]];
    }
    let rank = rank % ranks;
    cores[cores.len() * rank / ranks..cores.len() * (rank + 1) / ranks].to_vec()
}

/// Pins the calling thread, and those that it will start, to the given cores.
///
/// # Errors
/// When the list is empty, names a core that does not exist, or the system refuses.
pub fn pin_current_thread(cores: &[usize]) -> Result<()> {
    let set = set_of(cores)?;
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|e| Error::system(format!("run on cores {cores:?}"), e))
}

/// Pins the process that a command will start, and all that it starts, to the given cores.
///
/// # Errors
/// When the list names a core that no machine can have. A core that this machine lacks fails when the command starts.
pub fn bind(command: &mut Command, cores: &[usize]) -> Result<()> {
    let set = set_of(cores)?;
    // SAFETY: between fork and exec it makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(move || Ok(rustix::thread::sched_setaffinity(None, &set)?));
    }
    Ok(())
}

fn set_of(cores: &[usize]) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    for &core in cores {
        if core >= CpuSet::MAX_CPU {
            let expected = format!("cores below {}", CpuSet::MAX_CPU);
            return Err(Error::Argument { operation: "run on cores", expected, got: core.to_string() });
        }
        set.set(core);
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_disjoint_and_complete() {
        let cores = [1, 3, 4, 6, 8, 9, 10];
        for ranks in 1..=7 {
            let shares: Vec<Vec<usize>> = (0..ranks).map(|r| share(&cores, r, ranks)).collect();
            assert_eq!(shares.concat(), cores);
            assert!(shares.iter().all(|s| s.len().abs_diff(7 / ranks) <= 1), "{shares:?}");
        }
        assert_eq!((0..9).map(|r| share(&cores, r, 9)[0]).collect::<Vec<_>>(), [1, 3, 4, 6, 8, 9, 10, 1, 3]);
    }

    #[test]
    fn a_pinned_thread_runs_there_and_nowhere_is_refused() {
        let one = available_cores()[0];
        std::thread::spawn(move || {
            pin_current_thread(&[one]).unwrap();
            assert_eq!(available_cores(), [one]);
        })
        .join()
        .unwrap();
        assert!(pin_current_thread(&[]).is_err());
        assert!(pin_current_thread(&[100_000]).is_err());
    }

    #[test]
    fn a_bound_process_runs_there() {
        let one = *available_cores().last().unwrap();
        let mut command = Command::new("cat");
        bind(command.arg("/proc/self/status"), &[one]).unwrap();
        let status = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(list.map(str::trim), Some(one.to_string().as_str()));
        assert!(bind(&mut command, &[100_000]).is_err());
    }
}
