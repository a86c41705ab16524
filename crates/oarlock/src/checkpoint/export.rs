//! From any checkpoint to a model in Hugging Face form, a chunk of weights at a time.

use std::path::{Path, PathBuf};

use oarlock_tensor::DType;

use super::error::{CheckpointError, Problem};
use super::manifest::Manifest;
use super::read::{Reader, verify};
use super::tags::find;
use crate::error::{Error, Result};
use crate::model::hf::{HfConfig, ModelFiles, Weight, check_weights_dtype};
use crate::shard::MASTER;

/// How [`merge_weights`] writes.
#[derive(Clone, Copy, Debug)]
pub struct MergeOptions<'a> {
    /// The tag, where the folder holds several checkpoints; without it the one that `latest` names, or the newest.
    pub tag: Option<&'a str>,
    /// The dtype of the weights; by default that in which the model was trained.
    pub dtype: Option<DType>,
    /// The most bytes of weights in one file.
    pub max_shard_bytes: u64,
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
    /// The names of the files.
    pub files: Vec<String>,
}

/// Writes the weights of a checkpoint, whatever ranks wrote it and however they held the model, into the folder `out` in
/// Hugging Face form, with the settings and the tokenizer that the checkpoint has. Checksums are verified first; memory
/// stays small, whatever the size. Of a checkpoint of several models it takes the first.
///
/// # Errors
/// When there is no such checkpoint, when it is damaged or holds no state ([`CheckpointError`]), or a file cannot be
/// written; `out` is then as it was.
pub fn merge_weights(checkpoint: &Path, out: &Path, options: &MergeOptions<'_>) -> Result<Merged> {
    let dir = find(checkpoint, options.tag)?;
    let refused = |problem| Error::from(CheckpointError::NotLoaded { path: dir.clone(), problem });
    let manifest = Manifest::open(&dir).map_err(refused)?;
    if !manifest.has_state() {
        return Err(refused(Problem::AlreadyMerged));
    }
    verify_weights(&dir, &manifest).map_err(refused)?;
    let dtype = match options.dtype {
        Some(dtype) => dtype,
        None => dtype_of(&manifest).map_err(refused)?,
    };
    let shapes = manifest.of_first_model().map(|(name, parameter)| (name, parameter.shape.as_slice()));
    let files = lay_out(Some(&dir), shapes, dtype, options.max_shard_bytes)?;
    let merged = Merged {
        checkpoint: dir.clone(),
        n_elems: files.weights().map(|(_, n_elems)| n_elems).sum(),
        dtype,
        files: files.names().map(str::to_string).collect(),
    };
    let mut reader = Reader::new(&dir, &manifest);
    files.save(out, &mut |name, elements, values| reader.read(MASTER, name, &elements, values))?;
    Ok(merged)
}

/// Verifies all bytes that hold weights, and the files that are taken over.
fn verify_weights(dir: &Path, manifest: &Manifest) -> std::result::Result<(), Problem> {
    let mut runs = Vec::new();
    for (name, parameter) in manifest.of_first_model() {
        let pieces = parameter.state.get(MASTER);
        let missing = || Problem::MissingState { kind: MASTER.into(), name: name.clone() };
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

fn dtype_of(manifest: &Manifest) -> std::result::Result<DType, Problem> {
    let known = [DType::F32, DType::BF16, DType::F16];
    known
        .into_iter()
        .find(|dtype| dtype.to_string() == manifest.plan.dtype)
        .ok_or_else(|| Problem::BadManifest { why: format!("it has the dtype {:?}", manifest.plan.dtype) })
}

/// The files of a model with these weights, with the settings and the tokenizer in a folder.
pub fn lay_out<'a>(
    dir: Option<&Path>,
    shapes: impl Iterator<Item = (&'a String, &'a [usize])>,
    dtype: DType,
    max_shard_bytes: u64,
) -> Result<ModelFiles> {
    // Settings that we do not know belong to somebody's own model: they are taken over as they are.
    let config = dir.and_then(|dir| HfConfig::read(dir).ok());
    let in_file = |name: &String| match &config {
        Some(config) => config.naming().in_file(name),
        None => name.clone(),
    };
    check_weights_dtype(dtype)?;
    let weights: Vec<Weight> = shapes
        .map(|(name, shape)| Weight {
            name: name.clone(),
            in_file: in_file(name),
            shape: shape.to_vec(),
            dtype,
        })
        .collect();
    let mut files = ModelFiles::new(&weights, max_shard_bytes)?;
    match &config {
        Some(config) => files.settle(config, dtype, dir),
        None => dir.into_iter().for_each(|dir| files.take_over(dir, &["config.json".to_string()])),
    }
    Ok(files)
}
