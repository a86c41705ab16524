//! The tensors of a GGUF file as the weights of a Hugging Face folder, dequantized where and when they are asked for.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use oarlock_comm::MappedFile;
use oarlock_engine::checkpoint::weights::{Located, MappedFiles, Packed};
use oarlock_engine::{Error, Result};
use oarlock_gguf::{Parts, Tensor, TensorType, dequantize, is_finite};
use oarlock_tensor::cpu::block_quantized::{BlockLayout, BlockType, ROWS, Unit};
use oarlock_tensor::cpu::quantized::{Format, Layout};
use rayon::prelude::*;

use super::model_keys::ModelKeys;
use super::names::RowOrder;
use super::parts::{self, Found, Model};

/// Tensors that say how positions are turned; `config.json` holds what they say.
const OF_ROPE: [&str; 3] = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// The weights of a GGUF file, under the names of its family in Hugging Face's form.
///
/// # Errors
/// A file that cannot be read, and tensors that the family does not have.
pub(crate) fn map_weights(path: &Path) -> Result<MappedFiles> {
    let maps = parts::open(path).map_err(Error::io("read", path))?;
    let found = Model::of(maps.iter().map(|map| &map[..])).and_then(|model| located(&model));
    let found = found.map_err(|problem| Error::bad_file(path, problem))?;
    maps.iter().try_for_each(MappedFile::check).map_err(Error::io("read", path))?;
    let mut mapped = MappedFiles::default();
    mapped.tensors.extend(found);
    mapped.files.extend(maps);
    Ok(mapped)
}

/// The tensors of a model.
pub(super) fn located(model: &Model<'_>) -> Found<Vec<(String, Located)>> {
    let keys = ModelKeys::of(model)?;
    let heads = keys.require::<u32>("attention.head_count")?;
    let kv_heads = keys.get::<u32>("attention.head_count_kv")?.unwrap_or(heads);
    let mut found = Vec::new();
    for (part, tensor) in model.tensors() {
        let name = tensor.name();
        if OF_ROPE.contains(&name) {
            continue;
        }
        let wrong = |problem: String| format!("the tensor {} {problem}", name.escape_debug());
        let stored = keys.architecture.stored(name).ok_or_else(|| {
            wrong(format!("has no place in a model of the architecture {}", keys.architecture.name))
        })?;
        let rows = keys.architecture.rows(name, heads, kv_heads);
        let blocks = Blocks::of(&tensor, (part, model.bytes(part)), rows).map_err(wrong)?;
        found.push((stored, Located::packed(Arc::new(blocks))));
    }
    Ok(found)
}

/// A tensor in its file.
#[derive(Debug)]
struct Blocks {
    /// The number of the file.
    file: usize,
    /// Its bytes in the file.
    bytes: Range<usize>,
    kind: TensorType,
    /// The elements of a row and the bytes that they take.
    row: usize,
    row_bytes: usize,
    n_rows: usize,
    is_vector: bool,
    rows: RowOrder,
}

impl Blocks {
    fn of(tensor: &Tensor<'_>, (number, file): (usize, &[u8]), rows: RowOrder) -> Found<Blocks> {
        if tensor.dims().len() > 2 || tensor.n_elems() == 0 {
            return Err(format!("has the shape {:?}; expected a matrix or a vector", tensor.dims()));
        }
        // What cannot be dequantized is refused now and not in the middle of a model.
        let (row, kind) = (tensor.row_elems() as usize, tensor.tensor_type());
        let block = tensor.data().get(..kind.block_bytes()).unwrap_or_default();
        dequantize(kind, block, &mut vec![0.0; kind.block_elems()])
            .map_err(|error| format!("cannot be read: {error}"))?;
        let n_rows = tensor.n_rows() as usize;
        // Of a vector each element counts as a row.
        let units = if tensor.dims().len() == 1 { row } else { n_rows };
        if !rows.fits(units) {
            return Err(format!("has {units} rows, which are not whole heads"));
        }
        // Both are of one file in memory.
        let first = tensor.data().as_ptr() as usize - file.as_ptr() as usize;
        let bytes = first..first + tensor.data().len();
        let (row_bytes, is_vector) = (bytes.len() / n_rows, tensor.dims().len() == 1);
        Ok(Blocks { file: number, bytes, kind, row, row_bytes, n_rows, is_vector, rows })
    }

    /// Whole rows as the file has them.
    fn dequantize(&self, data: &[u8], rows: Range<usize>, out: &mut [f32]) {
        let bytes = &data[rows.start * self.row_bytes..rows.end * self.row_bytes];
        // Never happens: the type was tried, and the lengths are those of whole rows. It would be seen as a weight that is not
        // finite.
        if dequantize(self.kind, bytes, out).is_err() {
            out.fill(f32::NAN);
        }
    }

    /// The place in the file of row `at` of the model.
    fn place(&self, at: usize, n_units: usize) -> usize {
        match self.rows {
            RowOrder::Interleaved(heads) => {
                let size = n_units / heads as usize;
                let (head, inside, half) = (at / size, at % size, size / 2);
                head * size + 2 * (inside % half) + inside / half
            }
            RowOrder::Same | RowOrder::PlusOne => at,
        }
    }
}

