//! Products with a quantized weight: parts of it are dequantized into scratch memory and multiplied, one after the other.

use std::ops::Range;

use super::expand::expand;
use super::{BLOCK, Code, Format, Layout, Parts, Scales, Weight, blocks, dynamic_map};
use crate::dtype::{DType, Float};
use crate::gemm::{MatMut, MatRef, gemm, gemm_scratch_bytes};
use crate::instances::instances;
use crate::isa::{Isa, multiversion};
use crate::pieces::TASK_ELEMS;
use crate::{Cpu, Store};

/// Elements of a weight that are dequantized at a time: a few megabytes, which stay in the cache until they are packed.
const PART: usize = 1 << 20;
/// Rows or columns of a part are a multiple of this many.
const GRAIN: usize = 64;
/// The same of weights in blocks of GGUF, of which the largest have as many elements.
const GRAIN_OF_BLOCKS: usize = 256;

/// Which product with a weight `[O, I]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `x[.., I] · Wᵀ`, as a linear layer.
    Forward,
    /// `dy[.., O] · W`, the gradient of its input.
    Backward,
}

impl Side {
    /// Columns of the operand and of the result, and how many columns of the result a part has.
    fn sizes(self, Layout { rows, cols, format }: Layout) -> (usize, usize, usize) {
        let (k, n) = match self {
            Side::Forward => (cols, rows),
            Side::Backward => (rows, cols),
        };
        let grain = if matches!(format, Format::Blocks(_)) { GRAIN_OF_BLOCKS } else { GRAIN };
        let part = (PART / k.max(1) / grain * grain).max(grain);
        (k, n, part.min(n.max(1)))
    }
}

/// Bytes of scratch memory for [`product`] with `m` rows and a weight of this size and format.
pub fn product_scratch_bytes(cpu: &Cpu, side: Side, m: usize, layout: Layout, dtype: DType) -> usize {
    let (k, n, part) = side.sizes(layout);
    let last = if n.is_multiple_of(part) { part } else { n % part };
    let product = |part| gemm_scratch_bytes(cpu, m, part, k, dtype);
    ALIGN + (k * part * dtype.size()).next_multiple_of(ALIGN) + product(part).max(product(last))
}

/// Dequantized parts begin at a multiple of this many bytes.
const ALIGN: usize = 64;

instances! {
    /// `c = a · Wᵀ` or `c = a · W`, or added to `c`: bitwise identical to what [`gemm`] gives with the dequantized
    /// weight.
    ///
    /// # Panics
    /// If the shapes do not fit, or `scratch` is smaller than [`product_scratch_bytes`].
    pub fn product[T: Float](
        cpu: &Cpu,
        side: Side,
        a: MatRef<T>,
        weight: Weight,
        c: MatMut<T>,
        store: Store,
        scratch: &mut [u8],
    ) {
        let (k, n, part) = side.sizes(weight.layout);
        assert!(a.cols == k && c.cols == n && a.rows == c.rows, "a product with a quantized weight: shapes");
        let needed = product_scratch_bytes(cpu, side, a.rows, weight.layout, T::DTYPE);
        assert!(scratch.len() >= needed, "a product with a quantized weight: {needed} bytes of scratch");
        let start = scratch.as_ptr().align_offset(ALIGN);
        let (values, scratch) = scratch[start..].split_at_mut((k * part * T::DTYPE.size()).next_multiple_of(ALIGN));
        for first in (0..n).step_by(part) {
            let part = first..(first + part).min(n);
            let values = &mut bytemuck::cast_slice_mut::<u8, T>(values)[..k * part.len()];
            let right = match side {
                Side::Forward => {
                    dequantize(cpu, weight, part.clone(), 0..k, values);
                    MatRef::new(&*values, part.len(), k).t()
                }
                Side::Backward => {
                    dequantize(cpu, weight, 0..k, part.clone(), values);
                    MatRef::new(&*values, k, part.len())
                }
            };
            let c = MatMut { data: &mut c.data[part.start..], rows: c.rows, cols: part.len(), row_stride: c.row_stride };
            gemm(cpu, a, right, c, store, scratch);
        }
    }
}

instances! {
    /// The elements `rows` x `cols` of a weight, row-major: values times scales in f32, rounded to `T`.
    ///
    /// # Panics
    /// If `out` has another number of elements.
    pub fn dequantize[T: Float](cpu: &Cpu, weight: Weight, rows: Range<usize>, cols: Range<usize>, out: &mut [T]) {
        assert_eq!(out.len(), rows.len() * cols.len(), "a part of a quantized weight");
        if out.is_empty() {
            return;
        }
        let n_rows = (TASK_ELEMS / cols.len()).max(1);
        cpu.par.chunks_mut(out, n_rows * cols.len(), |task, out| {
            for (row, out) in (rows.start + task * n_rows..).zip(out.chunks_mut(cols.len())) {
                let first = row * weight.layout.cols + cols.start;
                match weight.parts {
                    Parts::FourBit { code, codes, scales } => run(cpu.isa, cpu.isa, code, codes, scales, first, out),
                    Parts::Int8 { codes, absmax } => run_int8(cpu.isa, &codes[first..], absmax[row], out),
                    Parts::Blocks { kind, bytes } => {
                        let bytes = &bytes[row * weight.layout.row_bytes()..][..weight.layout.row_bytes()];
                        blocks::run(cpu.isa, kind, bytes, cols.start, out);
                    }
                }
            }
        });
    }
}

/// The scale of a block.
#[inline(always)]
fn scale(scales: Scales, block: usize, map: &[f32; 256]) -> f32 {
    match scales {
        Scales::Plain(absmax) => absmax[block],
        Scales::Nested { codes, absmax, offset } => {
            map[usize::from(codes[block])] * absmax[block / super::nested::BLOCK] + offset
        }
    }
}

multiversion! {
    /// Elements of 4 bits from `first` on.
    fn run[T: Float](proof: Isa, code: Code, codes: &[u8], scales: Scales, first: usize, out: &mut [T]) {
        let (values, map) = (code.values(), dynamic_map());
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            let block = at / BLOCK;
            let n = rest.len().min((block + 1) * BLOCK - at);
            let (now, later) = std::mem::take(&mut rest).split_at_mut(n);
            let scale = scale(scales, block, map);
            let mut table = [T::from_f32(0.0); 16];
            for (entry, value) in table.iter_mut().zip(values) {
                *entry = T::from_f32(value * scale);
            }
            // To whole bytes.
            let odd = at % 2;
            let (head, body) = now.split_at_mut(odd.min(n));
            for x in head {
                *x = table[usize::from(codes[at / 2] & 15)];
            }
            expand(proof, &table, &codes[(at + odd) / 2..], body);
            at += n;
            rest = later;
        }
    }
}

multiversion! {
    /// Elements of 8 bits of one row, in the order in which bitsandbytes multiplies on a CPU.
    fn run_int8[T: Float](codes: &[i8], absmax: f32, out: &mut [T]) {
        let scale = absmax * (1.0 / 127.0);
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = T::from_f32(f32::from(code) * scale);
        }
    }
}
