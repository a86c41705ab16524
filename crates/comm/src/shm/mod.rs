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
mod transport;

pub use host::{ShmHost, threads};
pub(crate) use host::{join_inherited, join_launched};
