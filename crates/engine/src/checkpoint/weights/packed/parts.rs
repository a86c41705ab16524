//! The parts of quantized matrices among the tensors of files.

use std::collections::BTreeMap;

use oarlock_comm::MappedFile;
use safetensors::Dtype;

use crate::checkpoint::weights::located::Located;

/// What is wrong with a tensor.
pub(super) type Problem = String;

/// The parts of a matrix among the tensors of files.
pub(super) struct Parts<'a> {
    pub found: &'a mut BTreeMap<String, Located>,
    pub files: &'a [MappedFile],
    pub path: &'a str,
}

impl Parts<'_> {
    /// Takes the tensor with this ending out.
    pub fn take(&mut self, ending: &str) -> Result<Located, Problem> {
        self.take_if_there(ending)
            .ok_or_else(|| format!("lacks {}{ending}, a part of a quantized weight", self.path))
    }

    pub fn take_if_there(&mut self, ending: &str) -> Option<Located> {
        self.found.remove(&format!("{}{ending}", self.path))
    }

    /// As [`Parts::take`], of a dtype and a number of elements.
    pub fn take_as(&mut self, ending: &str, dtypes: &[Dtype], n_elems: usize) -> Result<Located, Problem> {
        let part = self.take(ending)?;
        let found: usize = part.shape.iter().product();
        match dtypes.contains(&part.dtype) && found == n_elems {
            true => Ok(part),
            false => Err(format!(
                "holds {}{ending} {:?} of {:?}; expected {n_elems} elements of {:?}",
                self.path, part.shape, part.dtype, dtypes[0]
            )),
        }
    }

    pub fn bytes(&self, part: &Located) -> &[u8] {
        &self.files[part.file][part.bytes.clone()]
    }

    pub fn wrong(&self, told: &str) -> Problem {
        format!("holds a quantized weight {} {told}", self.path)
    }
}

/// The words of parts, each of which begins a word.
pub(super) fn words_of(parts: &[&[u8]]) -> Vec<i32> {
    let words = parts.iter().flat_map(|part| part.chunks(4)).map(|chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        i32::from_le_bytes(word)
    });
    words.collect()
}

pub(super) fn f32s(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk))
}
