//! How settings are written and resolved, whatever they are: keys with types and defaults, values, files of JSON, layers that
//! stand over one another. Each value keeps its location, so that what is wrong is reported with file and line.
//!
//! The keys themselves stand beside the structs that they fill, in [`crate::config`], and those of other programs in
//! [`crate::dialect`]. The program `oarlock` builds its flags and its YAML on the same parts.

pub mod fullwidth;
pub mod json;
pub mod keys;
pub mod kwargs;
pub mod layer;
pub mod location;
pub mod most;
pub mod node;
pub mod problem;
pub mod read;
pub mod resolve;
pub mod secret;
pub mod section;
pub mod value;
mod word;

pub use problem::{Problem, Problems};
