//! Oarlock.

pub mod config;
pub mod report;
pub mod train;
