//! Ranks and collectives.

mod mapped;

pub use mapped::MappedFile;
