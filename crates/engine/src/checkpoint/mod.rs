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
//! Parameters that are frozen may be left out ([`Frozen`]); the manifest has a fingerprint of each then.
//!
//! Machines that do not see one folder write a checkpoint in parts ([`Stores`]): each its ranks' state, and all else; the manifest is
//! that of the whole. [`gather`] joins the parts.
//!
//! Nothing in the files depends on the placement or on the number of ranks but the division into files. Saving goes on
//! in the background of the run ([`Saver`]).
//!
//! [`weights`] are named tensors in files, which the model in Hugging Face form and the state are written as.

mod agreed;
mod assemble;
mod export;
mod fetch;
mod folder;
mod frozen;
mod gather;
mod job;
mod load;
mod manifest;
mod model;
mod outcome;
mod parts;
mod publish;
mod read;
mod retain;
mod saver;
mod state_file;
mod stores;
mod tags;
#[cfg(test)]
mod tests;
pub mod weights;

pub use crate::disk::Sum;
pub use crate::report::error::{CheckpointError, Missing, OtherBase, Problem};
pub use agreed::{Agreed, newest_of_all};
pub use assemble::Assembler;
pub use export::{MergeOptions, Merged, merge_weights};
pub use folder::{clear_leftovers, remove};
pub use frozen::Frozen;
pub(crate) use frozen::{BASE_KEY, compare_base, describe_base};
pub use gather::{Gathered, gather};
pub(crate) use load::check_in;
pub use load::{Checked, check, load};
pub(crate) use manifest::qualified;
pub use manifest::{
    ClientState, FORMAT_VERSION, FileEntry, FrozenEntry, Manifest, ModelEntry, ParameterEntry, Piece,
    PlanEntry,
};
pub use model::{save_model, save_model_in, shard_size};
pub use outcome::{by_root, share};
pub use publish::Deed;
pub use retain::{Listed, Newest, list, newest, remove_later, retain, retain_beside};
pub use saver::{Begun, Contents, Saver, save};
pub use stores::Stores;
pub use tags::{LATEST, find, find_tag, load_checkpoint, save_checkpoint};