/// The types of blocks that are multiplied as they are.
pub(super) fn block_type(kind: TensorType) -> Option<BlockType> {
    Some(match kind {
        TensorType::Q4_0 => BlockType::Q4_0,
        TensorType::Q4_1 => BlockType::Q4_1,
        TensorType::Q5_0 => BlockType::Q5_0,
        TensorType::Q5_1 => BlockType::Q5_1,
        TensorType::Q8_0 => BlockType::Q8_0,
        TensorType::Q4_K => BlockType::Q4_K,
        TensorType::Q5_K => BlockType::Q5_K,
        TensorType::Q6_K => BlockType::Q6_K,
        _ => return None,
    })
}

impl Packed for Blocks {
    fn shape(&self) -> Vec<usize> {
        if self.is_vector { vec![self.row] } else { vec![self.n_rows, self.row] }
    }

    fn blocks(&self) -> Option<BlockLayout> {
        if self.is_vector || self.rows == RowOrder::PlusOne {
            return None;
        }
        BlockLayout::new(self.n_rows, self.row, block_type(self.kind)?)
    }

    fn block_words(&self, files: &[MappedFile]) -> Option<Vec<i32>> {
        let layout = self.blocks()?;
        let data = &files[self.file][self.bytes.clone()];
        let mut words = vec![0; layout.n_words()];
        words.par_chunks_mut(layout.panel_words()).enumerate().for_each(|(panel, words)| {
            let first = panel * ROWS;
            for (lane, row) in (first..self.n_rows.min(first + ROWS)).enumerate() {
                let bytes = &data[self.place(row, self.n_rows) * self.row_bytes..][..self.row_bytes];
                for (block, bytes) in bytes.chunks_exact(self.kind.block_bytes()).enumerate() {
                    // Of a type that is taken apart, and whole.
                    let Some(parts) = Parts::of(self.kind, bytes) else { continue };
                    let Parts { codes, scale, minimum, scales, minima } = parts;
                    layout.put(lane, block, &Unit { codes, scale, minimum, scales, minima }, words);
                }
            }
        });
        Some(words)
    }

    fn row_blocks(&self) -> Option<Layout> {
        let has_blocks = self.kind.is_quantized() && !self.is_vector && self.rows != RowOrder::PlusOne;
        let layout = Layout { rows: self.n_rows, cols: self.row, format: Format::Blocks(self.kind) };
        (has_blocks && layout.row_bytes() == self.row_bytes).then_some(layout)
    }

    fn row_words(&self, files: &[MappedFile], words: Range<usize>, out: &mut [f32]) -> bool {
        let data = &files[self.file][self.bytes.clone()];
        let row = |at: usize| &data[self.place(at, self.n_rows) * self.row_bytes..][..self.row_bytes];
        // Rows need not be whole words, and the last word may go beyond them.
        let byte = |at: usize| match at / self.row_bytes {
            of if of < self.n_rows => row(of)[at % self.row_bytes],
            _ => 0,
        };
        for (out, word) in out.iter_mut().zip(words.clone()) {
            let (of, inside) = (4 * word / self.row_bytes, 4 * word % self.row_bytes);
            let bytes = match inside + 4 <= self.row_bytes && of < self.n_rows {
                true => std::array::from_fn(|i| row(of)[inside + i]),
                false => std::array::from_fn(|i| byte(4 * word + i)),
            };
            *out = f32::from_bits(u32::from_le_bytes(bytes));
        }
        let first = (4 * words.start).div_ceil(self.row_bytes);
        let end = (4 * words.end).div_ceil(self.row_bytes).min(self.n_rows);
        (first..end).into_par_iter().all(|at| is_finite(self.kind, row(at)))
    }

    fn read(&self, files: &[MappedFile], elements: Range<usize>, out: &mut [f32]) {
        let data = &files[self.file][self.bytes.clone()];
        let mut one = vec![0.0; self.row];
        if self.is_vector {
            self.dequantize(data, 0..1, &mut one);
            for (out, at) in out.iter_mut().zip(elements) {
                *out = one[self.place(at, self.row)];
            }
        } else {
            let (mut at, end, mut rest) = (elements.start, elements.end, &mut out[..]);
            while at < end {
                let (row, inside) = (at / self.row, at % self.row);
                // RowOrder that lie as they are asked for are read together.
                let most = if matches!(self.rows, RowOrder::Interleaved(_)) { 1 } else { usize::MAX };
                let n_whole = if inside > 0 { 0 } else { ((end - at) / self.row).min(most) };
                let n = if n_whole > 0 { n_whole * self.row } else { (self.row - inside).min(end - at) };
                let (part, behind) = std::mem::take(&mut rest).split_at_mut(n);
                let place = self.place(row, self.n_rows);
                if n_whole > 0 {
                    self.dequantize(data, place..place + n_whole, part);
                } else {
                    self.dequantize(data, place..place + 1, &mut one);
                    part.copy_from_slice(&one[inside..inside + n]);
                }
                (at, rest) = (at + n, behind);
            }
        }
        if self.rows == RowOrder::PlusOne {
            out.iter_mut().for_each(|x| *x -= 1.0);
        }
    }
}
