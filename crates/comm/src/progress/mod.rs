//! Collectives that proceed while their caller computes: one thread of each group runs them in the order of their calls.
//! `README.md` beside this file has the numbered invariants.

mod pending;
mod transport;
mod worker;

pub(crate) use transport::Progress;
pub(crate) use worker::runs_beside_computation;
