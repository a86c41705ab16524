//! Checkpoints: everything that a run needs to go on, written by all ranks and read by any number of them.
//!
//! ```text
//! checkpoint-500/
//!   model.safetensors, config.json, …       the model in Hugging Face form, written by all ranks
//!   trainer_state.json, …                   what the caller adds
//!   state/
//!     rank-00000-of-00002.safetensors       the slices that rank 0 owned: "exp_avg/lm_head.weight/4096", f32
//!     rank-00001-of-00002.safetensors       (kind / parameter / the first of its elements)
//!     manifest.json                         which elements of what lie where; size and checksums of every file
//! ```
//!
//! The folder is written under the name `checkpoint-500.tmp-<token>` and renamed when all of it is on the disk, the
//! manifest last. Rank 0 holds a lock on it meanwhile: a temporary folder that nobody has locked was left by a run
//! that died. An older checkpoint of the same name becomes `checkpoint-500.old-<token>` for the moment between two
//! renames; whoever looks after a crash in that moment finishes the exchange.
//!
//! A loop may train several models: their parameters have `model_1/`, `model_2/` … in front, but for the first, and all
//! else is the same.
//!
//! Nothing in the files depends on the placement or on the number of ranks but the division into files. Saving goes on
//! in the background of the training ([`Saver`]).

mod assemble;
mod error;
mod export;
mod folder;
mod job;
mod load;
mod manifest;
mod model;
mod outcome;
mod publish;
mod read;
mod retain;
mod saver;
mod state_file;
mod tags;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::disk::Sum;
pub use assemble::Assembler;
pub use error::{CheckpointError, Missing, Problem};
pub use export::{MergeOptions, Merged, merge_weights};
pub use load::{Checked, check, load};
pub(crate) use manifest::qualified;
pub use manifest::{FORMAT_VERSION, FileEntry, Manifest, ModelEntry, ParameterEntry, Piece, PlanEntry};
pub use model::{save_model, shard_size};
pub(crate) use outcome::share;
pub use retain::{Listed, Newest, list, newest, remove_later, retain};
pub use saver::{Begun, Contents, Deed, Saver, save};
pub use tags::{LATEST, find, find_tag, load_checkpoint, save_checkpoint};

/// What a training loop keeps in a checkpoint besides the model's state. Every rank gets what rank 0 gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientState {
    /// The steps of the loop that are done.
    pub step: u64,
    /// The epoch that the next sample belongs to, from 0.
    pub epoch: u64,
    /// The samples consumed so far, over all epochs and ranks.
    pub consumed_samples: u64,
    /// The seeds of the run, by what they are for.
    pub seeds: BTreeMap<String, u64>,
    /// Anything else: schedule, best metrics, history. Numbers come back to the bit.
    pub client: serde_json::Map<String, serde_json::Value>,
}
