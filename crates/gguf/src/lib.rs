//! GGUF, the file format of llama.cpp and Ollama: read, written, and its blocks of quantised numbers in both directions.
//!
//! A file has a head and data. The head holds keys with values ([`Metadata`]) and the name, shape and type of each tensor.
//! The data of the tensors follows in the same order. It is plain numbers or blocks: a few bits for each element and a few
//! scales, in one of the types of [`TensorType`].
//!
//! **Reading.** [`Gguf`] takes the bytes of a file, which are usually mapped, and checks them once. Nothing is copied:
//! [`Value`] and [`Tensor`] borrow from the bytes. A file of a stranger causes an [`Error`] that names the key or tensor and
//! its place. It never causes a panic, and never more memory than the file has bytes. [`dequantize`] turns blocks into f32.
//!
//! **Writing.** [`Writer`] writes the head and then tensor after tensor, to anything that is `io::Write`. [`quantize`] makes
//! the blocks. They are the bytes of ggml's own quantisers, on every CPU and for any number of threads.
//! Which tensor gets which type is a [`Mix`], such as `Q4_K_M`, by the rules of llama-quantize. An [`ImportanceMatrix`]
//! says which columns matter most, and quantisers round the others first.
//!
//! ```
//! use oarlock_gguf::{Gguf, Metadata, TensorPlan, TensorType, Writer};
//!
//! // The head is complete before the first tensor.
//! let mut metadata = Metadata::new();
//! metadata.set("general.architecture", "llama")?;
//! metadata.set("general.quantization_version", 2_u32)?;
//! metadata.set("llama.block_count", 1_u32)?;
//! let plans = vec![
//!     TensorPlan::new("output_norm.weight", [64], TensorType::F32),
//!     TensorPlan::new("blk.0.attn_q.weight", [64, 2], TensorType::Q8_0),
//! ];
//! let mut writer = Writer::begin(Vec::new(), &metadata, plans)?;
//!
//! // Rows in the order of the plans, as many at a time as is convenient.
//! let row: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
//! writer.write_rows(&[1.0; 64], None)?;
//! writer.write_rows(&row, None)?;
//! writer.write_rows(&row, None)?;
//! let file = writer.finish()?;
//!
//! let gguf = Gguf::new(file)?;
//! assert_eq!(gguf.require::<&str>("general.architecture")?, "llama");
//! assert_eq!(gguf.require::<u32>("llama.block_count")?, 1);
//! let query = gguf.tensor("blk.0.attn_q.weight")?;
//! assert_eq!((query.dims(), query.tensor_type()), ([64, 2].as_slice(), TensorType::Q8_0));
//! let mut second = [0.0; 64];
//! query.dequantize_rows(1, 1, &mut second)?;
//! assert!(row.iter().zip(second).all(|(a, b)| (a - b).abs() < 0.005));
//!
//! // What is missing or of another kind is an error that says so.
//! let error = gguf.require::<f32>("llama.rope.freq_base").unwrap_err();
//! assert!(error.to_string().starts_with("the file has no key llama.rope.freq_base"));
//! # Ok::<(), oarlock_gguf::Error>(())
//! ```
//!
//! What it does not do: it opens no files, knows no models, and names no tensors. Types from codebooks (`IQ1_S` to `IQ3_S`)
//! and ternary ones are listed, and their blocks are neither read nor made.

mod blocks;
mod cursor;
mod error;
mod importance;
mod metadata;
mod mix;
mod plan;
mod reader;
mod rows;
mod tensor;
mod types;
mod value;
mod writer;

pub use blocks::Parts;
pub use error::{Error, Result};
pub use importance::{Importance, ImportanceMatrix};
pub use metadata::{Metadata, ToElement, ToValue};
pub use mix::{Mix, ModelFacts, is_mixed, mix_types, sort_as_llama_quantize};
pub use plan::TensorPlan;
pub use reader::Gguf;
pub use rows::{dequantize, dequantize_alone, is_finite, quantize};
pub use tensor::{MAX_DIMS, Tensor};
pub use types::{TensorType, ValueType};
pub use value::{Array, FromValue, Value};
pub use writer::Writer;
