//! Ranks of one machine in shared memory. `README.md` beside this file has the protocol and its numbered invariants.

mod buffer;
mod failure;
mod group;
mod host;
mod launcher_id;
mod layout;
mod rendezvous;
mod segment;
mod seqlock;
mod socket;
mod status;
mod threads;
mod transport;

pub use host::ShmHost;
pub(crate) use host::{join_inherited, join_launched};
pub use threads::{on_threads, threads, try_on_threads};
