//! Checkpoints of a loop, numbered ones in a project, and models for other programs.

pub(crate) mod buffers;
pub(crate) mod hooks;
pub(crate) mod numbering;
pub(crate) mod save_model;
pub(crate) mod save_state;
pub(crate) mod saved;
pub(crate) mod stateful;
