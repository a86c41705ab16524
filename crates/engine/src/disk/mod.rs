//! Large files: written past the page cache, with checksums of what was written; and the record of what is whose.

mod outputs;
mod placed;
mod sums;
mod unnamed;

pub use outputs::{A_PROGRAM, Outputs, Part, RECORD, Stamp, Writer, covers};
pub use placed::PAGE;
pub use sums::{Algorithm, Sum, SummedFile, sync_folder};
pub use unnamed::unnamed_file;
