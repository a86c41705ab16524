//! 1-bit optimizers: what they keep (`state`), their steps (`steps`), when they exchange (`schedule`), how (`exchange`), and LAMB's ratios (`lamb`).

mod exchange;
mod lamb;
mod schedule;
mod state;
mod steps;

pub(in crate::shard) use state::OneBitSteps;
