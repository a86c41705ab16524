//! What an accelerator is told, by its configuration, the launcher's variables and DeepSpeed plugins, and what a call of
//! `prepare` makes of it.

pub(crate) mod config;
pub(crate) mod deepspeed_plugin;
pub(crate) mod dummies;
pub(crate) mod environment;
pub(crate) mod plan;
pub(crate) mod plugins;
pub(crate) mod project;
pub(crate) mod resolved;
