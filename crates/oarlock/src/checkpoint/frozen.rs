//! Frozen parameters: which of them a save leaves out, and the fingerprints that a checkpoint keeps in their place.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::manifest::{FrozenEntry, Manifest, qualified};
use crate::error::{Error, OtherBase, Problem, Result};
use crate::shard::{BLOCK, Engine, MASTER, Slice, Snapshot};

/// What a save does with parameters that are not trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Frozen {
    /// A model with adapters is saved without them, any other model with them.
    ///
    /// A model has adapters if a trained parameter lies below a layer that is frozen, as `q_proj.lora_a.weight` lies
    /// below the layer of `q_proj.weight`. A frozen body with a trained head has none.
    #[default]
    Auto,
    /// They are saved.
    Include,
    /// They are left out: `exclude_frozen_parameters` of DeepSpeed. A checkpoint keeps a fingerprint of each, and whoever
    /// resumes loads the same values first.
    Exclude,
}

impl Frozen {
    /// The names of the parameters that a save of this model leaves out.
    pub(crate) fn left_out(self, engine: &Engine) -> BTreeSet<String> {
        let params: Vec<(&str, bool)> = engine.parameters().collect();
        let leaves_out = match self {
            Frozen::Auto => has_adapters(&params),
            Frozen::Include => false,
            Frozen::Exclude => true,
        };
        let frozen = params.into_iter().filter(|(_, is_trained)| leaves_out && !is_trained);
        frozen.map(|(name, _)| name.to_owned()).collect()
    }
}

/// Whether a trained parameter lies below a layer whose weight is frozen; its own bias does not.
fn has_adapters(params: &[(&str, bool)]) -> bool {
    let layer = |(name, is_trained): &(&str, bool)| match is_trained {
        true => None,
        false => name.strip_suffix(".weight").map(str::to_owned),
    };
    let frozen: BTreeSet<String> = params.iter().filter_map(layer).collect();
    let is_adapter = |name: &str| {
        let mut dots = name.match_indices('.').map(|(at, _)| at);
        dots.any(|at| frozen.contains(&name[..at]) && &name[at..] != ".bias")
    };
    params.iter().any(|(name, is_trained)| *is_trained && is_adapter(name))
}

/// A rank's part of the fingerprint of a parameter. The parts of all ranks add up to the whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FrozenPart {
    pub name: String,
    pub shape: Vec<usize>,
    pub sum: u64,
}

/// The part of a slice: the sum of a hash of each of its blocks. Ranks hold whole blocks, so the sum over all ranks is the
/// same however many there are.
pub fn part_of(snapshot: &Snapshot, slice: &Slice, name: String) -> Result<FrozenPart> {
    let mut block = (slice.elements.start / BLOCK) as u64;
    let mut sum = 0u64;
    snapshot.with_bytes(slice, &mut |bytes| {
        for bytes in bytes.chunks(BLOCK * size_of::<f32>()) {
            sum = sum.wrapping_add(XxHash3_64::oneshot_with_seed(block, bytes));
            block += 1;
        }
        Ok(())
    })?;
    Ok(FrozenPart { name, shape: slice.shape.sizes().to_vec(), sum })
}

/// The fingerprints that the parts of all ranks add up to.
pub fn joined(parts: impl Iterator<Item = FrozenPart>) -> BTreeMap<String, FrozenEntry> {
    let mut sums = BTreeMap::new();
    for FrozenPart { name, shape, sum } in parts {
        let (_, whole) = sums.entry(name).or_insert((shape, 0u64));
        *whole = whole.wrapping_add(sum);
    }
    let entry = |(name, (shape, sum))| (name, FrozenEntry { shape, fingerprint: format!("{sum:016x}") });
    sums.into_iter().map(entry).collect()
}

/// This rank's parts of what a checkpoint has left out.
pub fn parts(manifest: &Manifest, engines: &[&Engine]) -> std::result::Result<Vec<FrozenPart>, Problem> {
    let mut parts = Vec::new();
    if manifest.frozen.is_empty() {
        return Ok(parts);
    }
    for (index, engine) in engines.iter().enumerate() {
        let mut snapshot = engine.snapshot();
        for unit in 0..snapshot.units() {
            for slice in snapshot.slices(unit).iter().filter(|slice| slice.kind == MASTER) {
                let name = qualified(index, &slice.name);
                if manifest.frozen.contains_key(&name) {
                    let unreadable =
                        |error: Error| Problem::Unreadable { file: name.clone(), cause: error.to_string() };
                    parts.push(part_of(&snapshot, slice, name.clone()).map_err(unreadable)?);
                }
            }
            snapshot.release(unit);
        }
    }
    Ok(parts)
}

/// Whether the models hold what a checkpoint has left out.
pub fn check_same(
    manifest: &Manifest,
    parts: impl Iterator<Item = FrozenPart>,
    engines: &[&Engine],
) -> std::result::Result<(), Problem> {
    let held = joined(parts);
    let differs = |(name, entry): &(&String, &FrozenEntry)| held.get(*name) != Some(*entry);
    let others: Vec<(&String, &FrozenEntry)> = manifest.frozen.iter().filter(differs).collect();
    let Some((name, expected)) = others.first() else { return Ok(()) };
    let dtypes = manifest.each_model().zip(engines);
    let mut dtypes =
        dtypes.map(|((plan, _), engine)| (plan.dtype.clone(), engine.options().dtype.to_string()));
    let advice = match dtypes.find(|(saved, own)| saved != own) {
        Some((saved, own)) => format!(
            "the run that saved it computed in {saved} and this one computes in {own}, which rounds the same base \
             otherwise: resume in {saved}, or save the whole model (`Frozen::Include`)"
        ),
        None => "load the base that it was trained on (`load_pretrained`, `load_model`) before the checkpoint, or save the \
                 whole model (`Frozen::Include`)"
            .to_owned(),
    };
    Err(Problem::OtherBase(Box::new(OtherBase {
        n_different: others.len(),
        n: manifest.frozen.len(),
        name: (*name).clone(),
        found: held.get(*name).map_or_else(String::new, |entry| entry.fingerprint.clone()),
        expected: expected.fingerprint.clone(),
        advice,
    })))
}

#[cfg(test)]
mod tests {
    use super::has_adapters;

    #[test]
    fn adapters_are_trained_below_a_frozen_layer() {
        let lora = [("q_proj.weight", false), ("q_proj.lora_a.weight", true), ("head.weight", true)];
        assert!(has_adapters(&lora));
        assert!(has_adapters(&[("q_proj.weight", false), ("q_proj.lora_a", true)]));
        for other in [
            &[("body.weight", false), ("head.weight", true)][..],
            &[("body.weight", false), ("body.bias", true)],
            &[("embed.weight", false), ("embedding.proj.weight", true)],
            &[("q_proj.weight", true), ("q_proj.lora_a.weight", true)],
            &[("q_proj.weight", false), ("q_proj.lora_a.weight", false)],
            &[("weight", false), ("proj.weight", true)],
        ] {
            assert!(!has_adapters(other), "{other:?}");
        }
    }
}
