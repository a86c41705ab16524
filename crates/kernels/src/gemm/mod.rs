//! Matrix products on the CPU: C = A · B or C += A · B for f32, bf16 and f16, accumulated in f32.
//!
//! One packed design: B is copied into panels, A is read in place or packed, and a micro-kernel of the instruction set
//! computes register tiles (`kernel`). A product of a few rows reads B in place instead (`rows`). Every element of C is
//! summed in an order that depends on the shape and the code path only, never on the number of threads.

mod block;
pub mod convert;
pub(crate) mod kernel;
#[cfg(target_arch = "x86_64")]
mod kernel_avx2;
#[cfg(target_arch = "x86_64")]
mod kernel_avx512;
mod kernel_portable;
pub(crate) mod pack;
mod peak;
mod rows;

pub use peak::peak_flops;

use crate::dtype::{DType, Float, bf16, f16};
use crate::instances::instances;
use crate::{Cpu, Store};

/// A read-only matrix of `rows` x `cols`.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a, T> {
    /// The elements, row-major.
    pub data: &'a [T],
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
    /// Elements between stored rows.
    pub row_stride: usize,
    /// Whether the storage is `cols` x `rows`.
    pub transposed: bool,
}

/// A matrix of `rows` x `cols` to write, row-major.
#[derive(Debug)]
pub struct MatMut<'a, T> {
    /// The elements.
    pub data: &'a mut [T],
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
    /// Elements between rows.
    pub row_stride: usize,
}

impl<'a, T> MatRef<'a, T> {
    /// The dense row-major matrix in `data`.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        MatRef { data, rows, cols, row_stride: cols, transposed: false }
    }

    /// The transpose.
    pub fn t(self) -> Self {
        MatRef { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }

    fn fits(&self) -> bool {
        let (rows, cols) = if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) };
        fits(self.data.len(), rows, cols, self.row_stride)
    }
}

impl<'a, T> MatMut<'a, T> {
    /// The dense row-major matrix in `data`.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        MatMut { data, rows, cols, row_stride: cols }
    }
}

/// Whether `len` elements hold `rows` rows of `cols` elements, `stride` apart.
fn fits(len: usize, rows: usize, cols: usize, stride: usize) -> bool {
    if rows == 0 || cols == 0 {
        return true;
    }
    let last = (rows - 1).checked_mul(stride).and_then(|start| start.checked_add(cols));
    (rows == 1 || stride >= cols) && last.is_some_and(|end| end <= len)
}

instances! {
    /// C = A · B or C += A · B, with f32 accumulation and one rounding to `C`.
    ///
    /// `scratch` needs [`gemm_scratch_bytes`] bytes of any content and alignment.
    ///
    /// # Panics
    /// If the three shapes do not form a product, if a view reaches beyond its data, or if `scratch` is too small: callers
    /// check the shapes that they take from users.
    pub fn gemm[T: Float, C: Float; [f32, f32] [bf16, bf16] [bf16, f32] [f16, f16] [f16, f32]](
        cpu: &Cpu,
        a: MatRef<T>,
        b: MatRef<T>,
        c: MatMut<C>,
        store: Store,
        scratch: &mut [u8],
    ) {
        assert!(
            a.cols == b.rows && a.rows == c.rows && b.cols == c.cols,
            "gemm: [{}, {}] · [{}, {}] does not make [{}, {}]",
            a.rows,
            a.cols,
            b.rows,
            b.cols,
            c.rows,
            c.cols
        );
        assert!(a.fits(), "gemm: A reaches beyond its data");
        assert!(b.fits(), "gemm: B reaches beyond its data");
        assert!(fits(c.data.len(), c.rows, c.cols, c.row_stride), "gemm: C reaches beyond its data");
        let (m, n, k) = (c.rows, c.cols, a.cols);
        let needed = gemm_scratch_bytes(cpu, m, n, k, T::DTYPE);
        assert!(scratch.len() >= needed, "gemm: {needed} bytes of scratch are needed, got {}", scratch.len());
        if m == 0 || n == 0 {
            return;
        }
        if k == 0 {
            if store == Store::Overwrite {
                c.data.chunks_mut(c.row_stride.max(n)).take(m).for_each(|row| row[..n].fill(C::zeroed()));
            }
        } else if m <= rows::MAX_ROWS {
            rows::run(cpu, a, b, c, store, scratch);
        } else {
            block::run(cpu, a, b, c, store, scratch);
        }
    }
}

/// How the sums over `k` of a product associate, for callers that leave out terms that are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumOrder {
    /// Elements of `k` that are summed from zero before they are added to C: a product over one such block alone, added
    /// to C, has the bits that it has as a part of the whole.
    pub block: usize,
    /// Elements that are multiplied and added in one instruction; blocks begin at multiples of it.
    pub unit: usize,
}

/// The order of the sums of C[m, n] = A[m, k] · B[k, n] in f32 with operands of `dtype`.
pub fn sum_order(cpu: &Cpu, m: usize, n: usize, k: usize, dtype: DType) -> SumOrder {
    if m == 0 || n == 0 || k == 0 || m <= rows::MAX_ROWS {
        SumOrder { block: k.max(1), unit: 1 }
    } else {
        block::sum_order(cpu, m, n, k, dtype)
    }
}

/// Products with more rows of A than this compute each row of C alone, in the same way whatever their number.
pub const FEW_ROWS: usize = rows::MAX_ROWS;

/// The scratch that [`gemm`] needs for C[m, n] = A[m, k] · B[k, n] with operands of `dtype`.
pub fn gemm_scratch_bytes(cpu: &Cpu, m: usize, n: usize, k: usize, dtype: DType) -> usize {
    if m == 0 || n == 0 || k == 0 {
        0
    } else if m <= rows::MAX_ROWS {
        rows::scratch_bytes(m, k)
    } else {
        block::scratch_bytes(cpu, m, n, k, dtype)
    }
}
