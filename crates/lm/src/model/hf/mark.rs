//! What tells the model of a folder from others: its kind, its sizes, and a fingerprint of samples of its weights.

use std::path::Path;

use oarlock_engine::checkpoint::weights::SafetensorsSource;
use oarlock_engine::nn::parameters;
use oarlock_engine::shard::{ParamSlice, WeightSource};
use oarlock_tensor::bf16;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::config::HfConfig;
use crate::model::decoder::Decoder;

/// Elements of each parameter that the fingerprint is made of, from its middle.
const SAMPLE_ELEMS: usize = 32;

/// A model, as an adapter remembers the one that it was trained beside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMark {
    /// Its kind.
    pub model_type: String,
    /// The width of its residual stream.
    pub hidden_size: usize,
    /// Its layers.
    pub n_layers: usize,
    /// A fingerprint of its layers; none where their weights were not read. It is the same for files of f32 and of the bf16
    /// that these round to, and does not depend on the vocabulary.
    pub layers: Option<String>,
}

impl HfConfig {
    /// What tells this model from others; reads samples of the weights in its folder.
    pub fn mark(&self) -> ModelMark {
        let decoder = self.decoder();
        ModelMark {
            model_type: decoder.family.model_type.to_owned(),
            hidden_size: decoder.hidden_size,
            n_layers: decoder.layers.len(),
            layers: self.folder().and_then(|dir| fingerprint(dir, self)),
        }
    }
}

impl ModelMark {
    /// Whether adapters of the other one have a place in this one.
    pub fn is_of_kind(&self, other: &ModelMark) -> bool {
        // MiniMind's models go under other names as well.
        const MINIMIND: &str = "minimind";
        let same_type = self.model_type == other.model_type
            || [&self.model_type, &other.model_type].iter().any(|kind| kind.as_str() == MINIMIND);
        same_type && (self.hidden_size, self.n_layers) == (other.hidden_size, other.n_layers)
    }

    /// Whether both are known, and the layers of one are not those of the other.
    pub fn has_other_layers(&self, other: &ModelMark) -> bool {
        matches!((&self.layers, &other.layers), (Some(own), Some(others)) if own != others)
    }

    /// It for people.
    pub fn describe(&self) -> String {
        format!("{}, {} layers of {}", self.model_type, self.n_layers, self.hidden_size)
    }
}

/// A hash of samples of all parameters but the embedding and the output weights; none where they cannot be read.
fn fingerprint(dir: &Path, config: &HfConfig) -> Option<String> {
    let config = &config.as_stored();
    let model = Decoder::new(config.decoder().clone(), 1).ok()?;
    let mut source = SafetensorsSource::open(dir, config, &model).ok()?;
    let is_of_vocabulary = |name: &str| name == "model.embed_tokens.weight" || name == "lm_head.weight";
    let mut bytes = Vec::new();
    let mut values = [0.0; SAMPLE_ELEMS];
    for named in parameters(&model).into_iter().filter(|named| !is_of_vocabulary(&named.name)) {
        let n_elems = named.param.shape().n_elems();
        let n = n_elems.min(SAMPLE_ELEMS);
        let start = (n_elems - n) / 2;
        source.read(&ParamSlice::of(&named, start..start + n), &mut values[..n]).ok()?;
        bytes.extend(named.name.bytes());
        bytes.extend(values[..n].iter().flat_map(|x| bf16::from_f32(*x).to_bits().to_le_bytes()));
    }
    Some(format!("{:016x}", XxHash3_64::oneshot(&bytes)))
}
