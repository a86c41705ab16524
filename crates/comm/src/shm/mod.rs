//! Ranks of one machine in shared memory. How they meet, and the numbered invariants: see `README.md` beside this file.

mod failure;
mod group;
mod host;
mod origin;
mod posted;
mod rendezvous;
mod segment;
mod socket;
mod statuses;
mod transport;

pub use host::{ShmHost, threads};
pub(crate) use host::{handed_down, join_launched};
