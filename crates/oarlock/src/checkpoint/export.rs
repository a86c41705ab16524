//! From any checkpoint to a model in Hugging Face form, a chunk of weights at a time.

use std::path::{Path, PathBuf};

use oarlock_tensor::DType;

use super::manifest::{Manifest, qualified};
use super::read::{Reader, verify};
use super::tags::find;
use crate::error::{CheckpointError, Error, Problem, Result};
use crate::model::hf::{HfConfig, ModelFiles, Weight, check_weights_dtype};
use crate::model::is_of_value_head;
use crate::shard::MASTER;

/// How [`merge_weights`] writes.
#[derive(Clone, Copy, Debug)]
pub struct MergeOptions<'a> {
    /// The tag, where the folder holds several checkpoints; without it the one that `latest` names, or the newest.
    pub tag: Option<&'a str>,
    /// The number of the model, where the checkpoint holds several; they are counted from 0, in the order in which they
    /// were prepared.
    pub model: Option<usize>,
    /// The dtype of the weights; by default that in which the model was trained.
    pub dtype: Option<DType>,
    /// The most bytes of weights in one file.
    pub max_shard_bytes: u64,
    /// Whether files may be replaced that no earlier merge wrote.
    pub overwrite: bool,
}

/// What [`merge_weights`] has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The checkpoint.
    pub checkpoint: PathBuf,
    /// Elements of all weights.
    pub n_elems: usize,
    /// Their dtype.
    pub dtype: DType,
    /// Models that the checkpoint holds.
    pub n_models: usize,
    /// The names of the files.
    pub files: Vec<String>,
}

/// Writes the weights of a checkpoint, whatever ranks wrote it and however they held the model, into the folder `out` in
/// Hugging Face form, with the settings and the tokenizer that the checkpoint has. Checksums are verified first; memory
/// stays small, whatever the size.
///
/// # Errors
/// [`Error::Occupied`] where `out` holds something that may not be replaced. When there is no such checkpoint, when it is damaged, holds no state or several models of which `options` names none
/// ([`CheckpointError`]), or a file cannot be written; `out` is then as it was.
pub fn merge_weights(checkpoint: &Path, out: &Path, options: &MergeOptions<'_>) -> Result<Merged> {
    let dir = find(checkpoint, options.tag)?;
    let refused = |problem| Error::from(CheckpointError::NotLoaded { path: dir.clone(), problem });
    let manifest = Manifest::open(&dir).map_err(refused)?;
    if !manifest.has_state() {
        return Err(refused(Problem::AlreadyMerged));
    }
    let model = model_of(&manifest, options.model).map_err(refused)?;
    if let Some((name, n)) = manifest.left_out_of(model) {
        let adapter = dir.join("adapter_config.json").is_file().then(|| dir.clone());
        return Err(refused(Problem::LeftOut { n, name, adapter }));
    }
    let dtype = match options.dtype {
        Some(dtype) => dtype,
        None => dtype_of(&manifest, model).map_err(refused)?,
    };
    let shapes = manifest.of_model(model).map(|(name, parameter)| (name, parameter.shape.as_slice()));
    let files = lay_out(Some(&dir), shapes, dtype, options.max_shard_bytes)?;
    let files = files.written_by("merge-weights", options.overwrite);
    files.check(out)?;
    verify_weights(&dir, &manifest, model).map_err(refused)?;
    let merged = Merged {
        checkpoint: dir.clone(),
        n_elems: files.weights().map(|(_, n_elems)| n_elems).sum(),
        dtype,
        n_models: manifest.each_model().count(),
        files: files.names().map(str::to_string).collect(),
    };
    let mut reader = Reader::new(&dir, &manifest);
    files.save(out, &mut |name, elements, values| {
        reader.read(MASTER, &qualified(model, name), &elements, values)
    })?;
    Ok(merged)
}

