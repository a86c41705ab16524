//! From any checkpoint to a model in Hugging Face form, a chunk of weights at a time.

use std::path::{Path, PathBuf};

use oarlock_tensor::DType;

use super::manifest::{Manifest, qualified};
use super::read::{Reader, verify};
use super::tags::find;
use super::weights::ModelFiles;
use crate::report::error::{CheckpointError, Problem};
use crate::shard::MASTER;
use crate::{Error, Result};

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

/// Which files a merged model gets: called with the folder of the checkpoint, the names and shapes of the parameters, the
/// dtype of the weights and the most bytes of weights in one file.
pub type LayOut<'a> = dyn Fn(&Path, Vec<(String, Vec<usize>)>, DType, u64) -> Result<ModelFiles> + 'a;

/// Writes the weights of a checkpoint, whatever ranks wrote it and however they held the model, into the files that
/// `lay_out` plans for the folder `out`. Checksums are verified first; memory stays small, whatever the size.
/// `model::merge_weights` writes folders in Hugging Face form.
///
/// # Errors
/// [`Error::Occupied`] where `out` holds something that may not be replaced. When there is no such checkpoint, when it is damaged, holds no state or several models of which `options` names none
/// ([`CheckpointError`]), or a file cannot be written; `out` is then as it was.
pub fn merge_weights(
    checkpoint: &Path,
    out: &Path,
    options: &MergeOptions<'_>,
    lay_out: &LayOut<'_>,
) -> Result<Merged> {
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
    let shapes = manifest.of_model(model).map(|(name, parameter)| (name.to_owned(), parameter.shape.clone()));
    let files = lay_out(&dir, shapes.collect(), dtype, options.max_shard_bytes)?;
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
        let message = held.iter().map(|&index| {
            let names: Vec<&str> = manifest.of_model(index).map(|(name, _)| name).collect();
            format!("{index} ({} parameters, {:?} first)", names.len(), names.first().unwrap_or(&""))
        });
        message.collect::<Vec<_>>().join(", ")
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
