//! The frozen model that a loss compares with, or that scores answers.

use std::path::PathBuf;

use oarlock_tensor::cpu::quantized::Format;

use crate::settings::section::{Effect, Recorded};

/// The frozen model of a preference loss. By default it is what the run begins with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReferenceArgs {
    /// `ref_model`: the folder of another model.
    pub model: Option<PathBuf>,
    /// `ref_model_adapters`: adapters that are merged into it.
    pub adapters: Vec<PathBuf>,
    /// `ref_model_quantization_bit`: how the weights of its linear layers are quantized.
    pub quantization: Option<Format>,
}

impl ReferenceArgs {
    /// What a run records of it.
    pub(super) fn record(&self) -> Vec<Recorded> {
        let ReferenceArgs { model, adapters, quantization } = self;
        vec![
            Recorded::path("ref_model", model.as_deref()),
            Recorded::printed("ref_model_adapters", Some(adapters), Effect::Nothing),
            Recorded::printed("ref_model_quantization_bit", quantization.as_ref(), Effect::Computes),
        ]
    }
}
