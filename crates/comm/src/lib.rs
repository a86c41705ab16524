//! Ranks and collectives: process groups in shared memory, over MPI or over Gloo, their liveness, and the rank processes themselves.
//!
//! This crate knows bytes, ranks and time; it knows no parameter and no configuration.

mod blocks;
mod call;
mod collective;
mod communicator;
mod cores;
mod digest;
mod draft;
mod error;
mod gloo;
mod gloo_shim;
mod held_region;
mod hold;
mod join;
mod launched;
mod ledger;
mod mapped;
mod members;
mod memory;
mod messages;
mod metered;
#[cfg(feature = "mpi")]
mod mpi;
pub mod nccl;
mod observer;
mod operation;
mod ownership;
mod patience;
mod process;
mod procfs;
mod program;
mod progress;
mod ready;
mod region;
pub mod shm;
mod slowed;
mod solo;
mod stamp;
mod stats;
mod trace;
mod transport;
mod transport_kind;
mod whole_file;
pub mod wire;

pub use blocks::Blocks;
pub use call::{Call, Request};
pub use collective::Collective;
pub use communicator::{Communicator, Traffic, WeakCommunicator};
pub use cores::{available_cores, bind, cores_for_rank, pin_current_thread, share};
pub use error::{Error, Result};
pub use held_region::HeldRegion;
pub use join::{from_env, join_launched};
pub use launched::{Launched, join_limit, link_timeout};
pub use ledger::{RankState, RankStatus};
pub use mapped::MappedFile;
pub use memory::{MachineMemory, ProcessMemory, killed_for_memory, processor_seconds, release_freed_memory};
pub use metered::{Exceeded, MemoryLimits, Meter, MeteredAllocator};
pub use oarlock_tensor::cpu::rank_sum::tree_fold;
pub use observer::CommunicationTime;
pub use operation::{Operation, Scalar};
pub use ownership::Ownership;
pub use patience::{LongWait, Patience, Wait};
pub use process::{
    AllStopped, Ended, Ending, Exit, FailedRank, Grace, RankGroup, STOPPING, StopSignals, signal_name,
    signal_of_name,
};
pub use program::build;
pub use ready::{Pending, Ready};
pub use region::{Memory, Region, Sharing};
pub use slowed::{Link, bandwidth_of, latency_of};
pub use stats::{OpStats, Recorded};
pub use trace::CollectiveEvent;
pub use transport::Transport;
pub use transport_kind::{HAS_MPI, TransportKind, gloo_obstacle};
pub use whole_file::{
    MAX_CONFIG_BYTES, MAX_RECORDS_BYTES, MAX_TOKENIZER_BYTES, open_file, open_folder, read_file, read_text,
};
