//! MiniMind's `train_pretrain`: the flags of its script of 2025 (MiniMind2, which the guides use) and of its newest
//! (minimind-3) as settings of ours, with MiniMind's own defaults.

mod command;
mod flags;
pub(super) mod translation;

pub(crate) use command::run;
pub(crate) use flags::FLAGS;
