//! What people see of a run: its errors, what goes to a terminal, the progress line, the logs and results in `output_dir`,
//! the loss curve, and speed.
//!
//! Nothing here decides anything: numbers come in, lines and files go out. Only rank 0 makes the objects that do so.

pub mod comms;
pub mod engine;
pub mod error;
mod file_error;
mod files;
pub mod flops;
pub mod log;
pub mod model_card;
pub mod monitor;
pub mod panics;
pub mod profile;
pub mod progress;
pub mod python;
pub mod speed;
pub mod state;
pub mod terminal;

pub use file_error::{Error, Result};
pub use files::{Rest, replace};
