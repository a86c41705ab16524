//! Oarlock.

pub mod config;
pub mod train;
