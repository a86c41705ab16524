//! Prepared models: how they come into being, their recorded passes, their weights and averages of them.

pub(crate) mod ddp;
pub(crate) mod ema;
pub(crate) mod memory;
pub(crate) mod parts;
pub(crate) mod passes;
pub(crate) mod prepare;
pub(crate) mod prepared;
pub(crate) mod prepared_state;
pub(crate) mod weights;
