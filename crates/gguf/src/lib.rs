//! GGUF, the file format of llama.cpp and Ollama: read, written, and its blocks of quantised numbers in both directions.

mod blocks;
mod cursor;
mod error;
mod metadata;
mod mix;
mod plan;
mod reader;
mod rows;
mod tensor;
mod types;
mod value;
mod writer;

pub use error::{Error, Result};
pub use metadata::{Metadata, ToElement, ToValue};
pub use mix::{Mix, ModelFacts, is_mixed, mix_types, sort_as_llama_quantize};
pub use plan::TensorPlan;
pub use reader::Gguf;
pub use rows::{dequantize, quantize};
pub use tensor::{MAX_DIMS, Tensor};
pub use types::{TensorType, ValueType};
pub use value::{Array, FromValue, Value};
pub use writer::Writer;
