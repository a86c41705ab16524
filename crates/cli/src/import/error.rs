//! Why a checkpoint of another program is not imported.

use std::path::PathBuf;

/// A file of another program's checkpoint that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} cannot be imported: {problem}", path.display())]
pub struct ImportError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: ImportProblem,
}

impl From<ImportError> for crate::error::Error {
    fn from(error: ImportError) -> crate::error::Error {
        crate::error::Error::Other(Box::new(error))
    }
}

/// What is wrong with a file, or not supported in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportProblem {
    /// Not the container that `torch.save` writes.
    #[error("it is not a file of torch.save: {0}")]
    Container(String),
    /// An entry of the container whose bytes are not those that were written.
    #[error(
        "its entry {entry} is damaged: its bytes do not have the CRC-32 that the file says; copy the file again from where \
         it was saved"
    )]
    Damaged {
        /// The entry.
        entry: String,
    },
    /// A pickle that is not taken.
    #[error("its pickle is refused: {0}")]
    Pickle(#[from] PickleProblem),
    /// Something that every such file has, as DeepSpeed calls it.
    #[error("it lacks {0}")]
    Missing(String),
    /// Something that is not as it should be.
    #[error("{what} is not {expected}")]
    Unexpected {
        /// What, as DeepSpeed calls it.
        what: String,
        /// What was expected.
        expected: String,
    },
    /// A tensor that does not lie in its file as one run.
    #[error("the tensor {what} {why}")]
    Tensor {
        /// Which.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// Partitions that do not make up the parameters.
    #[error("the partitions of {kind} end before \"{name}\" does: a file is of another save, or was cut")]
    Short {
        /// The kind of state.
        kind: &'static str,
        /// The parameter.
        name: String,
    },
    /// Partitions that make up more than the parameters.
    #[error("the partitions hold {found} elements of a rank, and its parameters take {expected}")]
    Long {
        /// The elements in the files.
        found: u64,
        /// Those of the parameters.
        expected: u64,
    },
    /// A rank's file that is gone, or one too many.
    #[error("it has the optimizer states of {found} ranks, and {expected} ranks wrote it")]
    Ranks {
        /// The files.
        found: usize,
        /// The ranks.
        expected: u64,
    },
    /// What is not imported.
    #[error("{0}")]
    Unsupported(String),
}

/// What a pickle must not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleProblem {
    /// A class or a function that is not on the list.
    #[error("it names {module}.{name}, which is not on the list of what is read; nothing of it was run")]
    Global {
        /// The module.
        module: String,
        /// The class or function.
        name: String,
    },
    /// An instruction that `torch.save` does not write.
    #[error("byte {at} holds the instruction {code:#04x}, which is not read")]
    Opcode {
        /// The instruction.
        code: u8,
        /// Where.
        at: usize,
    },
    /// An end in the middle.
    #[error("it ends in the middle")]
    Truncated,
    /// An instruction that has not got what it works on.
    #[error("before byte {at}: {why}")]
    Malformed {
        /// The byte after the instruction.
        at: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// More than any checkpoint needs.
    #[error("it has more than {limit} {what}")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How many are allowed.
        limit: usize,
    },
}
