//! The tests of the crate against a hub on this machine.

#[path = "../fake_hub/mod.rs"]
mod fake_hub;

mod datasets;
mod errors;
mod files;
mod layout;
mod modelscope;
mod python;
mod resume;
