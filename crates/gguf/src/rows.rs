//! Rows of numbers into the bytes of a type and back, with all their checks, on all threads.
//!
//! A row alone decides about its bytes, so they do not depend on the number of threads.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::blocks::{Scheme, Weights, scheme};
use crate::error::{Error, Result};
use crate::types::TensorType;

/// The elements that a thread takes at a time, at least.
const TASK_ELEMS: usize = 1 << 14;

/// Writes whole blocks of a type as f32 into `out`, which has the length that follows.
///
/// The numbers are those of ggml's `dequantize_row` functions, bit for bit. Integers and the types with codebooks
/// (`IQ1_S` to `IQ3_S`, `TQ1_0`, `TQ2_0`) are not read here.
///
/// # Errors
/// Other lengths, and types that cannot be read.
///
/// ```
/// use oarlock_gguf::{TensorType, dequantize, quantize};
///
/// let row: Vec<f32> = (0..256).map(|i| (i as f32 / 40.0).sin()).collect();
/// let blocks = quantize(TensorType::Q4_K, &row, 256, None)?;
/// assert_eq!(blocks.len(), 144);
///
/// let mut again = [0.0; 256];
/// dequantize(TensorType::Q4_K, &blocks, &mut again)?;
/// assert!(row.iter().zip(again).all(|(a, b)| (a - b).abs() < 0.1));
/// # Ok::<(), oarlock_gguf::Error>(())
/// ```
pub fn dequantize(tensor_type: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    check_lengths(tensor_type, bytes, out)?;
    let (elems, size) = (tensor_type.block_elems(), tensor_type.block_bytes());
    let n_task_blocks = TASK_ELEMS.div_ceil(elems);
    let decode = decoder(tensor_type)?;
    bytes
        .par_chunks(n_task_blocks * size)
        .zip(out.par_chunks_mut(n_task_blocks * elems))
        .for_each(|(bytes, out)| decode(bytes, out));
    Ok(())
}

/// As [`dequantize`], on the thread of the caller alone, who may divide the rows among threads of its own.
///
/// # Errors
/// As [`dequantize`].
pub fn dequantize_alone(tensor_type: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    check_lengths(tensor_type, bytes, out)?;
    decoder(tensor_type)?(bytes, out);
    Ok(())
}

/// The bytes of rows of `row_elems` elements in a type.
///
/// `importance` says how much the columns of a row matter, as an importance matrix does. The bytes are those of ggml's
/// reference quantisers, built without fused multiply-add, and the same on every CPU.
///
/// # Errors
/// Rows that are not whole blocks, other lengths, and types that cannot be made here. Elements that are not numbers or too
/// large for the type. An importance that is negative or not a number.
pub fn quantize(
    tensor_type: TensorType,
    values: &[f32],
    row_elems: usize,
    importance: Option<&[f32]>,
) -> Result<Vec<u8>> {
    let row_bytes = tensor_type
        .row_bytes(row_elems as u64)
        .filter(|_| row_elems > 0)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or(Error::Row { row_elems: row_elems as u64, tensor_type })?;
    let n_rows = values.len() / row_elems;
    if !values.len().is_multiple_of(row_elems) {
        let (expected, found) = ((n_rows * row_elems) as u64, values.len() as u64);
        return Err(Error::Length { what: "the slice of whole rows", expected, found });
    }
    if let Some(importance) = importance {
        check_importance(importance, row_elems)?;
    }
    let encode = encoder(tensor_type)?;
    // Fewer bytes than the values have, or as many.
    let mut bytes = vec![0; n_rows * row_bytes];
    let n_task_rows = TASK_ELEMS.div_ceil(row_elems);
    let problem = bytes
        .par_chunks_mut(n_task_rows * row_bytes)
        .zip(values.par_chunks(n_task_rows * row_elems))
        .enumerate()
        .find_map_first(|(task, (bytes, values))| {
            let rows = bytes.chunks_mut(row_bytes).zip(values.chunks(row_elems));
            rows.enumerate().find_map(|(row, (bytes, values))| {
                let (index, value) = encode(values, importance, bytes)?;
                let row = (task * n_task_rows + row) as u64;
                Some(Error::Element { row, index: index as u64, value, tensor_type })
            })
        });
    problem.map_or(Ok(bytes), Err)
}

/// Whether bytes are whole blocks of as many elements as there is room for.
fn check_lengths(tensor_type: TensorType, bytes: &[u8], out: &[f32]) -> Result<()> {
    let (elems, size) = (tensor_type.block_elems(), tensor_type.block_bytes());
    let n_blocks = bytes.len() / size;
    if !bytes.len().is_multiple_of(size) || n_blocks.checked_mul(elems) != Some(out.len()) {
        let expected = (n_blocks as u64).saturating_mul(elems as u64);
        return Err(Error::Length { what: "the place for the elements", expected, found: out.len() as u64 });
    }
    Ok(())
}

