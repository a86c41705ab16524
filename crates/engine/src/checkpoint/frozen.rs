//! Frozen parameters: which of them a save leaves out, and the fingerprints that are kept in their place.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_comm::Communicator;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::manifest::{FrozenEntry, Manifest, qualified};
use super::outcome::share;
use crate::report::error::{OtherBase, Problem};
use crate::shard::{BLOCK, Engine, MASTER, Slice, Snapshot};
use crate::{Error, Result};

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
        let is_left_out = |name: &str| manifest.frozen.contains_key(&qualified(index, name));
        let of_model = parts_of(engine, is_left_out).map_err(|(name, cause)| {
            let file = qualified(index, &name);
            Problem::Unreadable { file, cause }
        })?;
        parts.extend(
            of_model.into_iter().map(|part| FrozenPart { name: qualified(index, &part.name), ..part }),
        );
    }
    Ok(parts)
}

/// This rank's parts of the parameters of a model that are wanted; or one that cannot be read, and why.
fn parts_of(
    engine: &Engine,
    is_wanted: impl Fn(&str) -> bool,
) -> std::result::Result<Vec<FrozenPart>, (String, String)> {
    let mut parts = Vec::new();
    let mut snapshot = engine.snapshot();
    for unit in 0..snapshot.units() {
        for slice in snapshot.slices(unit).iter().filter(|slice| slice.kind == MASTER) {
            if is_wanted(&slice.name) {
                let part = part_of(&snapshot, slice, slice.name.clone());
                parts.push(part.map_err(|error| (slice.name.clone(), error.to_string()))?);
            }
        }
        snapshot.release(unit);
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
    match other_base(&manifest.frozen, &held, advice) {
        None => Ok(()),
        Some(other) => Err(Problem::OtherBase(Box::new(other))),
    }
}

/// How a model differs from what was left out.
fn other_base(
    left_out: &BTreeMap<String, FrozenEntry>,
    held: &BTreeMap<String, FrozenEntry>,
    advice: String,
) -> Option<OtherBase> {
    let differs = |(name, entry): &(&String, &FrozenEntry)| held.get(*name) != Some(*entry);
    let others: Vec<(&String, &FrozenEntry)> = left_out.iter().filter(differs).collect();
    let (name, expected) = others.first()?;
    Some(OtherBase {
        n_different: others.len(),
        n: left_out.len(),
        name: (*name).clone(),
        found: held.get(*name).map_or_else(String::new, |entry| entry.fingerprint.clone()),
        expected: expected.fingerprint.clone(),
        advice,
    })
}

/// The key of a [`Base`] in the metadata of a safetensors file.
pub const BASE_KEY: &str = "oarlock.frozen";

/// What a file of adapters says of the parameters beside which they were trained.
#[derive(Serialize, Deserialize)]
struct Base {
    /// What the model computed in.
    dtype: String,
    parameters: BTreeMap<String, FrozenEntry>,
}

/// The [`Base`] of a model as JSON, where its files leave something out. All ranks call it.
///
/// # Errors
/// When a rank cannot read its part, on all ranks.
#[track_caller]
pub fn describe_base(
    comm: &Communicator,
    engine: &Engine,
    left_out: &BTreeSet<String>,
) -> Result<Option<String>> {
    if left_out.is_empty() {
        return Ok(None);
    }
    let parameters = fingerprints(comm, engine, |name| left_out.contains(name))?;
    let base = Base { dtype: engine.options().dtype.to_string(), parameters };
    let unwritten = |error| Error::Usage(format!("the fingerprints cannot be written: {error}"));
    Ok(Some(serde_json::to_string(&base).map_err(unwritten)?))
}

/// How a model differs from the base that a file describes, if it does; a description that nobody can read says nothing.
/// All ranks call it.
///
/// # Errors
/// As [`describe_base`].
#[track_caller]
pub fn compare_base(comm: &Communicator, engine: &Engine, described: &str) -> Result<Option<OtherBase>> {
    let Ok(Base { dtype, parameters }) = serde_json::from_str::<Base>(described) else { return Ok(None) };
    let held = fingerprints(comm, engine, |name| parameters.contains_key(name))?;
    let own = engine.options().dtype.to_string();
    let advice = if own == dtype {
        "load the base that they were trained on (`load_pretrained`, `load_model`)".to_owned()
    } else {
        format!(
            "they were trained in {dtype}, and this model computes in {own}, which rounds the same base otherwise"
        )
    };
    Ok(other_base(&parameters, &held, advice))
}

/// The fingerprints of the parameters of a model that are wanted.
#[track_caller]
fn fingerprints(
    comm: &Communicator,
    engine: &Engine,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, FrozenEntry>> {
    let of_ranks = share(comm, parts_of(engine, is_wanted))?;
    let of_ranks = of_ranks.map_err(|(rank, (name, cause))| {
        Error::Usage(format!("rank {rank} cannot read its part of \"{name}\": {cause}"))
    })?;
    Ok(joined(of_ranks.into_iter().flatten()))
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
