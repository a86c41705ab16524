//! The passes of a pipeline: its schedule, carried out with the times of each part.
//!
//! Where all parts take the same time and messages take none, S stages with M micro-batches of V parts each are idle for
//! `(S - 1) / (V M + S - 1)` of the passes (Narayanan et al. 2021).

use oarlock_engine::Result;
use oarlock_engine::parallel::pipeline::schedule::{Instruction, Passes, schedules};

/// Seconds of a part of the model: forward and backward pass of a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// Forward.
    pub forward: f64,
    /// Backward.
    pub backward: f64,
}

/// The passes of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Passed {
    /// Seconds until the last stage is done.
    pub seconds: f64,
    /// Messages that the stage with the most of them sends.
    pub messages: usize,
}

/// Carries out the schedule of `n_stages` stages over `n_micro` micro-batches. Part `c S + s` of `parts` is chunk `c` of stage
/// `s`. A message takes `message(from, to)` seconds, in which both of its stages are busy.
///
/// # Errors
/// A number of micro-batches that the schedule does not take.
pub fn passes(
    n_stages: usize,
    parts: &[Part],
    n_micro: usize,
    message: &dyn Fn(usize, usize) -> f64,
) -> Result<Passed> {
    let n_chunks = parts.len() / n_stages.max(1);
    let all = schedules(Passes::Training, n_stages, n_chunks, n_micro)?;
    let (mut at, mut clock, mut sent) = (vec![0; n_stages], vec![0.0f64; n_stages], vec![0; n_stages]);
    let next = |at: &[usize], stage: usize| all[stage].instructions.get(at[stage]).copied();
    // Schedules are deadlock-free: until all are done, some stage can go on.
    while let Some(stage) = (0..n_stages).find(|&stage| match next(&at, stage) {
        None => false,
        Some(Instruction::Forward(_) | Instruction::Backward(_)) => true,
        // The sender carries out a meeting, when its receiver has come to it.
        Some(Instruction::Send { what, to, place }) => matches!(
            next(&at, to),
            Some(Instruction::Receive { what: other, from, place: received })
                if from == stage && what == other && received.micro_batch == place.micro_batch
        ),
        Some(Instruction::Receive { .. }) => false,
    }) {
        match next(&at, stage) {
            Some(Instruction::Forward(place)) => {
                clock[stage] += parts[place.chunk * n_stages + stage].forward
            }
            Some(Instruction::Backward(place)) => {
                clock[stage] += parts[place.chunk * n_stages + stage].backward
            }
            Some(Instruction::Send { to, .. }) => {
                let end = clock[stage].max(clock[to]) + message(stage, to);
                (clock[stage], clock[to]) = (end, end);
                sent[stage] += 1;
                at[to] += 1;
            }
            Some(Instruction::Receive { .. }) | None => {}
        }
        at[stage] += 1;
    }
    let messages = sent.into_iter().max().unwrap_or(0);
    Ok(Passed { seconds: clock.into_iter().max_by(f64::total_cmp).unwrap_or(0.0), messages })
}
