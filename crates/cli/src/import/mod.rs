//! Checkpoints that DeepSpeed wrote become checkpoints of ours, bitwise identical and in little memory. Nothing in the
//! files is run: a pickle is read as data.
//!
//! ```text
//! container   a file of torch.save: a zip archive of a pickle and of the bytes of tensors
//! pickle      what the pickle describes, with a closed list of names
//! deepspeed   which element of which state lies where in the ranks' files; model_states: names, shapes, steps
//! write       the checkpoint, a chunk of elements at a time
//! ```

mod container;
mod deepspeed;
mod error;
mod model_states;
mod pickle;
mod pieces;
mod refusal;
mod write;

use std::path::{Path, PathBuf};

pub use error::{ImportError, ImportProblem, PickleProblem};

use oarlock::checkpoint::find_tag;
use oarlock_tensor::DType;

use crate::error::Result;
use container::TorchFile;

/// What [`import_checkpoint`] has read and written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The folder that was read.
    pub from: PathBuf,
    /// DeepSpeed's stage.
    pub stage: u64,
    /// The ranks that wrote it.
    pub n_ranks: usize,
    /// The parameters.
    pub n_params: usize,
    /// Their elements.
    pub n_elems: u64,
    /// The dtype of the working copies.
    pub dtype: DType,
    /// The steps of its loop.
    pub steps: u64,
    /// Whether there was a `config.json` beside it.
    pub has_config: bool,
}

/// Writes the checkpoint `to` with the state that DeepSpeed saved in `from`: a folder with a file `latest`, or the
/// folder of a tag itself. `tag` takes another than `latest`.
///
/// # Errors
/// [`ImportError`] with the file and what is wrong with it; no checkpoint in `from`; or when a
/// file cannot be written; `to` is then as it was.
pub fn import_checkpoint(from: &Path, to: &Path, tag: Option<&str>) -> Result<Imported> {
    let dir = find_tag(from, tag)?;
    let source = deepspeed::open(&dir)?;
    source.files.iter().try_for_each(TorchFile::check)?;
    // A trainer saves settings and tokenizer beside the folder of the tag.
    let beside = [from, dir.as_path(), dir.parent().unwrap_or(Path::new("."))];
    let beside = beside.into_iter().find(|folder| folder.join("config.json").is_file());
    write::write(&source, beside, to)?;
    Ok(Imported {
        stage: source.stage,
        n_ranks: source.n_ranks,
        n_params: source.parameters.len(),
        n_elems: source.parameters.values().map(|one| pieces::n_elems_of(&one.shape)).sum(),
        dtype: source.dtype,
        steps: source.steps,
        has_config: beside.is_some(),
        from: dir,
    })
}

#[cfg(test)]
mod tests;
