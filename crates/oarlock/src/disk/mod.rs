//! Large files: written past the page cache, with checksums of what was written.

mod placed;
mod sums;
mod unnamed;

pub use placed::PAGE;
pub use sums::{Algorithm, Sum, SummedFile, sync_folder};
pub use unnamed::unnamed_file;
