//! Batched matrix products of two tensors: `[.., M, K]` times `[.., K, N]`, either stored transposed.

use crate::cpu::Store;
use crate::cpu::gemm::{self, MatMut, MatRef};
use crate::error::Result;
use crate::ops::linear::products;
use crate::ops::{check_device, check_dtype, reshape, transpose, with_float, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// Which operands of a product are stored transposed, in their last two dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transposed {
    /// Neither: `[.., M, K]` and `[.., K, N]`.
    Neither,
    /// The left one: `[.., K, M]`.
    Left,
    /// The right one: `[.., N, K]`.
    Right,
    /// Both.
    Both,
}

impl Transposed {
    fn sides(self) -> (bool, bool) {
        (matches!(self, Self::Left | Self::Both), matches!(self, Self::Right | Self::Both))
    }
}

/// a `[.., M, K]` · b `[.., K, N]` → `[.., M, N]`, summed in f32. The leading dims are equal, or b has none.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    matmul_transposed(a, b, Transposed::Neither)
}

/// As [`matmul`], with operands stored transposed.
///
/// # Errors
/// As [`matmul`].
pub fn matmul_transposed(a: &Tensor, b: &Tensor, transposed: Transposed) -> Result<Tensor> {
    check_device("matmul", a, &[b])?;
    check_dtype("matmul", a, b)?;
    let (ta, tb) = transposed.sides();
    let &[ref lead @ .., a_rows, a_cols] = a.sizes() else {
        return Err(wrong_shape("matmul", "a left operand of at least two dims", a));
    };
    let &[ref b_lead @ .., b_rows, b_cols] = b.sizes() else {
        return Err(wrong_shape("matmul", "a right operand of at least two dims", b));
    };
    let (m, k) = if ta { (a_cols, a_rows) } else { (a_rows, a_cols) };
    let (b_k, n) = if tb { (b_cols, b_rows) } else { (b_rows, b_cols) };
    if b_k != k || !(b_lead.is_empty() || b_lead == lead) {
        let (rows, cols) =
            if tb { ("N".to_string(), k.to_string()) } else { (k.to_string(), "N".to_string()) };
        let expected = format!("a right operand [{rows}, {cols}], with the leading dims {lead:?} or none");
        return Err(wrong_shape("matmul", expected, b));
    }
    let sizes: Vec<usize> = lead.iter().copied().chain([m, n]).collect();
    if b_lead.is_empty() && !lead.is_empty() {
        // One product over the rows of all batches.
        if ta {
            let a = transpose(a, lead.len(), lead.len() + 1)?;
            return matmul_transposed(&a, b, if tb { Transposed::Right } else { Transposed::Neither });
        }
        let rows = lead.iter().product::<usize>() * m;
        return reshape(&matmul_transposed(&reshape(a, [rows, k])?, b, transposed)?, &sizes[..]);
    }
    let batch = Batch { n: lead.iter().product(), ta, tb };
    let recorder = Recorder::new(&[a, b], &[])?;
    let y = batch.product((a, ta), (b, tb), Shape::new(&sizes)?, "matmul")?;
    Ok(Recorder::record(recorder, y, |recorder| {
        let (da, db) = (recorder.needs_input(0), recorder.needs_input(1));
        let (a_shape, b_shape) = (*a.shape(), *b.shape());
        let (a, b) = (db.then(|| recorder.save(a)), da.then(|| recorder.save(b)));
        MatmulBackward { batch, a, b, a_shape, b_shape }
    }))
}

#[derive(Clone, Copy)]
struct Batch {
    n: usize,
    ta: bool,
    tb: bool,
}

impl Batch {
    /// The product of each matrix of `a` with that of `b`, one after the other; the flags say which to transpose.
    fn product(
        self,
        (a, ta): (&Tensor, bool),
        (b, tb): (&Tensor, bool),
        shape: Shape,
        name: &'static str,
    ) -> Result<Tensor> {
        let mut y = Tensor::uninit(shape, a.dtype(), a.device(), "activation")?;
        let matrix = |t: &Tensor| (t.sizes()[t.sizes().len() - 2], t.shape().last());
        let (a_dims, b_dims) = (matrix(a), matrix(b));
        let (rows, cols) = matrix(&y);
        let inner = if ta { a_dims.0 } else { a_dims.1 };
        let (mut launch, scratch) = products(a.device(), name, a.dtype(), self.n, [rows, cols, inner])?;
        with_float!(a.dtype(), name, T => {
            let (xs, ws, ys) = (launch.read::<T>(a)?, launch.read::<T>(b)?, launch.write::<T>(&mut y)?);
            launch.run(move |cpu| {
                let (xs, ws, ys, scratch) = (xs.slice(cpu), ws.slice(cpu), ys.slice(cpu), scratch.slice(cpu));
                for i in 0..self.n {
                    let part = |data, (rows, cols): (usize, usize), turned: bool| {
                        let (size, data): (usize, &[T]) = (rows * cols, data);
                        let matrix = MatRef::new(&data[i * size..(i + 1) * size], rows, cols);
                        if turned { matrix.t() } else { matrix }
                    };
                    let out = MatMut::new(&mut ys[i * rows * cols..(i + 1) * rows * cols], rows, cols);
                    gemm::gemm(cpu, part(xs, a_dims, ta), part(ws, b_dims, tb), out, Store::Overwrite, scratch);
                }
            })
        })?;
        Ok(y)
    }
}

struct MatmulBackward {
    batch: Batch,
    a: Option<Saved>,
    b: Option<Saved>,
    a_shape: Shape,
    b_shape: Shape,
}

impl Function for MatmulBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (batch, Batch { ta, tb, .. }) = (self.batch, self.batch);
        if let Some(b) = &self.b {
            let b = cx.get(b)?;
            // dA = dC·Bᵀ, or its transpose.
            let (left, right) = if ta { ((&b, tb), (&dy, true)) } else { ((&dy, false), (&b, !tb)) };
            cx.give(0, batch.product(left, right, self.a_shape, "matmul left grad")?)?;
        }
        if let Some(a) = &self.a {
            let a = cx.get(a)?;
            // dB = Aᵀ·dC, or its transpose.
            let (left, right) = if tb { ((&dy, true), (&a, ta)) } else { ((&a, !ta), (&dy, false)) };
            cx.give(1, batch.product(left, right, self.b_shape, "matmul right grad")?)?;
        }
        Ok(())
    }
}
