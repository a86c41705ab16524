//! The prediction of a training run: its model states, the activations of a step and the program itself.

use super::activations::DryRun;
use super::part::Part;
use super::settings::Settings;
use super::size::ModelSize;
use super::states::model_states;

/// A prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// What it is a prediction of.
    pub settings: Settings,
    /// What takes memory, model states first.
    pub parts: Vec<Part>,
    /// Whether activations are among them.
    pub complete: bool,
}

impl Estimate {
    /// Bytes of the rank with the largest share.
    pub fn rank(&self) -> u64 {
        self.parts.iter().map(|part| part.rank).sum()
    }

    /// Bytes of all ranks of the machine.
    pub fn machine(&self) -> u64 {
        self.parts.iter().map(|part| part.machine).sum()
    }

    /// Bytes by the name of a part; 0 where there is none of that name.
    pub fn part(&self, name: &str) -> u64 {
        self.parts.iter().filter(|part| part.name == name).map(|part| part.rank).sum()
    }
}

/// Adds what the program itself and a step's activations take to the model states.
pub fn estimate(size: &ModelSize, settings: &Settings, step: Option<&DryRun>, program: u64) -> Estimate {
    let mut parts = model_states(size, settings, step);
    if let Some(step) = step {
        parts.push(Part::each("activations, logits, scratch", step.pool_bytes, settings.ranks));
    }
    parts.push(Part::each("program, data", program, settings.ranks));
    parts.retain(|part| part.machine > 0);
    if let Some(here) = settings.apart {
        for part in &mut parts {
            (part.machine, part.shared) = (part.rank.saturating_mul(here as u64), false);
        }
    }
    Estimate { settings: settings.clone(), parts, complete: step.is_some() }
}
