//! Linear: y = x·Wᵀ + b over the rows of x. Its weight gradient goes straight into the flat gradient buffer.

use crate::cpu::gemm::{self, MatMut, MatRef};
use crate::cpu::{Cpu, Store, elementwise};
use crate::device::Device;
use crate::dtype::{DType, Float};
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
            _ => {
                return Err(wrong_shape(
                    "linear",
                    "a weight of two dims, with at least one output",
                    &weight.weight()?,
                ));
            }
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
        let n_rows = x.shape().n_rows();
        let sizes = [n_rows, self.n_out, self.n_in];
        product(x.device(), "linear forward", x.dtype(), sizes, |cpu, scratch| {
            with_float!(x.dtype(), "linear", T => {
                let out = MatMut { rows: n_rows, cols: self.n_out, row_stride: self.n_out, data: y.slice_mut::<T>()? };
                gemm::gemm(cpu, rows_of(x)?, self.as_right(w.slice::<T>()?), out, Store::Overwrite, scratch);
                if let Some(bias) = &bias {
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
            // dW[O, I] = dyᵀ·x, or its transpose.
            let (left, right, o, i) = match op.layout {
                WeightLayout::OutIn => (&dy, &x, op.n_out, op.n_in),
                WeightLayout::InOut => (&x, &dy, op.n_in, op.n_out),
            };
            product(&device, "linear weight grad", dy.dtype(), [o, i, n_rows], |cpu, scratch| {
                with_float!(dy.dtype(), "linear", T => {
                    let left = MatRef { data: left.slice::<T>()?, rows: o, cols: n_rows, row_stride: o, transposed: true };
                    let store = slot.store;
                    let out = MatMut { rows: o, cols: i, row_stride: i, data: slot.slice_mut() };
                    gemm::gemm(cpu, left, rows_of(right)?, out, store, scratch);
                    Ok(())
                })
            })?;
        }
        if let Some(bias) = &op.bias
            && let Some(mut slot) = bias.grad()?
        {
            let store = slot.store;
            let mut scratch = device.scratch(4 * elementwise::bias_grad_scratch(n_rows, op.n_out))?;
            device.run("linear bias grad", 0, dy.len_bytes() as u64, |cpu| {
                with_float!(dy.dtype(), "linear", T => {
                    let scratch = bytemuck::cast_slice_mut(scratch.bytes_mut());
                    elementwise::bias_grad(cpu, dy.slice::<T>()?, (slot.slice_mut(), store), scratch);
                    Ok(())
                })
            })?;
        }
        if cx.needs(0) {
            let (mut dx, store) = cx.slot(0, &x)?;
            let w = op.weight.weight()?;
            let sizes = [n_rows, op.n_in, op.n_out];
            product(&device, "linear input grad", dy.dtype(), sizes, |cpu, scratch| {
                with_float!(dy.dtype(), "linear", T => {
                    // dx[T, I] = dy[T, O]·W[O, I]
                    let right = op.as_right(w.slice::<T>()?);
                    let right = MatRef { rows: op.n_out, cols: op.n_in, transposed: !right.transposed, ..right };
                    let out = MatMut { rows: n_rows, cols: op.n_in, row_stride: op.n_in, data: dx.slice_mut::<T>()? };
                    gemm::gemm(cpu, rows_of(&dy)?, right, out, store, scratch);
                    Ok(())
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

/// Runs products of matrices `[m, k]` and `[k, n]` of `dtype` on the device: `f` gets the scratch memory for one.
pub(crate) fn product(
    device: &Device,
    op: &'static str,
    dtype: DType,
    [m, n, k]: [usize; 3],
    f: impl FnOnce(&Cpu, &mut [u8]) -> Result<()>,
) -> Result<()> {
    products(device, op, dtype, 1, [m, n, k], f)
}

/// As [`product`], for so many of them, one after the other.
pub(crate) fn products(
    device: &Device,
    op: &'static str,
    dtype: DType,
    count: usize,
    [m, n, k]: [usize; 3],
    f: impl FnOnce(&Cpu, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut scratch = device.scratch(gemm::gemm_scratch_bytes(device.kernels(), m, n, k, dtype))?;
    let flops = 2 * count as u64 * m as u64 * n as u64 * k as u64;
    device.run(op, flops, 0, |cpu| f(cpu, scratch.bytes_mut()))
}
