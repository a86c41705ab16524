//! What an adapter does with a decoder: which layers it goes around, and how.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_config::config::{AdapterConfig, LoraConfig, OftBlocks};
use oarlock_engine::{Error, Result};

use crate::model::{Decoder, HfConfig, ModelMark};

/// The output weights, which `Targets::All` leaves out.
pub(super) const LM_HEAD: &str = "lm_head";

/// What an adapter does with a decoder: the layers that it goes around, and the modules that are trained as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Adaptation {
    /// The settings as they are written into `adapter_config.json`.
    pub config: AdapterConfig,
    /// The layers by their paths.
    pub modules: BTreeMap<String, AdaptedModule>,
    /// The paths of the modules that are trained as a whole.
    pub whole: BTreeSet<String>,
    /// Whether the layers have a frozen copy of the adapter beside the trained one, which they are
    /// [`as_reference`](super::as_reference).
    pub with_reference: bool,
    /// The model that they are trained beside, by which their files know it again.
    pub base: Option<ModelMark>,
}

/// The adapter of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AdaptedModule {
    /// An update of low rank.
    LowRank(LowRank),
    /// Rotations of so many inputs each.
    Rotated(usize),
}

/// An update of low rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRank {
    /// Its rank.
    pub rank: usize,
    /// What it is multiplied with.
    pub scale: f32,
}

/// What an update is multiplied with.
pub(super) fn scale(config: &LoraConfig, rank: usize, alpha: Option<f64>) -> f32 {
    let alpha = alpha.or(config.alpha).unwrap_or(2.0 * config.rank as f64);
    let rank = rank as f64;
    (alpha / if config.use_rslora { rank.sqrt() } else { rank }) as f32
}

/// The inputs of a block of a layer with `n_in` of them.
pub(super) fn block_in(blocks: OftBlocks, n_in: usize) -> usize {
    match blocks {
        OftBlocks::Size(size) => nearest_divisor(n_in, size),
        OftBlocks::Count(count) => n_in / nearest_divisor(n_in, count),
    }
}

/// The divisor of `n` that is nearest to `wanted`, of two the smaller one, as PEFT chooses it.
fn nearest_divisor(n: usize, wanted: usize) -> usize {
    let divides = |by: &usize| n.is_multiple_of(*by);
    let wanted = wanted.clamp(1, n);
    let below = (1..=wanted).rev().find(divides).unwrap_or(1);
    let above = (wanted..=n).find(divides).unwrap_or(n);
    if wanted - below <= above - wanted { below } else { above }
}

/// Whether a path is `name`, or ends with it after a dot.
pub(super) fn ends_with(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The paths of all linear layers of a decoder.
pub(super) fn linears(model: &mut Decoder) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    model.map_linears(|path, _| {
        paths.push(path.to_owned());
        Ok(None)
    })?;
    paths.push(LM_HEAD.to_owned());
    Ok(paths)
}

/// Output weights that are the embedding's: an adapter of one of the two unties them in PEFT, and merging it would change
/// the other one.
pub(super) fn refuse_tied(hf: &HfConfig) -> Result<()> {
    match hf.decoder().tie_embeddings {
        true => Err(Error::Model(
            "the output weights of this model are its embedding (tie_word_embeddings), and an adapter of lm_head or \
             embed_tokens would untie them; leave them out of lora_target and additional_target"
                .to_owned(),
        )),
        false => Ok(()),
    }
}
