//! Training.

pub mod schedule;