/// Whether all numbers and scales in the blocks of a type are finite. Of codebooks nothing is known.
pub fn is_finite(tensor_type: TensorType, bytes: &[u8]) -> bool {
    let numbers_are = |size: usize, is: fn(&[u8]) -> bool| bytes.par_chunks_exact(size).all(is);
    match tensor_type {
        TensorType::F32 => numbers_are(4, |bytes| f32_of(bytes).is_finite()),
        TensorType::F16 => numbers_are(2, |bytes| f16_of(bytes).is_finite()),
        TensorType::BF16 => numbers_are(2, |bytes| bf16_of(bytes).is_finite()),
        TensorType::F64 => numbers_are(8, |bytes| f64_of(bytes).is_finite()),
        _ => match scheme(tensor_type) {
            Some(scheme) => {
                bytes.par_chunks_exact(tensor_type.block_bytes()).all(|block| scheme.is_finite(block))
            }
            None => true,
        },
    }
}

/// Whether an importance has a row's length and is made of numbers that are not negative.
pub(crate) fn check_importance(importance: &[f32], row_elems: usize) -> Result<()> {
    if importance.len() != row_elems {
        let (expected, found) = (row_elems as u64, importance.len() as u64);
        return Err(Error::Length { what: "the importance of a row", expected, found });
    }
    match importance.iter().position(|weight| !(0.0..=f32::MAX).contains(weight)) {
        None => Ok(()),
        Some(column) => Err(Error::Importance {
            at: 0,
            problem: format!("column {column} has the importance {}; collect it again", importance[column]),
        }),
    }
}

/// Decodes whole blocks.
type Decode = Box<dyn Fn(&[u8], &mut [f32]) + Sync>;

/// Encodes a row with the importance of its columns. Gives the first element that the type cannot hold.
type EncodeRow = Box<dyn Fn(&[f32], Option<&[f32]>, &mut [u8]) -> Option<(usize, f32)> + Sync>;

fn decoder(tensor_type: TensorType) -> Result<Decode> {
    Ok(match tensor_type {
        TensorType::F32 => Box::new(|bytes, out| each(bytes, 4, out, f32_of)),
        TensorType::F16 => Box::new(|bytes, out| each(bytes, 2, out, |bytes| f16_of(bytes).to_f32())),
        TensorType::BF16 => Box::new(|bytes, out| each(bytes, 2, out, |bytes| bf16_of(bytes).to_f32())),
        TensorType::F64 => Box::new(|bytes, out| each(bytes, 8, out, |bytes| f64_of(bytes) as f32)),
        _ => {
            let scheme = scheme(tensor_type).ok_or(Error::Unsupported { tensor_type, done: "read" })?;
            let (elems, size) = (tensor_type.block_elems(), tensor_type.block_bytes());
            Box::new(move |bytes, out| {
                for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(elems)) {
                    scheme.decode(block, out);
                }
            })
        }
    })
}

fn encoder(tensor_type: TensorType) -> Result<EncodeRow> {
    Ok(match tensor_type {
        TensorType::F32 => Box::new(|values, _, bytes| put_each(values, bytes, f32::to_le_bytes, f32_of)),
        TensorType::F16 => Box::new(|values, _, bytes| {
            put_each(values, bytes, |x| f16::from_f32(x).to_le_bytes(), |bytes| f16_of(bytes).to_f32())
        }),
        TensorType::BF16 => Box::new(|values, _, bytes| {
            put_each(values, bytes, |x| bf16::from_f32(x).to_le_bytes(), |bytes| bf16_of(bytes).to_f32())
        }),
        _ => {
            let unsupported = Error::Unsupported { tensor_type, done: "made" };
            let Some(scheme) = scheme(tensor_type) else { return Err(unsupported) };
            let Some(encode) = scheme.encode else { return Err(unsupported) };
            let (elems, size) = (tensor_type.block_elems(), tensor_type.block_bytes());
            Box::new(move |values, importance, bytes| {
                if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                    return Some((index, values[index]));
                }
                let mean_square = match importance {
                    Some(_) => values.iter().fold(0.0, |sum, x| sum + x * x) / values.len() as f32,
                    None => 0.0,
                };
                let blocks = bytes.chunks_exact_mut(size).zip(values.chunks_exact(elems));
                for (number, (block, values)) in blocks.enumerate() {
                    let weights = importance
                        .map(|columns| Weights { columns: &columns[number * elems..][..elems], mean_square });
                    Scheme::encode(encode, scheme.planes, values, weights, block);
                    if !scheme.is_finite(block) {
                        return Some((number * elems, values[0]));
                    }
                }
                None
            })
        }
    })
}

fn each(bytes: &[u8], size: usize, out: &mut [f32], read: impl Fn(&[u8]) -> f32) {
    for (bytes, out) in bytes.chunks_exact(size).zip(out) {
        *out = read(bytes);
    }
}

fn put_each<const N: usize>(
    values: &[f32],
    bytes: &mut [u8],
    put: impl Fn(f32) -> [u8; N],
    read: impl Fn(&[u8]) -> f32,
) -> Option<(usize, f32)> {
    for (index, (value, bytes)) in values.iter().zip(bytes.chunks_exact_mut(N)).enumerate() {
        bytes.copy_from_slice(&put(*value));
        // A value that a smaller type rounds to infinity is too large for it.
        if !read(bytes).is_finite() {
            return Some((index, *value));
        }
    }
    None
}

/// The first bytes as an array; they are cut into chunks of this length.
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

fn f32_of(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(first(bytes))
}

fn f64_of(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(first(bytes))
}

fn f16_of(bytes: &[u8]) -> f16 {
    f16::from_le_bytes(first(bytes))
}

fn bf16_of(bytes: &[u8]) -> bf16 {
    bf16::from_le_bytes(first(bytes))
}
