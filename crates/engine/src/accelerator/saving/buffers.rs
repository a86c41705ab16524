//! The persistent buffers of a loop's models in its checkpoints: a safetensors file beside the state.

use std::collections::BTreeSet;
use std::path::Path;

use safetensors::tensor::{TensorView, serialize};
use safetensors::{Dtype, SafeTensors};

use crate::checkpoint::{Problem, qualified};
use crate::nn::{self, Buffer, BufferValues, Module};
use crate::{Error, Result};

/// The file in a checkpoint.
pub(crate) const FILE: &str = "buffers.safetensors";

/// A buffer of some model, under its name among all models.
fn persistent<'a>(models: impl Iterator<Item = &'a dyn Module>) -> Vec<(String, Buffer)> {
    let mut found = Vec::new();
    for (index, model) in models.enumerate() {
        let own = nn::buffers(model).into_iter().filter(|named| named.buffer.is_persistent());
        found.extend(own.map(|named| (qualified(index, &named.name), named.buffer)));
    }
    found
}

/// The bytes of the file with all persistent buffers; nothing where there are none.
///
/// # Errors
/// Buffers that are not a file together, such as two of one name.
pub(crate) fn write<'a>(models: impl Iterator<Item = &'a dyn Module>) -> Result<Option<Vec<u8>>> {
    let buffers: Vec<(String, Vec<usize>, Dtype, Vec<u8>)> = persistent(models)
        .into_iter()
        .map(|(name, buffer)| {
            let (dtype, bytes) = match buffer.values() {
                BufferValues::Floats(values) => (Dtype::F32, bytemuck::cast_slice(&values).to_vec()),
                BufferValues::Ints(values) => (Dtype::I32, bytemuck::cast_slice(&values).to_vec()),
            };
            (name, buffer.shape().sizes().to_vec(), dtype, bytes)
        })
        .collect();
    if buffers.is_empty() {
        return Ok(None);
    }
    let unusual =
        |error: safetensors::SafeTensorError| Error::Model(format!("buffers cannot be written: {error}"));
    let views = buffers
        .iter()
        .map(|(name, shape, dtype, bytes)| {
            TensorView::new(*dtype, shape.clone(), bytes).map(|view| (name.as_str(), view))
        })
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(unusual)?;
    serialize(views, None).map(Some).map_err(unusual)
}

/// What a checkpoint has for the persistent buffers of these models; they are as they were.
///
/// # Errors
/// Buffers that the checkpoint lacks, has besides, or has in another shape or of another kind.
pub(crate) fn read<'a>(
    dir: &Path,
    models: impl Iterator<Item = &'a dyn Module>,
) -> std::result::Result<Vec<(Buffer, BufferValues)>, Problem> {
    let buffers = persistent(models);
    let path = dir.join(FILE);
    let unreadable = |cause: String| Problem::Unreadable { file: FILE.to_owned(), cause };
    let bytes = match oarlock_comm::read_file(&path, oarlock_comm::MAX_RECORDS_BYTES) {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound && buffers.is_empty() => {
            return Ok(Vec::new());
        }
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            return Err(Problem::MissingFile { file: FILE.to_owned() });
        }
        read => read.map_err(|cause| unreadable(cause.to_string()))?,
    };
    let file = SafeTensors::deserialize(&bytes).map_err(|cause| unreadable(cause.to_string()))?;
    let mut unused: BTreeSet<&str> = file.names().into_iter().collect();
    let mut found = Vec::with_capacity(buffers.len());
    for (name, buffer) in buffers {
        unused.remove(name.as_str());
        let problem =
            |cause: &str| Problem::Part { what: format!("the buffer \"{name}\""), cause: cause.to_owned() };
        let tensor = file.tensor(&name).map_err(|_| problem("it is not in the checkpoint"))?;
        let (is, was) = (buffer.shape().sizes(), tensor.shape());
        if is != was {
            return Err(problem(&format!("it has the shape {was:?} there and {is:?} in this model")));
        }
        let values = match (buffer.values(), tensor.dtype()) {
            (BufferValues::Floats(_), Dtype::F32) => BufferValues::Floats(
                tensor.data().as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
            ),
            (BufferValues::Ints(_), Dtype::I32) => BufferValues::Ints(
                tensor.data().as_chunks().0.iter().map(|x| i32::from_le_bytes(*x)).collect(),
            ),
            (_, dtype) => {
                return Err(problem(&format!("its elements are {dtype:?} there, which it cannot hold")));
            }
        };
        found.push((buffer, values));
    }
    match unused.first() {
        None => Ok(found),
        Some(name) => Err(Problem::Part {
            what: format!("the buffer \"{name}\""),
            cause: "this loop's models have none of this name".to_owned(),
        }),
    }
}
