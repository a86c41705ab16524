//! Optimizers: a rule over a model's parameters in groups, learning rates and their schedules, loss scale and step.
//!
//! A loop writes [`adamw`], [`Optim::group`] and their like, and [`Accelerator::prepare`](crate::Accelerator::prepare)
//! makes an optimizer of them that steps.

mod groups;
mod loss_scale;
pub mod lr_scheduler;
mod lr_state;
mod optimizer;
pub mod schedule;
#[cfg(test)]
pub(crate) mod testing;

pub use crate::report::error::ScaleAtMinimum;
pub use groups::{
    Group, Optim, Parameters, adam, adamw, adamw_8bit, custom, onebit_adam, onebit_lamb, sgd, zero_one_adam,
};
pub use loss_scale::{LossScaler, LossScalerState, Verdict};
pub(crate) use lr_state::{LrState, other_groups};
pub use oarlock_tensor::ops::optimizer::{
    AdEmaMixArgs, AdafactorArgs, AdjustLr, CustomRule, LowRankArgs, Method, Needs, OneBit, OneBitKind,
    RmsPropArgs, Rule, Sides, Update,
};
pub use optimizer::{Optimizer, OptimizerConfig, Stepped};
pub use schedule::Schedule;
