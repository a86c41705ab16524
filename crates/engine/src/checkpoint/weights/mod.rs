//! Named tensors in files: safetensors in and out, in folders as transformers lays them out, in whole or in slices, stored
//! as numbers or quantized; and weights that lie in memory by name. What the names mean is up to the model.

pub mod elements;
mod files;
mod index;
mod located;
mod mapped;
mod matching;
mod packed;
mod quantized;
mod save;
mod source;
mod staged;
mod state_dict;
mod stored;

pub use elements::{floats, not_finite};
pub use files::{Content, FileDType, ModelFiles, ModelWriter, Weight, WrittenFile, check_weights_dtype};
pub use index::{some_of, weight_files};
pub use located::{Located, Packed};
pub use mapped::MappedFiles;
pub use matching::{Differences, Strict};
pub use packed::StoredQuantization;
pub use quantized::{QuantizedLayers, QuantizedSource, QuantizedWeights};
pub use save::{ReadElements, WorkingCopies};
pub use source::SafetensorsSource;
pub use staged::ResultFile;
pub use staged::{Staged, staged_path};
pub use state_dict::StateDictSource;
pub use stored::StoredForm;

#[cfg(test)]
mod tests;
