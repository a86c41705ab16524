//! Why a checkpoint was not saved, or is not taken.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A save or a load that failed; the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// A save that came to nothing.
    #[error("checkpoint {} was not saved: rank {rank}: {cause}; earlier checkpoints are as they were", path.display())]
    NotSaved {
        /// The checkpoint.
        path: PathBuf,
        /// The first rank that failed.
        rank: usize,
        /// What happened there.
        cause: String,
    },
    /// A model that was not written.
    #[error("the model was not saved to {}: rank {rank}: {cause}", path.display())]
    ModelNotSaved {
        /// The folder.
        path: PathBuf,
        /// The first rank that failed.
        rank: usize,
        /// What happened there.
        cause: String,
    },
    /// A save that succeeded, and then something about the checkpoints beside it failed.
    #[error("checkpoint {} was saved, but afterward: {cause}", path.display())]
    AfterSave {
        /// The checkpoint.
        path: PathBuf,
        /// What happened.
        cause: String,
    },
    /// No checkpoint where one was looked for.
    #[error("{} {problem}", path.display())]
    NotFound {
        /// The folder.
        path: PathBuf,
        /// What it lacks.
        problem: Missing,
    },
    /// A tag that is not the same on all ranks, or no name for a folder.
    #[error("{0}")]
    Tag(String),
    /// A checkpoint that was refused.
    #[error("checkpoint {} cannot be loaded: {problem}", path.display())]
    NotLoaded {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
}

/// What a folder lacks in which a checkpoint was looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Missing {
    /// Neither a checkpoint, nor a folder of checkpoints.
    #[error("is not a checkpoint, and holds neither checkpoint-N folders nor a file `latest` that names one")]
    Checkpoint,
    /// Damaged checkpoints alone.
    #[error(
        "holds no whole checkpoint: {name}, the newest, cannot be loaded: {problem}; restore it from a copy, or give \
         another checkpoint"
    )]
    Whole {
        /// The folder of the newest.
        name: String,
        /// What is wrong with it.
        problem: Box<Problem>,
    },
    /// A tag that does not exist.
    #[error("holds no checkpoint \"{0}\"")]
    Tag(String),
    /// What `latest` holds is not a name of a folder.
    #[error("has a file `latest` that does not hold the name of a folder beside it")]
    Name,
}

