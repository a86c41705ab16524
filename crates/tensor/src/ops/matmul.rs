//! Batched matrix products of two tensors: `[.., M, K]` times `[.., K, N]`, either stored transposed.

use oarlock_kernels::gemm::{self, MatMut, MatRef};
use oarlock_kernels::{Element, Result, Store};

use crate::ops::binary::broadcast_shape;
use crate::ops::linear::products;
use crate::ops::{check_device, check_dtype, expand, reshape, transpose, unsqueeze, with_float, wrong_shape};
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

/// a `[.., M, K]` · b `[.., K, N]` → `[.., M, N]`, summed in f32. The leading dims broadcast. A vector counts as a row on
/// the left and as a column on the right, and that dim goes away again.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (row, column) = (a.sizes().len() == 1, b.sizes().len() == 1);
    if a.sizes().is_empty() {
        return Err(wrong_shape("matmul", "a left operand of at least one dim", a));
    }
    if b.sizes().is_empty() {
        return Err(wrong_shape("matmul", "a right operand of at least one dim", b));
    }
    if column && b.n_elems() != a.shape().last() {
        return Err(wrong_shape("matmul", format!("a right operand of {} elements", a.shape().last()), b));
    }
    let (a, b) = (if row { &unsqueeze(a, 0)? } else { a }, if column { &unsqueeze(b, 1)? } else { b });
    let y = matmul_transposed(a, b, Transposed::Neither)?;
    let mut sizes = y.sizes().to_vec();
    if column {
        sizes.pop();
    }
    if row {
        sizes.remove(sizes.len() - if column { 1 } else { 2 });
    }
    if row || column { reshape(&y, sizes) } else { Ok(y) }
}

/// a `[B, M, K]` · b `[B, K, N]` → `[B, M, N]`, summed in f32.
///
/// # Errors
/// Shapes or dtypes that do not fit; nothing broadcasts.
pub fn bmm(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (a.sizes(), b.sizes()) {
        (&[batch, _, k], &[b_batch, b_k, _]) if batch == b_batch && k == b_k => matmul(a, b),
        (&[batch, _, k], _) => Err(wrong_shape("bmm", format!("a right operand [{batch}, {k}, N]"), b)),
        _ => Err(wrong_shape("bmm", "a left operand of three dims", a)),
    }
}

/// As [`matmul`] for operands of at least two dims, either of them stored transposed.
///
/// # Errors
/// As [`matmul`].
pub fn matmul_transposed(a: &Tensor, b: &Tensor, transposed: Transposed) -> Result<Tensor> {
    check_device("matmul", a, &[b])?;
    check_dtype("matmul", a, b)?;
    let (ta, tb) = transposed.sides();
    let &[ref a_lead @ .., a_rows, a_cols] = a.sizes() else {
        return Err(wrong_shape("matmul", "a left operand of at least two dims", a));
    };
    let &[ref b_lead @ .., b_rows, b_cols] = b.sizes() else {
        return Err(wrong_shape("matmul", "a right operand of at least two dims", b));
    };
    let (m, k) = if ta { (a_cols, a_rows) } else { (a_rows, a_cols) };
    let (b_k, n) = if tb { (b_cols, b_rows) } else { (b_rows, b_cols) };
    let lead = broadcast_shape("matmul", &Shape::new(a_lead)?, &Shape::new(b_lead)?);
    let Some(lead) = lead.ok().filter(|_| b_k == k) else {
        let (rows, cols) =
            if tb { ("N".to_string(), k.to_string()) } else { (k.to_string(), "N".to_string()) };
        let expected =
            format!("a right operand [{rows}, {cols}], with leading dims that broadcast with {a_lead:?}");
        return Err(wrong_shape("matmul", expected, b));
    };
    let lead = lead.sizes();
    let sizes = [lead, &[m, n]].concat();
    if b_lead.is_empty() && !lead.is_empty() {
        // One product over the rows of all batches.
        if ta {
            let a = transpose(a, -1, -2)?;
            return matmul_transposed(&a, b, if tb { Transposed::Right } else { Transposed::Neither });
        }
        let rows = lead.iter().product::<usize>() * m;
        return reshape(&matmul_transposed(&reshape(a, [rows, k])?, b, transposed)?, sizes);
    }
    if b_lead != lead && b_lead.iter().all(|&size| size == 1) && a_lead == lead {
        return matmul_transposed(a, &reshape(b, [b_rows, b_cols])?, transposed);
    }
    if a_lead != lead || b_lead != lead {
        let a = expand(a, [lead, &[a_rows, a_cols]].concat())?;
        let b = expand(b, [lead, &[b_rows, b_cols]].concat())?;
        return matmul_transposed(&a, &b, transposed);
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
            launch.cuda(|gpu| {
                let left = gpu.matrix(&xs, a_dims.0, a_dims.1)?.t_if(ta);
                let right = gpu.matrix(&ws, b_dims.0, b_dims.1)?.t_if(tb);
                gpu.multiply((T::DTYPE, self.n), [left, right], (&ys, T::DTYPE, Store::Overwrite), None)
            })?;
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
