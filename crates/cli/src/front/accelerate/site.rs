//! Where a check runs, and what it finds.

use std::path::PathBuf;

use oarlock::data::Sampler;
use oarlock_comm::Communicator;
use oarlock_tensor::DType;

/// Where a check runs.
pub struct Site {
    /// The ranks.
    pub comm: Communicator,
    /// A folder that all of them see.
    pub folder: PathBuf,
    /// The precision of the configuration, where it is not f32.
    pub dtype: Option<DType>,
}

/// What a check found on this rank: nothing wrong, and perhaps a word about it; or what differed.
pub type Finding = std::result::Result<String, String>;

/// The sampler of this rank.
pub fn sampler(site: &Site, len: u64, micro_batch: u64, accumulation: u64) -> Sampler {
    let (world, rank) = (site.comm.world_size() as u64, site.comm.rank() as u64);
    Sampler { len, seed: 42, shuffle: true, world, rank, micro_batch, accumulation, lengths: None }
}
