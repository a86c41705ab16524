//! A rank finds its place: from the environment of a launcher, ours or another, or alone.

use std::ffi::OsString;

use oarlock_comm::{Communicator, cores_for_rank, shm};

use crate::console::tell;
use crate::error::Result;

/// The communicator that the environment describes: ranks in shared memory, or a world of one.
///
/// # Errors
/// When the environment names a group that cannot be joined.
pub fn join() -> Result<Communicator> {
    let tell = |text: &str| tell(&format!("note: {text}\n"));
    Ok(shm::from_env_telling(&tell)?.unwrap_or_else(Communicator::solo))
}

/// The arguments of a program without `--local_rank=N`, which DeepSpeed's launcher and torch's oldest one put before
/// them. The environment says the same.
pub fn without_local_rank(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let is_local_rank = |word: &OsString| {
        let number =
            ["--local_rank=", "--local-rank="].iter().find_map(|flag| word.to_str()?.strip_prefix(flag));
        number.is_some_and(|number| number.parse::<i64>().is_ok())
    };
    arguments.filter(|word| !is_local_rank(word)).collect()
}

/// The threads of a rank: its share of the cores that this process may use.
pub fn default_threads(comm: &Communicator) -> usize {
    cores_for_rank(comm.rank(), comm.world_size()).len().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_rank_of_a_launcher_is_no_argument() {
        let left = |words: &str| {
            without_local_rank(words.split(' ').map(OsString::from)).join(std::ffi::OsStr::new(" "))
        };
        assert_eq!(left("oarlock --local_rank=1 train t.yaml"), "oarlock train t.yaml");
        assert_eq!(left("oarlock train --local-rank=-1 t.yaml"), "oarlock train t.yaml");
        // What is no number is told to be wrong where arguments are read.
        assert_eq!(left("oarlock train --local_rank=x t.yaml"), "oarlock train --local_rank=x t.yaml");
        assert_eq!(left("oarlock train local_rank=1"), "oarlock train local_rank=1");
    }
}
