//! Which layers of a decoder get an adapter, and putting it there.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_config::config::{AdapterConfig, AdapterKind, LoraConfig, Targets};
use oarlock_engine::checkpoint::weights::{QuantizedLayers, QuantizedWeights};
use oarlock_engine::nn::{self, Layer, Linear, names_of};
use oarlock_engine::{Error, Result};
use oarlock_tensor::DType;

use super::adaptation::{
    Adaptation, AdaptedModule, LM_HEAD, LowRank, block_in, ends_with, linears, refuse_tied, scale,
};
use super::base::Base;
use super::folder::Adapter;
use super::lora::{Lora, LoraLayer};
use super::oft::{Oft, OftLayer};
use crate::model::{Decoder, HfConfig};

impl Adaptation {
    /// A new adapter of these settings for a decoder.
    ///
    /// # Errors
    /// Names that the model does not have, or nothing to train.
    pub fn new(model: &mut Decoder, hf: &HfConfig, config: &AdapterConfig) -> Result<Adaptation> {
        let linears = linears(model)?;
        let is_target = |path: &str| match &config.targets {
            Targets::All => path != LM_HEAD,
            Targets::Named(names) => names.iter().any(|name| ends_with(path, name)),
        };
        if let Targets::Named(names) = &config.targets
            && let Some(name) = names.iter().find(|name| !linears.iter().any(|path| ends_with(path, name)))
        {
            let mut known: Vec<&str> =
                linears.iter().map(|path| path.rsplit('.').next().unwrap_or(path)).collect();
            known.sort_unstable();
            known.dedup();
            let hint = match name.contains("embed_tokens") {
                true => {
                    "an embedding has no update of low rank here; train it as a whole with additional_target"
                        .into()
                }
                false => format!("choose from {}", known.join(", ")),
            };
            let key = match config.kind {
                AdapterKind::Lora(_) => "lora_target",
                AdapterKind::Oft(_) => "oft_target",
            };
            return Err(Error::Model(format!("{key}: the model has no linear layer {name}; {hint}")));
        }
        let n_inputs: BTreeMap<String, usize> = names_of(model)
            .into_iter()
            .filter_map(|named| {
                Some((named.name.strip_suffix(".weight")?.to_owned(), named.param.shape().last()))
            })
            .collect();
        let module = |path: &str| match &config.kind {
            AdapterKind::Lora(lora) => {
                // The settings are written as they are, beside the names of the family's files.
                let stored = hf.stored(&format!("{path}.weight"));
                let stored = stored.trim_end_matches(".weight");
                let found = |pattern: &str| ends_with(stored, pattern);
                let ranks = &lora.rank_pattern;
                let rank = ranks.iter().find(|(key, _)| found(key)).map_or(lora.rank, |(_, rank)| *rank);
                let alpha = lora.alpha_pattern.iter().find(|(key, _)| found(key)).map(|(_, alpha)| *alpha);
                AdaptedModule::LowRank(LowRank { rank, scale: scale(lora, rank, alpha) })
            }
            AdapterKind::Oft(oft) => {
                let n_in = n_inputs.get(path).copied().unwrap_or(1);
                AdaptedModule::Rotated(block_in(oft.blocks, n_in))
            }
        };
        let whole = whole_modules(model, &config.modules_to_save)?;
        let modules: BTreeMap<String, AdaptedModule> = linears
            .iter()
            .filter(|path| is_target(path) && !whole.contains(*path))
            .map(|path| (path.clone(), module(path)))
            .collect();
        if modules.contains_key(LM_HEAD) || whole.contains(LM_HEAD) {
            refuse_tied(hf)?;
        }
        let base = hf.folder().map(|_| hf.mark());
        Ok(Adaptation { config: config.clone(), modules, whole, with_reference: false, base })
    }

    /// One that continues an adapter that was read.
    pub fn of(adapter: &Adapter) -> Adaptation {
        let (modules, whole) = (adapter.modules(), adapter.whole());
        let base = Some(adapter.beside().clone());
        Adaptation { config: adapter.config().clone(), modules, whole, with_reference: false, base }
    }
}

