//! Why a checkpoint was not saved, or is not taken.

use std::path::PathBuf;

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
    /// A checkpoint that was refused.
    #[error("checkpoint {} cannot be loaded: {problem}", path.display())]
    NotLoaded {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
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
    #[error("its format has version {found}, this version of Oarlock reads {known}")]
    FormatVersion {
        /// The version in the manifest.
        found: String,
        /// The one that is understood.
        known: u64,
    },
    /// A file that is gone.
    #[error("the file {file} is missing")]
    MissingFile {
        /// Its path inside the checkpoint.
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
    #[error("the file {file} has changed since it was written: its checksum is {found} instead of {expected}")]
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
    #[error("rank {rank} failed while it read: {cause}; the model now holds parts of two states, load it again")]
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
    /// A kind of state that the checkpoint lacks.
    #[error("it lacks {kind} of \"{name}\"")]
    MissingState {
        /// The kind of state.
        kind: String,
        /// The parameter.
        name: String,
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
