//! Settings that other programs' configurations say: DeepSpeed's JSON, and FSDP's in the terms of Accelerate. Each value
//! keeps its location, so that what is wrong is reported with file and line.
//!
//! The program `oarlock` builds its own table of keys, its flags and its YAML on the same parts.

pub mod accelerate;
mod deepspeed;
pub mod dialect;
pub mod fullwidth;
pub mod json;
pub mod keys;
pub mod kwargs;
pub mod layer;
pub mod location;
pub mod most;
pub mod node;
pub mod optimizer;
pub mod problem;
pub mod read;
pub mod resolve;
pub mod schedule;
pub mod secret;
pub mod table;
pub mod value;
mod word;

pub use deepspeed::{DeepSpeedArgs, DeepSpeedConfig};
pub use problem::{Problem, Problems};
