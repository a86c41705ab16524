//! Elements of a row in the blocks of a GGUF file.

use oarlock_gguf::{TensorType, dequantize_alone};

use crate::dtype::{DType, Float};
use crate::isa::{Isa, multiversion};

/// Elements that are dequantized at a time: a multiple of all blocks, in the first cache.
const RUN: usize = 1024;

/// The elements of a row from `first` on, as ggml dequantizes them, rounded to `T`.
pub fn run<T: Float>(isa: Isa, kind: TensorType, row: &[u8], first: usize, out: &mut [T]) {
    let (elems, size) = (kind.block_elems(), kind.block_bytes());
    let mut values = [0.0; RUN];
    let (mut at, mut rest) = (first, out);
    while !rest.is_empty() {
        let (block, inside) = (at / elems, at % elems);
        let n = rest.len().min(RUN - inside);
        let (now, later) = std::mem::take(&mut rest).split_at_mut(n);
        let n_blocks = (inside + n).div_ceil(elems);
        let bytes = &row[block * size..(block + n_blocks) * size];
        if inside == 0 && n.is_multiple_of(elems) && T::DTYPE == DType::F32 {
            decode(kind, bytes, bytemuck::cast_slice_mut(now));
        } else {
            let values = &mut values[..n_blocks * elems];
            decode(kind, bytes, values);
            round(isa, &values[inside..inside + n], now);
        }
        at += n;
        rest = later;
    }
}

fn decode(kind: TensorType, bytes: &[u8], out: &mut [f32]) {
    // Never happens: layouts have whole blocks of types that can be read. It would be seen as a loss that is no number.
    if dequantize_alone(kind, bytes, out).is_err() {
        out.fill(f32::NAN);
    }
}

multiversion! {
    /// As weights are rounded where they are stored.
    fn round[T: Float](values: &[f32], out: &mut [T]) {
        for (out, value) in out.iter_mut().zip(values) {
            *out = T::from_f32(*value);
        }
    }
}
