//! Models and data sets from Hugging Face and ModelScope, in the cache that transformers shares.

mod address;
mod cache;
mod client;
mod digest;
mod environment;
mod error;
mod file;
mod locks;
mod metadata;
mod names;
mod partial;
mod pauses;
mod progress;
mod reading;
mod refusal;
mod secret;
mod space;
mod transfer;

pub use environment::Environment;
pub use error::Error;
pub use names::{Kind, Repo, RepoPath};
pub use progress::{Event, Progress};
pub use secret::{Secret, Token, TokenSource};
