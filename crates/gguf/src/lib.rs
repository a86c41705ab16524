//! GGUF, the file format of llama.cpp and Ollama: read, written, and its blocks of quantised numbers in both directions.

mod blocks;
mod cursor;
mod error;
mod reader;
mod rows;
mod tensor;
mod types;
mod value;

pub use error::{Error, Result};
pub use reader::Gguf;
pub use rows::{dequantize, quantize};
pub use tensor::{MAX_DIMS, Tensor};
pub use types::{TensorType, ValueType};
pub use value::{Array, FromValue, Value};
