//! How much memory a process uses and the machine has, as the kernel counts it.

use std::path::Path;

use crate::error::{Error, Result};

/// The memory of one process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Resident: every mapped page that lies in memory.
    pub rss: u64,
    /// Proportional: each shared page counts as its share of the processes that map it. Adds up over ranks.
    pub pss: u64,
    /// The most that was resident at any time.
    pub peak_rss: u64,
}

impl ProcessMemory {
    /// Of a process that this user may look at.
    ///
    /// # Errors
    /// When there is no such process, or this user may not read its entries in /proc.
    pub fn of(pid: u32) -> Result<ProcessMemory> {
        let rollup = read(&format!("/proc/{pid}/smaps_rollup"))?;
        let status = read(&format!("/proc/{pid}/status"))?;
        let take = |text: &str, key: &str| {
            field(text, key)
                .ok_or_else(|| Error::system(format!("find {key} of process {pid}"), "no such line"))
        };
        Ok(ProcessMemory {
            rss: take(&rollup, "Rss:")?,
            pss: take(&rollup, "Pss:")?,
            peak_rss: take(&status, "VmHWM:")?,
        })
    }

    /// Of this process.
    ///
    /// # Errors
    /// When /proc is not there.
    pub fn current() -> Result<ProcessMemory> {
        ProcessMemory::of(std::process::id())
    }
}

/// The resident bytes of a process: the cheap part of [`ProcessMemory`], for frequent reads.
pub(crate) fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    field(&status, "VmRSS:")
}

/// How many processes of this control group the kernel has killed because memory ran out, where it counts them.
pub fn killed_for_memory() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    group_kills(&groups, Path::new("/sys/fs/cgroup"))
}

/// The seconds of processor time that a process of this user may use (`ulimit -t`), if they are limited. Whoever uses them up is
/// killed as if memory had run out.
pub fn processor_seconds() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Cpu).maximum
}

/// Gives freed memory that the allocator keeps back to the system: all but the end of the heaps of other threads. For
/// after a phase that took much and will not come back. Does nothing where the C library is not glibc.
pub fn release_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;
        const M_TRIM_THRESHOLD: c_int = -1;
        // SAFETY: the declarations are those of malloc.h. The functions have no precondition, and what is in use stays.
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> c_int;
            safe fn mallopt(param: c_int, value: c_int) -> c_int;
        }
        // The default, which glibc raises to twice the largest block that was freed.
        mallopt(M_TRIM_THRESHOLD, 128 << 10);
        // A free of more than 64 KiB gives the end of this thread's heap back, and malloc_trim all else.
        drop(std::hint::black_box(Vec::<u8>::with_capacity(100 << 10)));
        malloc_trim(0);
    }
}

/// The memory that the ranks of this machine share, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// All of the machine.
    pub total: u64,
    /// What can be allocated now without swapping.
    pub available: u64,
    /// The least limit of the control groups around this process, if there is one.
    pub limit: Option<u64>,
}

impl MachineMemory {
    /// Reads the current values.
    ///
    /// # Errors
    /// When /proc is not there.
    pub fn current() -> Result<MachineMemory> {
        let info = read("/proc/meminfo")?;
        let take = |key: &str| {
            field(&info, key)
                .ok_or_else(|| Error::system(format!("find {key} in /proc/meminfo"), "no such line"))
        };
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = group_limit(&groups, Path::new("/sys/fs/cgroup"));
        Ok(MachineMemory { total: take("MemTotal:")?, available: take("MemAvailable:")?, limit })
    }

    /// The most that the processes of this control group can use.
    pub fn usable(&self) -> u64 {
        self.limit.map_or(self.total, |limit| limit.min(self.total))
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| Error::system(format!("read {path}"), e))
}

/// The bytes in a line like `Rss:   1234 kB`.
fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The least limit on the way from this process's control group to the root; version 2, or the memory tree of version 1.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    let limits = group_files(groups, root, "memory.max", "memory.limit_in_bytes");
    let limits = limits.iter().filter_map(|text| text.trim().parse::<u64>().ok());
    // Version 1 writes "no limit" as the greatest number of pages.
    limits.filter(|&bytes| bytes < i64::MAX as u64 / 2).min()
}

