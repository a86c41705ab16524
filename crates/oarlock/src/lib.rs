//! Oarlock.

pub mod data;
