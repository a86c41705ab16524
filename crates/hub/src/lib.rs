//! Models and data sets from Hugging Face and ModelScope, in the cache that transformers shares.

mod environment;
mod error;
mod names;
mod reading;
mod secret;

pub use environment::Environment;
pub use error::Error;
pub use names::{Kind, Repo, RepoPath};
pub use secret::{Secret, Token, TokenSource};