/// The count of the outermost group that has one, which holds those of the groups inside.
fn group_kills(groups: &str, root: &Path) -> Option<u64> {
    let files = group_files(groups, root, "memory.events", "memory.oom_control");
    let count = |text: &String| {
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
        line.trim().parse::<u64>().ok()
    };
    files.iter().filter_map(count).max()
}

/// A file of the memory controller, of this process's control group and all groups around it: as version 2 names it,
/// or version 1.
fn group_files(groups: &str, root: &Path, new: &str, old: &str) -> Vec<String> {
    let found = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or("/"));
        let (tree, file) = match controllers {
            "" => (root.to_owned(), new),
            list if list.split(',').any(|c| c == "memory") => (root.join("memory"), old),
            _ => return Vec::new(),
        };
        let leaf = tree.join(path.trim_start_matches('/'));
        let up = leaf.ancestors().take_while(|dir| dir.starts_with(&tree));
        up.filter_map(|dir| std::fs::read_to_string(dir.join(file)).ok()).collect()
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Runs a test of this module again in a process of its own, in which no other test takes or frees memory. Whether this is
    /// that process.
    fn is_alone(test: &str) -> bool {
        const ALONE: &str = "OARLOCK_MEASURES_MEMORY";
        if std::env::var_os(ALONE).is_some() {
            return true;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", &format!("memory::tests::{test}")]).env(ALONE, "1");
        let said = again.output().unwrap();
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(
            said.status.success() && text.contains("1 passed"),
            "{text}{}",
            String::from_utf8_lossy(&said.stderr)
        );
        false
    }

    #[test]
    fn touched_memory_is_counted_and_untouched_is_not() {
        if !is_alone("touched_memory_is_counted_and_untouched_is_not") {
            return;
        }
        let before = ProcessMemory::current().unwrap();
        let region = crate::Communicator::solo().allocate("r", 64 << 20, crate::Sharing::PerRank).unwrap();
        let reserved = ProcessMemory::current().unwrap();
        region.write(0, &vec![1u8; 32 << 20]).unwrap();
        let touched = ProcessMemory::current().unwrap();
        assert!(reserved.pss < before.pss + (16 << 20), "{before:?} {reserved:?}");
        assert!(
            touched.pss >= reserved.pss + (30 << 20) && touched.peak_rss >= touched.rss,
            "{reserved:?} {touched:?}"
        );
        assert!(ProcessMemory::of(u32::MAX).is_err());
        let machine = MachineMemory::current().unwrap();
        assert!(
            machine.usable() <= machine.total
                && machine.available <= machine.total
                && machine.usable() > touched.rss
        );
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn freed_memory_goes_back_to_the_system() {
        if !is_alone("freed_memory_goes_back_to_the_system") {
            return;
        }
        let pss = || ProcessMemory::current().unwrap().pss;
        // So large that glibc keeps as much from then on.
        drop(std::hint::black_box(vec![1u8; 30 << 20]));
        // Blocks that are too small to be mapped alone; one in the middle stays.
        let mut blocks: Vec<Vec<u8>> = (0..60_000).map(|_| vec![1; 1000]).collect();
        let kept = blocks.swap_remove(30_000);
        let full = pss();
        drop(blocks);
        release_freed_memory();
        let (freed, kept) = (pss(), kept.len());
        assert!(freed + (50 << 20) < full && kept == 1000, "{full} {freed}");
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let root = std::env::temp_dir().join(format!("oarlock-cgroup-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let file = root.join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        put("a/b/memory.max", "max\n");
        put("a/memory.max", "5000\n");
        put("memory.max", "9000\n");
        put("memory/x/memory.limit_in_bytes", "9223372036854771712\n");
        put("memory/memory.limit_in_bytes", "700\n");
        assert_eq!(group_limit("0::/a/b\n", &root), Some(5000));
        assert_eq!(group_limit("0::/\n", &root), Some(9000));
        assert_eq!(group_limit("4:cpu:/x\n3:memory:/x\n", &root), Some(700));
        assert_eq!(group_limit("", &root), None);
        put("a/b/memory.events", "low 0\noom 3\noom_kill 2\n");
        put("memory/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
        assert_eq!(group_kills("0::/a/b\n", &root), Some(2));
        assert_eq!(group_kills("3:memory:/x\n", &root), Some(5));
        assert_eq!(group_kills("0::/\n", &root), None);
        std::fs::remove_dir_all(root).unwrap();
    }
}
