//! Linear: y = x·Wᵀ + b over the rows of x. Its weight gradient goes straight into the flat gradient buffer.

use crate::cpu::gemm::{self, MatMut, MatRef};
use crate::cpu::{Store, elementwise};
use crate::device::{Device, Kind};
use crate::dtype::Float;
use crate::error::Result;
use crate::ops::{check_dtype, with_float, wrong_shape};
use crate::param::Param;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// How a weight matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightLayout {
    /// `[outputs, inputs]`, as `torch.nn.Linear` keeps it.
    OutIn,
    /// `[inputs, outputs]`, as GPT-2's `Conv1D` keeps it.
    InOut,
}

/// x `[.., I]`, weight `[O, I]` (or `[I, O]`), bias `[O]` → `[.., O]`, in x's dtype, summed in f32.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn linear(x: &Tensor, weight: &Param, bias: Option<&Param>, layout: WeightLayout) -> Result<Tensor> {
    let mut params = vec![weight];
    params.extend(bias);
    let recorder = Recorder::new(&[x], &params)?;
    let op = Linear::new(x, weight, bias, layout)?;
    let y = op.forward(x)?;
    let Some(recorder) = recorder else { return Ok(y) };
    let x = if recorder.needs_grad() { Some(recorder.save(x)) } else { None };
    let [y] = recorder.finish([y], LinearBackward { op, x });
    Ok(y)
}

#[derive(Clone)]
struct Linear {
    weight: Param,
    bias: Option<Param>,
    layout: WeightLayout,
    n_in: usize,
    n_out: usize,
}

impl Linear {
    fn new(x: &Tensor, weight: &Param, bias: Option<&Param>, layout: WeightLayout) -> Result<Linear> {
        let (n_out, n_in) = match (weight.shape().sizes(), layout) {
            (&[o @ (1..), i], WeightLayout::OutIn) | (&[i, o @ (1..)], WeightLayout::InOut) => (o, i),
            _ => return Err(wrong_shape("linear", "a weight of two dims, with at least one output", &weight.weight()?)),
        };
        if x.sizes().is_empty() || x.shape().last() != n_in {
            return Err(wrong_shape("linear", format!("x of shape [.., {n_in}]"), x));
        }
        if let Some(bias) = bias
            && bias.shape().sizes() != [n_out]
        {
            return Err(wrong_shape("linear", format!("a bias of shape [{n_out}]"), &bias.weight()?));
        }
        Ok(Linear { weight: weight.clone(), bias: bias.cloned(), layout, n_in, n_out })
    }

    fn flops(&self, x: &Tensor) -> u64 {
        2 * (x.shape().n_rows() * self.n_in * self.n_out) as u64
    }

    /// The weight as the matrix that x is multiplied with from the right: `[I, O]`.
    fn as_right<'a, T: Float>(&self, w: &'a [T]) -> MatRef<'a, T> {
        let (row_stride, transposed) = match self.layout {
            WeightLayout::OutIn => (self.n_in, true),
            WeightLayout::InOut => (self.n_out, false),
        };
        MatRef { data: w, rows: self.n_in, cols: self.n_out, row_stride, transposed }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let w = self.weight.weight()?;
        check_dtype("linear", x, &w)?;
        let bias = self.bias.as_ref().map(Param::weight).transpose()?;
        let mut y = Tensor::uninit(x.shape().with_last(self.n_out)?, x.dtype(), x.device(), "activation")?;
        x.device().profile().time("linear forward", self.flops(x), 0, || {
            with_float!(x.dtype(), "linear", T => {
                let out = MatMut { rows: x.shape().n_rows(), cols: self.n_out, row_stride: self.n_out, data: y.slice_mut::<T>()? };
                matmul(x.device(), rows_of(x)?, self.as_right(w.slice::<T>()?), out, Store::Overwrite)?;
                if let Some(bias) = &bias {
                    let Kind::Cpu(cpu) = x.device().kind();
                    elementwise::bias_add(cpu, y.slice_mut::<T>()?, bias.slice::<T>()?);
                }
                Ok(())
            })
        })?;
        Ok(y)
    }
}

struct LinearBackward {
    op: Linear,
    x: Option<Saved>,
}

impl Function for LinearBackward {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, cx: &mut Backward<'_>) -> Result<()> {
        let (Some(dy), Some(x)) = (grads[0].take(), &self.x) else { return Ok(()) };
        let x = cx.get(x)?;
        let op = &self.op;
        let (device, n_rows) = (dy.device().clone(), dy.shape().n_rows());
        if let Some(mut slot) = op.weight.grad()? {
            device.profile().time("linear weight grad", op.flops(&x), 0, || {
                with_float!(dy.dtype(), "linear", T => {
                    // dW[O, I] = dyᵀ·x, or its transpose.
                    let (left, right, o, i) = match op.layout {
                        WeightLayout::OutIn => (&dy, &x, op.n_out, op.n_in),
                        WeightLayout::InOut => (&x, &dy, op.n_in, op.n_out),
                    };
                    let left = MatRef { data: left.slice::<T>()?, rows: o, cols: n_rows, row_stride: o, transposed: true };
                    let store = slot.store;
                    let out = MatMut { rows: o, cols: i, row_stride: i, data: slot.slice_mut() };
                    matmul(&device, left, rows_of(right)?, out, store)
                })
            })?;
        }
        if let Some(bias) = &op.bias
            && let Some(mut slot) = bias.grad()?
        {
            let Kind::Cpu(cpu) = device.kind();
            let store = slot.store;
            with_float!(dy.dtype(), "linear", T => {
                let mut scratch = device.scratch(4 * elementwise::bias_grad_scratch(n_rows, op.n_out))?;
                let scratch = bytemuck::cast_slice_mut(scratch.bytes_mut());
                elementwise::bias_grad(cpu, dy.slice::<T>()?, (slot.slice_mut(), store), scratch);
                Ok(())
            })?;
        }
        if cx.needs(0) {
            let (mut dx, store) = cx.slot(0, &x)?;
            let w = op.weight.weight()?;
            device.profile().time("linear input grad", op.flops(&x), 0, || {
                with_float!(dy.dtype(), "linear", T => {
                    // dx[T, I] = dy[T, O]·W[O, I]
                    let right = op.as_right(w.slice::<T>()?);
                    let right = MatRef { rows: op.n_out, cols: op.n_in, transposed: !right.transposed, ..right };
                    let out = MatMut { rows: n_rows, cols: op.n_in, row_stride: op.n_in, data: dx.slice_mut::<T>()? };
                    matmul(&device, rows_of(&dy)?, right, out, store)
                })
            })?;
            cx.put(0, dx)?;
        }
        Ok(())
    }
}

/// A tensor as a matrix of its rows.
pub(crate) fn rows_of<T: Float>(x: &Tensor) -> Result<MatRef<'_, T>> {
    let (rows, cols) = (x.shape().n_rows(), x.shape().last());
    Ok(MatRef { data: x.slice::<T>()?, rows, cols, row_stride: cols, transposed: false })
}

/// C = A·B or C += A·B on the device.
pub(crate) fn matmul<T: Float, C: Float>(
    device: &Device,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    c: MatMut<'_, C>,
    store: Store,
) -> Result<()> {
    match device.kind() {
        Kind::Cpu(cpu) => {
            let mut scratch = device.scratch(gemm::gemm_scratch_bytes(cpu, a.rows, b.cols, a.cols, T::DTYPE))?;
            gemm::gemm(cpu, a, b, c, store, scratch.bytes_mut());
        }
    }
    Ok(())
}
