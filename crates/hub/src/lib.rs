//! Models and data sets from Hugging Face and ModelScope, in the cache that transformers shares.

mod address;
mod cache;
mod client;
mod digest;
mod environment;
mod error;
mod file;
mod folder;
mod hub;
mod huggingface;
mod listing;
mod locks;
mod metadata;
mod modelscope;
mod names;
mod nearest;
mod parallel;
mod partial;
mod pauses;
mod progress;
mod reading;
mod refusal;
mod secret;
mod space;
mod store;
mod transfer;
mod weights;

pub use environment::Environment;
pub use error::Error;
pub use hub::{Hub, Site};
pub use names::{Kind, Repo, RepoPath};
pub use progress::{Event, Progress};
pub use secret::{Secret, Token, TokenSource};
pub use store::{Snapshot, SnapshotFile};
