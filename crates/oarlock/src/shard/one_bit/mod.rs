//! The steps of the 1-bit optimizers (DeepSpeed's `OneBitAdam`, `ZeroOneAdam`, `OneBitLamb`): passes over the elements, and
//! between them the exchange of signs. Each rank has the whole state. A parameter without a gradient takes part with zeros.

mod engine;
mod exchange;
mod lamb;
mod schedule;
pub(super) mod steps;
mod values;
