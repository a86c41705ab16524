//! Training runs that keep their states in main memory or in files, beside one that keeps all of it on the GPU.

use oarlock::shard::Placements;
use oarlock_tensor::DType;

use super::part::Part;
use super::training::{Offloaded, Training, compared};
use crate::console::Outcome;

/// Of losses with and without: the CPU's optimizer rounds otherwise than the GPU's.
const TOLERANCE: f64 = 1e-3;

const CASES: [(&str, Offloaded, Placements); 4] = [
    ("optimizer in main memory", Offloaded::OptimizerToMemory, Placements::OPTIMIZER),
    ("optimizer in files", Offloaded::OptimizerToFiles, Placements::OPTIMIZER),
    ("parameters in main memory", Offloaded::Parameters, Placements::PARAMETERS),
    ("activations in main memory", Offloaded::Activations, Placements::WHOLE),
];

pub(super) fn check(part: &mut Part<'_>, quick: bool) -> Outcome {
    let mut on_gpu = Vec::new();
    for (name, offloaded, placements) in CASES {
        part.check(name, || {
            let whole = Training::new(DType::F32, quick);
            let whole = if quick { Training { n_steps: 2, ..whole } } else { whole };
            if on_gpu.is_empty() {
                on_gpu = whole.losses()?;
            }
            let there = Training { offloaded, placements, ..whole }.losses()?;
            Ok::<_, oarlock::Error>(compared(&there, &on_gpu, TOLERANCE, true))
        })?;
    }
    Ok(())
}
