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

pub use host::{ShmHost, from_env, from_env_telling, join_launched, threads};
