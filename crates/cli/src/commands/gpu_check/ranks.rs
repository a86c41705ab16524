//! Two ranks that share the GPU, with each kind of sharding, beside one rank with all rows.

use oarlock::shard::Placements;
use oarlock_tensor::DType;

use super::part::Part;
use super::training::{Training, compared};
use crate::console::Outcome;

/// Of losses of two ranks and of one.
const TOLERANCE: f64 = 1e-3;

const STAGES: [(&str, Placements); 4] = [
    ("ZeRO-0", Placements::WHOLE),
    ("ZeRO-1", Placements::OPTIMIZER),
    ("ZeRO-2", Placements::GRADIENTS),
    ("ZeRO-3", Placements::PARAMETERS),
];

pub(super) fn check(part: &mut Part<'_>, quick: bool) -> Outcome {
    let mut alone = Vec::new();
    for (stage, placements) in STAGES {
        part.check(&format!("2 ranks {stage}"), || {
            let one = Training::new(DType::F32, quick);
            let one = if quick { Training { n_steps: 2, ..one } } else { one };
            if alone.is_empty() {
                alone = one.losses()?;
            }
            let two = Training { n_ranks: 2, placements, ..one }.losses()?;
            Ok::<_, oarlock::Error>(compared(&two, &alone, TOLERANCE, true))
        })?;
    }
    Ok(())
}
