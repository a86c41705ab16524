//! What a training run may use: of the machine, of its control group, of its process limits.

use oarlock_comm::{MachineMemory, ProcessMemory};
use oarlock_engine::report::error::Limit;
use oarlock_engine::{Error, Result};

use super::part::Part;
use super::prediction::Estimate;

/// The limits that hold for this process and its like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What the machine can give now without swapping, what this process has included.
    pub available: u64,
    /// The least limit of the control groups.
    pub group: Option<u64>,
    /// RLIMIT_AS, and what of it is in use.
    pub address_space: Option<(u64, u64)>,
    /// RLIMIT_DATA, and what of it is in use.
    pub data: Option<(u64, u64)>,
}

impl Limits {
    /// As they are now, for this process.
    ///
    /// # Errors
    /// When /proc is not there.
    pub fn current() -> Result<Limits> {
        let machine = MachineMemory::current()?;
        let own = ProcessMemory::current()?;
        let read = |path: &str| std::fs::read_to_string(path).map_err(Error::io("read", path));
        let (limits, status) = (read("/proc/self/limits")?, read("/proc/self/status")?);
        let with_use = |name, key| Some((soft_limit(&limits, name)?, kilobytes(&status, key)?));
        Ok(Limits {
            available: machine.available.saturating_add(own.pss),
            group: machine.limit,
            address_space: with_use("Max address space", "VmSize:"),
            data: with_use("Max data size", "VmData:"),
        })
    }

    /// The first limit that a training run with this estimate would not keep.
    pub fn broken_by(&self, estimate: &Estimate) -> Option<Limit> {
        let ranks = estimate.settings.ranks as u64;
        let sum = |of: &dyn Fn(&Part) -> u64| estimate.parts.iter().map(of).sum::<u64>();
        // Memory that is shared lies in the address space of every rank, all parts of its group of ranks.
        let replicas = estimate.settings.replicas() as u64;
        let mapped = sum(&|part| if part.shared { part.machine / replicas } else { part.rank });
        let private = sum(&|part| if part.shared && ranks > 1 { 0 } else { part.rank });
        let mut limits = vec![("the memory available on this machine", self.available, estimate.machine())];
        if let Some(limit) = self.group {
            limits.push(("the memory limit of this control group", limit, estimate.machine()));
        }
        if let Some((limit, used)) = self.address_space {
            limits.push(("the limit of the address space of a process (ulimit -v)", limit, used + mapped));
        }
        if let Some((limit, used)) = self.data {
            limits.push(("the limit of the data of a process (ulimit -d)", limit, used + private));
        }
        let broken = limits.into_iter().find(|(_, allows, needs)| needs > allows);
        broken.map(|(name, allows, needs)| Limit { name: name.into(), allows, needs })
    }
}

/// The soft limit in a line like `Max data size   unlimited   unlimited   bytes`; `None` for no limit.
pub(super) fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The bytes in a line like `VmSize:   1234 kB`.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}
