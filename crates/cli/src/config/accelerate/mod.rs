//! Accelerate's own settings: the flags of its launcher, the keys of its configuration file, the variables that it
//! hands on, all of one table; and what they say about a training run in keys of ours.

pub mod file;
pub mod keys;
pub mod meaning;

#[cfg(test)]
mod tests;

pub use file::File;
pub use meaning::Engine;

pub use oarlock_config::dialect::accelerate::exported;
