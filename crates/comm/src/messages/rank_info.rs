//! What each rank tells the others when it joins.

use bytemuck::{Pod, Zeroable};

use crate::cores::available_cores;
use crate::digest::{digest, mix};
use crate::procfs::stat;
use crate::program::build_hash;

/// Where a rank runs, and with which build.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct RankInfo {
    /// A digest of the library's name and of the protocol.
    pub(super) protocol: u64,
    /// The hash of the program.
    pub(super) build: u64,
    /// A digest of the machine and its namespace of processes.
    pub(super) machine: u64,
    /// A digest of the cores that it may run on.
    pub(super) cores: u64,
    pub(super) pid: u64,
    /// When its process began, in clock ticks since boot.
    pub(super) start: u64,
    /// The first channel that no group of this rank uses.
    pub(super) next_channel: u64,
}

impl RankInfo {
    pub(super) fn of_this_process(library: &str, next_channel: usize) -> RankInfo {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let host = [read("/proc/sys/kernel/random/boot_id"), read("/proc/sys/kernel/hostname")].concat();
        let pid = std::process::id();
        let cores = available_cores();
        RankInfo {
            protocol: digest(format!("{} {library} 2", env!("CARGO_PKG_VERSION")).as_bytes()),
            build: build_hash(),
            machine: digest(format!("{} {namespace:?}", host.trim()).as_bytes()),
            cores: cores.iter().fold(cores.len() as u64, |sum, &core| mix(sum, core as u64)),
            pid: u64::from(pid),
            start: stat(pid).map_or(0, |(_, start)| start),
            next_channel: next_channel as u64,
        }
    }
}
