//! 1-bit optimizers: what they keep (`steps`), when they exchange (`schedule`), how (`exchange`), and LAMB's ratios (`lamb`).

mod exchange;
mod lamb;
mod schedule;
mod steps;

pub(in crate::shard) use steps::OneBitSteps;
