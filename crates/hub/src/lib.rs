//! Models and data sets from Hugging Face and ModelScope, in the cache that transformers shares.
//!
//! ```no_run
//! use oarlock_hub::{DatasetQuery, Event, Hub};
//!
//! # fn main() -> Result<(), oarlock_hub::Error> {
//! let hub = Hub::from_env()?.with_progress(|event| {
//!     if let Event::Bytes { path, n_bytes } = event {
//!         eprintln!("{path}: {n_bytes} more bytes");
//!     }
//! });
//! let model = hub.model("Qwen/Qwen2.5-0.5B", None)?;
//! println!("{} at {}", model.folder.display(), model.commit);
//! let rows = hub.dataset("openai/gsm8k", &DatasetQuery { config: Some("main".into()), ..Default::default() })?;
//! for split in &rows.splits {
//!     println!("{}: {} files", split.name, split.files.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # How a model comes here
//!
//! [`Environment`] reads the variables that Hugging Face's own programs read, once. The hub says which commit a revision
//! names, and lists the files of that commit; `weights` chooses those that a model is read from. Each of them is in the
//! cache, or it is asked for: `metadata` tells what names its content, and `transfer` brings the content.
//!
//! What has come once needs no network. A revision that is a commit is not asked for again; any other is, and if the hub
//! does not answer, the commit of the last answer counts and a [`Event::Note`] says so. With `HF_HUB_OFFLINE` nothing is asked.
//!
//! # What holds for every file
//!
//! 1. The cache has the layout of huggingface_hub, byte by byte (`cache`). It may be shared, also while others write to it.
//! 2. A file gets its name in the cache only when it is complete and its hash is the one that the hub names (`digest`).
//! 3. Nothing is opened for writing where a link could lead elsewhere. Names that a server gives are checked first
//!    (`names`), and no name of it leads out of the folder that it is meant for.
//! 4. A download that was broken off goes on where it ended, also after a kill and in another process. Two processes never
//!    write the same file (`partial`); locks only spare them double work (`locks`).
//! 5. The token is shown to the hub alone: not to the servers that redirects lead to, and in no message (`client`).
//! 6. An [`Error`] says what is wrong, why, and what to do.

mod address;
mod api;
mod cache;
mod card;
mod client;
mod dataset;
mod digest;
mod environment;
mod error;
mod file;
mod folder;
mod glob;
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
mod splits;
mod store;
mod transfer;
mod weights;

pub use dataset::{Dataset, DatasetQuery, Format, Split};
pub use environment::Environment;
pub use error::Error;
pub use hub::{Hub, Site};
pub use names::{Kind, Repo, RepoPath};
pub use progress::{Event, Progress};
pub use secret::{Secret, Token, TokenSource};
pub use store::{Snapshot, SnapshotFile};