/// The number of the model that is wanted.
fn model_of(manifest: &Manifest, wanted: Option<usize>) -> std::result::Result<usize, Problem> {
    let n = manifest.each_model().count();
    // A frozen model that the checkpoint leaves out, such as a reference, has no parameters in it.
    let held: Vec<usize> = (0..n).filter(|&index| manifest.of_model(index).next().is_some()).collect();
    let models = || {
        let told = held.iter().map(|&index| {
            let names: Vec<&str> = manifest.of_model(index).map(|(name, _)| name).collect();
            format!("{index} ({} parameters, {:?} first)", names.len(), names.first().unwrap_or(&""))
        });
        told.collect::<Vec<_>>().join(", ")
    };
    match wanted {
        Some(index) if index < n => Ok(index),
        Some(wanted) => Err(Problem::NoSuchModel { wanted, models: models() }),
        None if n == 1 => Ok(0),
        None if held.len() == 1 => Ok(held[0]),
        None => {
            let n = held.len();
            let how = "`oarlock merge-weights --model N`, `accelerate merge-weights CHECKPOINT/pytorch_model_fsdp_N`";
            Err(Problem::SeveralModels { n, how: how.to_owned(), models: models() })
        }
    }
}

/// Verifies all bytes that hold weights, and the files that are taken over.
fn verify_weights(dir: &Path, manifest: &Manifest, model: usize) -> std::result::Result<(), Problem> {
    let mut runs = Vec::new();
    for (name, parameter) in manifest.of_model(model) {
        let pieces = parameter.state.get(MASTER);
        let missing = || Problem::MissingState { kind: MASTER.into(), name: name.to_owned() };
        for piece in pieces.ok_or_else(missing)? {
            runs.push((piece.file.as_str(), piece.offset, piece.offset + 4 * piece.len));
        }
    }
    runs.sort_unstable();
    for file in &manifest.files {
        if !file.path.contains('/') && !file.path.ends_with(".safetensors") {
            file.sums.iter().try_for_each(|sum| verify(dir, manifest, file, sum))?;
        }
        let first = runs.partition_point(|(path, ..)| *path < file.path.as_str());
        let mut own = runs[first..].iter().take_while(|(path, ..)| *path == file.path).peekable();
        for sum in &file.sums {
            while own.next_if(|(.., end)| *end <= sum.offset).is_some() {}
            if own.peek().is_some_and(|(_, start, _)| *start < sum.end()) {
                verify(dir, manifest, file, sum)?;
            }
        }
    }
    Ok(())
}

fn dtype_of(manifest: &Manifest, model: usize) -> std::result::Result<DType, Problem> {
    let known = [DType::F32, DType::BF16, DType::F16];
    let said = manifest.each_model().nth(model).map_or("", |(plan, _)| plan.dtype.as_str());
    known
        .into_iter()
        .find(|dtype| dtype.to_string() == said)
        .ok_or_else(|| Problem::BadManifest { why: format!("it has the dtype {said:?}") })
}

/// The files of a model with these weights, with the settings and the tokenizer in a folder.
pub fn lay_out<'a>(
    dir: Option<&Path>,
    shapes: impl Iterator<Item = (&'a str, &'a [usize])>,
    dtype: DType,
    max_shard_bytes: u64,
) -> Result<ModelFiles> {
    // Settings that we do not know belong to somebody's own model: they are taken over as they are.
    let config = dir.and_then(|dir| HfConfig::read(dir).ok());
    let stored = |name: &str| match &config {
        Some(config) => config.stored(name),
        None => name.to_owned(),
    };
    check_weights_dtype(dtype)?;
    // The value head of a reward model has a file of its own.
    let (head, shapes): (Vec<_>, Vec<_>) =
        shapes.partition(|(name, _)| config.is_some() && is_of_value_head(name));
    let weights: Vec<Weight> = shapes
        .into_iter()
        .map(|(name, shape)| Weight {
            name: name.to_owned(),
            stored: stored(name),
            shape: shape.to_vec(),
            dtype: dtype.into(),
        })
        .collect();
    let head = head.into_iter().map(|(name, shape)| (name.to_owned(), shape.to_vec()));
    let mut files = ModelFiles::new(&weights, max_shard_bytes)?.with_value_head_of(head)?;
    match &config {
        Some(config) => files.settle(config, dtype, dir),
        None => dir.into_iter().for_each(|dir| files.take_over(dir, &["config.json".to_string()])),
    }
    Ok(files)
}
