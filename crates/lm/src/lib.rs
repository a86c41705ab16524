//! Language models on the engine.
//!
//! Text becomes rows of tokens ([`data`]), a description becomes a decoder with the weights of a Hugging Face folder
//! ([`model`]) or of a GGUF file in its place ([`gguf`]). Adapters stand beside it ([`adapters`]), and [`export`] makes one
//! model of both. [`train`] runs whole training runs of an objective, [`estimate`] says what memory one takes and
//! [`planner`] which way of sharding is the fastest. [`generate`] writes text, and [`text_metrics`] scores it.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests compare within tolerances"))]

// The derives name the library from outside.
extern crate oarlock_engine as oarlock;

/// As in the program `oarlock`: what runs templates of others counts their memory.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: oarlock_comm::MeteredAllocator = oarlock_comm::MeteredAllocator;

pub mod adapters;
pub mod data;
pub mod estimate;
pub mod export;
pub mod generate;
pub mod gguf;
pub mod model;
pub mod planner;
pub mod text_metrics;
pub mod train;

pub use data::Batch;
pub use train::{PreparedTokenLoader, TokenLoader};
