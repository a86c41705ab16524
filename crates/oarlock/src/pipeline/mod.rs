//! Pipeline parallelism: a model in stages, each on ranks of its own.

mod partition;
pub mod schedule;

pub use partition::{UnitWeight, partition};