/// Puts adapters into a decoder that is not prepared yet, and freezes all that is not of them.
///
/// # Errors
/// A model that is in use.
pub fn adapt(model: &mut Decoder, adaptation: &Adaptation) -> Result<()> {
    put(model, adaptation, &mut |_, linear| Ok(Base::from(linear)))
}

/// As [`adapt`], around quantized weights (QLoRA, Dettmers et al. 2023): the layers that `layers` names are quantized, with
/// an adapter or without, but for those that are trained as a whole. `dtype` is what the model will compute in; its
/// weights then come from [`QuantizedWeights::source`].
///
/// # Errors
/// A model that is in use.
pub fn adapt_quantized(
    model: &mut Decoder,
    adaptation: &Adaptation,
    layers: &QuantizedLayers,
    dtype: DType,
) -> Result<QuantizedWeights> {
    let mut weights = QuantizedWeights::default();
    put(model, adaptation, &mut |path, linear| match layers.format(path) {
        Some(format) if path != LM_HEAD && !adaptation.whole.contains(path) => {
            Ok(weights.layer(path, linear, format, dtype)?.into())
        }
        _ => Ok(linear.into()),
    })?;
    Ok(weights)
}

/// Puts adapters around what `base_of` makes of linear layers, which takes their place without an adapter as well.
fn put(
    model: &mut Decoder,
    adaptation: &Adaptation,
    base_of: &mut dyn FnMut(&str, &Linear) -> nn::Result<Base>,
) -> Result<()> {
    let is_whole =
        |name: &str| name.rsplit_once('.').is_some_and(|(module, _)| adaptation.whole.contains(module));
    let kept: BTreeSet<usize> =
        names_of(model).iter().filter(|named| is_whole(&named.name)).map(|named| named.param.id()).collect();
    for named in nn::parameters(model).iter().filter(|named| !kept.contains(&named.param.id())) {
        named.param.freeze();
    }
    let mut around = |path: &str, linear: &Linear| -> nn::Result<Option<Box<dyn Layer>>> {
        let base = base_of(path, linear)?;
        Ok(match (adaptation.modules.get(path), &adaptation.config.kind) {
            (Some(AdaptedModule::LowRank(LowRank { rank, scale })), AdapterKind::Lora(lora)) => {
                let LoraConfig { dropout, use_dora, init, .. } = *lora;
                let settings = LoraLayer { rank: *rank, scale: *scale, dropout, dora: use_dora, init };
                let lora = Lora::around(base, settings)?;
                Some(match adaptation.with_reference {
                    true => Box::new(lora.with_reference(settings)?),
                    false => Box::new(lora),
                })
            }
            (Some(AdaptedModule::Rotated(block)), AdapterKind::Oft(oft)) => {
                let settings = OftLayer { block: *block, dropout: oft.dropout, terms: oft.terms };
                let oft = Oft::around(base, settings)?;
                Some(match adaptation.with_reference {
                    true => Box::new(oft.with_reference()?),
                    false => Box::new(oft),
                })
            }
            _ => match base {
                Base::Linear(_) => None,
                Base::Quantized(layer) => Some(Box::new(layer)),
            },
        })
    };
    model.map_linears(&mut around)?;
    if adaptation.modules.contains_key(LM_HEAD) {
        model.map_lm_head(|linear| {
            let layer = around(LM_HEAD, linear)?;
            Ok(layer.unwrap_or_else(|| Box::new(linear.clone())))
        })?;
    }
    Ok(())
}

/// The paths of modules with parameters that end with one of these names. Of shared weights all names are there.
fn whole_modules(model: &Decoder, names: &[String]) -> Result<BTreeSet<String>> {
    let all = names_of(model);
    let module = |name: &str| name.rsplit_once('.').map_or(String::new(), |(module, _)| module.to_owned());
    let mut found = BTreeSet::new();
    for name in names {
        let ids: Vec<usize> = all
            .iter()
            .filter(|named| ends_with(&module(&named.name), name))
            .map(|named| named.param.id())
            .collect();
        if ids.is_empty() {
            return Err(Error::Model(format!(
                "additional_target: the model has no module {name}; name one such as embed_tokens, lm_head or norm"
            )));
        }
        found.extend(
            all.iter().filter(|named| ids.contains(&named.param.id())).map(|named| module(&named.name)),
        );
    }
    Ok(found)
}
