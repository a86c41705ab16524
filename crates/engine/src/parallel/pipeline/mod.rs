//! Pipeline parallelism: a model in stages, each on ranks of its own.
//!
//! [`partition`] says which units are in which part of the model, [`schedule`] what a stage does in which order; both are
//! pure. A [`Pipeline`] is one stage at work: it carries out a schedule over the links to its neighbors.

mod links;
mod partition;
pub mod schedule;
mod stages;

pub use links::message_seconds;
pub use partition::{UnitWeight, partition};
pub use stages::unit_weights;
pub use stages::{Pipeline, Work};
