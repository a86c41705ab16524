//! MiniMind's `train_pretrain`: the flags of its script of 2025 (MiniMind2, which the guides use) and of its newest
//! (minimind-3) as settings of ours, with MiniMind's own defaults. `serve` is its server.

mod command;
mod flags;
mod serve;
pub(super) mod translation;

pub(crate) use command::run;
pub(crate) use flags::FLAGS;
pub(crate) use serve::{FLAGS as SERVE_FLAGS, run as serve};