/// What can be wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Problem {
    /// Not a checkpoint, or one whose save never finished.
    #[error("there is no state/manifest.json: it is not a checkpoint of Oarlock, or not a complete one")]
    NoManifest,
    /// A manifest that does not say what it should.
    #[error("state/manifest.json is damaged: {why}")]
    BadManifest {
        /// What is wrong in it.
        why: String,
    },
    /// Written by another version of Oarlock.
    #[error("its format has version {found}, this version of Oarlock reads those up to {known}")]
    FormatVersion {
        /// The version in the manifest.
        found: String,
        /// The newest one that is understood.
        known: u64,
    },
    /// A file that is gone.
    #[error("the file {file} is missing")]
    MissingFile {
        /// Its path inside the checkpoint.
        file: String,
    },
    /// What one machine of several wrote, where the whole is needed.
    #[error(
        "it is what one machine of its run wrote, without {file}; copy the folders of all machines to one and join them with \
         `oarlock gather-checkpoint FOLDER… --out WHOLE`"
    )]
    OnePart {
        /// A file of another machine.
        file: String,
    },
    /// A file that was cut or has grown.
    #[error("the file {file} has {found} bytes instead of {expected}")]
    Size {
        /// Its path inside the checkpoint.
        file: String,
        /// Its bytes.
        found: u64,
        /// The bytes that were written.
        expected: u64,
    },
    /// A file whose bytes have changed.
    #[error(
        "the file {file} has changed since it was written: its checksum is {found} instead of {expected}"
    )]
    Checksum {
        /// Its path inside the checkpoint.
        file: String,
        /// Its checksum.
        found: String,
        /// The checksum of what was written.
        expected: String,
    },
    /// A file that the system does not let us read.
    #[error("cannot read {file}: {cause}")]
    Unreadable {
        /// Its path inside the checkpoint.
        file: String,
        /// The operating system's word.
        cause: String,
    },
    /// A rank that could not take what all had found to be in order.
    #[error(
        "rank {rank} failed while it read: {cause}; the model now holds parts of two states, load it again"
    )]
    Interrupted {
        /// The rank.
        rank: usize,
        /// What happened there.
        cause: String,
    },
    /// A parameter of the model that the checkpoint lacks.
    #[error("it lacks the parameter \"{name}\" of this model")]
    MissingParameter {
        /// The parameter.
        name: String,
    },
    /// A parameter of the checkpoint that the model lacks.
    #[error("it holds the parameter \"{name}\", which this model does not have")]
    UnknownParameter {
        /// The parameter.
        name: String,
    },
    /// A parameter of another shape.
    #[error("\"{name}\" has the shape {found:?} in it and {expected:?} in this model")]
    Shape {
        /// The parameter.
        name: String,
        /// Its shape in the checkpoint.
        found: Vec<usize>,
        /// Its shape in the model.
        expected: Vec<usize>,
    },
    /// A frozen parameter that was held in another form.
    #[error(
        "it was saved by a run that held the frozen weight \"{name}\" in another form: quantized, in the blocks of a GGUF file, \
         or as numbers; write `quantization_bit` and `gguf_weights` as that run had them"
    )]
    OtherForm {
        /// The parameter.
        name: String,
    },
    /// A kind of state that the checkpoint lacks.
    #[error("it lacks {kind} of \"{name}\"")]
    MissingState {
        /// The kind of state.
        kind: String,
        /// The parameter.
        name: String,
    },
    /// The states of another number of models.
    #[error(
        "it holds {found} models, and this loop has {expected} (in the order in which they were prepared)"
    )]
    OtherModels {
        /// The models in the checkpoint.
        found: usize,
        /// Those of the loop.
        expected: usize,
    },
    /// What a loop keeps besides its models, in another number.
    #[error(
        "it holds the states of {found} of the loop's {what}, and this loop has {expected}; prepare and register the same, \
         in the same order"
    )]
    OtherNumber {
        /// What they are.
        what: String,
        /// How many the checkpoint holds.
        found: usize,
        /// How many the loop has.
        expected: usize,
    },
    /// A part of a loop that could not go on from its state.
    #[error("{what} does not go on from what was saved: {cause}")]
    Part {
        /// The part.
        what: String,
        /// What it said.
        cause: String,
    },
    /// A checkpoint that no custom training loop saved.
    #[error(
        "`Accelerator::save_state` did not write it, so it says nothing of a loop; `checkpoint::load` takes the model"
    )]
    NoLoop,
    /// Another optimizer's state.
    #[error("it holds the state of the optimizer {found}, and this run uses {expected}")]
    OtherOptimizer {
        /// The optimizer that wrote it.
        found: String,
        /// The one that was to go on.
        expected: String,
    },
    /// The state of the same optimizer with other settings.
    #[error("it holds {found} of \"{name}\", where this run's optimizer keeps {expected}")]
    OtherState {
        /// The parameter.
        name: String,
        /// The kinds of state in the checkpoint.
        found: String,
        /// The kinds of state that are needed.
        expected: String,
    },
    /// Other values of the frozen parameters than those that a checkpoint has left out.
    #[error("{0}")]
    OtherBase(Box<OtherBase>),
    /// The whole model of a checkpoint that holds a part of it.
    #[error(
        "it leaves out its frozen parameters ({n}, such as \"{name}\"), so the complete model is not in it: {}",
        whole_model(adapter.as_deref())
    )]
    LeftOut {
        /// The parameters that are left out.
        n: usize,
        /// The first of them.
        name: String,
        /// The folder, where it holds them as an adapter of PEFT.
        adapter: Option<PathBuf>,
    },
    /// The weights without what resuming needs.
    #[error("it holds the model alone (save_only_model): nothing to go on from")]
    OnlyModel,
    /// The weights without the state, where they were to be put together.
    #[error("it holds the model alone, in Hugging Face form already: use the folder as it is")]
    AlreadyMerged,
    /// Several models, where one was to be put together.
    #[error("it holds {n} models; say which one by its number ({how}): {models}")]
    SeveralModels {
        /// How many.
        n: usize,
        /// How to say it.
        how: String,
        /// Their numbers and parameters.
        models: String,
    },
    /// A model that the checkpoint does not have.
    #[error("it holds no model {wanted}; it has {models}")]
    NoSuchModel {
        /// The number of the model.
        wanted: usize,
        /// The numbers and parameters of those that are there.
        models: String,
    },
    /// Elements that no file holds.
    #[error("elements {start} to {end} of {kind} of \"{name}\" are in no file")]
    NotCovered {
        /// The kind of state.
        kind: String,
        /// The parameter.
        name: String,
        /// The first element.
        start: u64,
        /// The element after the last.
        end: u64,
    },
    /// Elements that lie in two places.
    #[error("elements {start} to {end} of {kind} of \"{name}\" are there twice")]
    CoveredTwice {
        /// The kind of state.
        kind: String,
        /// The parameter.
        name: String,
        /// The first element.
        start: u64,
        /// The element after the last.
        end: u64,
    },
}

/// A model whose frozen parameters are not those of the run that has left them out of its checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "it leaves out the frozen parameters, and this model holds others: {n_different} of {n} differ, first \"{name}\" with \
     the fingerprint {found} instead of {expected}; {advice}"
)]
pub struct OtherBase {
    /// The parameters that differ.
    pub n_different: usize,
    /// The parameters that are left out.
    pub n: usize,
    /// The first one that differs.
    pub name: String,
    /// Its fingerprint in this model.
    pub found: String,
    /// Its fingerprint in the run that saved.
    pub expected: String,
    /// What to do.
    pub advice: String,
}

/// How the complete model comes out of a checkpoint without frozen parameters.
fn whole_model(adapter: Option<&Path>) -> String {
    match adapter {
        Some(dir) => format!(
            "the adapter in it is merged by `oarlock export model_name_or_path=BASE adapter_name_or_path={} export_dir=OUT`",
            dir.display()
        ),
        None => {
            "load the base and this checkpoint, and write the model with `save_model` or `save_pretrained` \
                 (`Frozen::Include`)"
                .to_owned()
        }
    }
}
