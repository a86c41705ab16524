//! The ranks of a run: their devices and axes, collectives on tensors and objects, metrics, seeds.

pub(crate) mod collectives;
pub(crate) mod device;
pub(crate) mod gather_with_grad;
pub(crate) mod group;
pub(crate) mod metrics;
pub(crate) mod processes;
pub(crate) mod reduce;
pub(crate) mod seed;
