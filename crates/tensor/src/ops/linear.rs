//! Linear: y = x·Wᵀ + b over the rows of x. Its weight gradient goes straight into the flat gradient buffer.

use oarlock_cuda::driver::Slice;
use oarlock_kernels::gemm::{self, MatMut, MatRef};
use oarlock_kernels::{DType, Element, Float, Result, Store, elementwise};

use crate::cuda::Matrix;
use crate::device::Device;
use crate::launch::{Launch, ViewMut};
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
    let mut y = Tensor::uninit(x.shape().with_last(op.sizes.n_out)?, x.dtype(), x.device(), "activation")?;
    op.forward(x, &mut y, Store::Overwrite)?;
    Ok(Recorder::record(recorder, y, |recorder| LinearBackward { op, x: recorder.save(x), adds: false }))
}

/// y `[.., O]` + x·Wᵀ for x `[.., I]` and a weight `[O, I]`, rounded once: torch's `addmm` over the rows of x. It is written
/// over y where nobody else has it.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn linear_add(y: Tensor, x: &Tensor, weight: &Param) -> Result<Tensor> {
    let op = Linear::new(x, weight, None, WeightLayout::OutIn)?;
    let shape = x.shape().with_last(op.sizes.n_out)?;
    if *y.shape() != shape {
        return Err(wrong_shape("linear_add", format!("y of shape {shape:?}"), &y));
    }
    check_dtype("linear_add", &y, x)?;
    if !y.is_unique() {
        return y.add(&linear(x, weight, None, WeightLayout::OutIn)?);
    }
    let recorder = Recorder::new(&[x, &y], &[weight])?;
    let mut sum = y.detach();
    drop(y);
    op.forward(x, &mut sum, Store::Add)?;
    Ok(Recorder::record(recorder, sum, |recorder| LinearBackward { op, x: recorder.save(x), adds: true }))
}

#[derive(Clone)]
struct Linear {
    weight: Param,
    bias: Option<Param>,
    sizes: Sizes,
}

#[derive(Clone, Copy)]
struct Sizes {
    layout: WeightLayout,
    n_in: usize,
    n_out: usize,
}

impl Sizes {
    /// As [`Sizes::as_right`], on a GPU.
    fn right_matrix(self, memory: Slice<'_>) -> Matrix<'_> {
        match self.layout {
            WeightLayout::OutIn => Matrix::new(memory, self.n_out, self.n_in).t(),
            WeightLayout::InOut => Matrix::new(memory, self.n_in, self.n_out),
        }
    }

    /// The weight as the matrix that x is multiplied with from the right: `[I, O]`.
    fn as_right<T: Float>(self, w: &[T]) -> MatRef<'_, T> {
        let (row_stride, transposed) = match self.layout {
            WeightLayout::OutIn => (self.n_in, true),
            WeightLayout::InOut => (self.n_out, false),
        };
        MatRef { data: w, rows: self.n_in, cols: self.n_out, row_stride, transposed }
    }
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
        let sizes = Sizes { layout, n_in, n_out };
        Ok(Linear { weight: weight.clone(), bias: bias.cloned(), sizes })
    }

    /// y = x·Wᵀ + b, or y += x·Wᵀ + b.
    fn forward(&self, x: &Tensor, y: &mut Tensor, store: Store) -> Result<()> {
        let w = self.weight.weight()?;
        check_dtype("linear", x, &w)?;
        let bias = self.bias.as_ref().map(Param::weight).transpose()?;
        let n_rows = x.shape().n_rows();
        let sizes = [n_rows, self.sizes.n_out, self.sizes.n_in];
        let (mut launch, scratch) = product(x.device(), "linear forward", x.dtype(), sizes)?;
        with_float!(x.dtype(), "linear", T => {
            let (op, x, w) = (self.sizes, launch.read::<T>(x)?, launch.read::<T>(&w)?);
            let bias = bias.as_ref().map(|bias| launch.read::<T>(bias)).transpose()?;
            let y = launch.store::<T>(y, store)?;
            launch.cuda(|gpu| {
                let (x, w) = (gpu.matrix(&x, n_rows, op.n_in)?, op.right_matrix(gpu.slice(&w)?));
                let bias = bias.as_ref().map(|bias| gpu.slice(bias)).transpose()?;
                gpu.multiply((T::DTYPE, 1), [x, w], (&y, T::DTYPE, store), bias)
            })?;
            launch.run(move |cpu| {
                let (x, y) = (MatRef::new(x.slice(cpu), n_rows, op.n_in), y.slice(cpu));
                let out = MatMut::new(&mut *y, n_rows, op.n_out);
                gemm::gemm(cpu, x, op.as_right(w.slice(cpu)), out, store, scratch.slice(cpu));
                if let Some(bias) = bias {
                    elementwise::bias_add(cpu, y, bias.slice(cpu));
                }
            })
        })
    }
}

struct LinearBackward {
    op: Linear,
    x: Saved,
    /// Whether the product was added to a second input.
    adds: bool,
}

impl Function for LinearBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let trains = self.op.weight.trainable()?;
        // The op that made x may compute it once more in its own backward pass, which needs the gradient of x.
        let finishes = trains && cx.can_finish(0, &self.x);
        if finishes {
            self.op.input_gradient(&dy, cx)?;
        }
        if trains {
            let x = if finishes { cx.finish(&self.x)? } else { cx.get(&self.x)? };
            self.op.weight_gradient(&x, &dy)?;
        }
        self.op.bias_gradient(&dy)?;
        if !finishes {
            self.op.input_gradient(&dy, cx)?;
        }
        if self.adds {
            cx.give(1, dy)?;
        }
        Ok(())
    }
}

impl Linear {
    fn weight_gradient(&self, x: &Tensor, dy: &Tensor) -> Result<()> {
        let (Sizes { layout, n_in, n_out }, n_rows) = (self.sizes, dy.shape().n_rows());
        let Some(mut slot) = self.weight.grad()? else { return Ok(()) };
        // dW[O, I] = dyᵀ·x, or its transpose.
        let (left, right, o, i) = match layout {
            WeightLayout::OutIn => (dy, x, n_out, n_in),
            WeightLayout::InOut => (x, dy, n_in, n_out),
        };
        let (mut launch, scratch) = product(dy.device(), "linear weight grad", dy.dtype(), [o, i, n_rows])?;
        with_float!(dy.dtype(), "linear", T => {
            let (left, right) = (launch.read::<T>(left)?, launch.read::<T>(right)?);
            let (store, out) = (slot.store, launch.grad(&mut slot)?);
            launch.cuda(|gpu| {
                let (left, right) = (gpu.matrix(&left, n_rows, o)?.t(), gpu.matrix(&right, n_rows, i)?);
                gpu.multiply((T::DTYPE, 1), [left, right], (&out, DType::F32, store), None)
            })?;
            launch.run(move |cpu| {
                let left = MatRef { data: left.slice(cpu), rows: o, cols: n_rows, row_stride: o, transposed: true };
                let right = MatRef::new(right.slice(cpu), n_rows, i);
                gemm::gemm(cpu, left, right, MatMut::new(out.slice(cpu), o, i), store, scratch.slice(cpu));
            })
        })
    }

    fn bias_gradient(&self, dy: &Tensor) -> Result<()> {
        let (n_out, n_rows) = (self.sizes.n_out, dy.shape().n_rows());
        let Some(bias) = &self.bias else { return Ok(()) };
        let Some(mut slot) = bias.grad()? else { return Ok(()) };
        let store = slot.store;
        let mut launch = dy.device().launch("linear bias grad", 0, dy.len_bytes() as u64);
        let scratch = launch.scratch::<f32>(elementwise::bias_grad_scratch(n_rows, n_out))?;
        with_float!(dy.dtype(), "linear", T => {
            let (dy, out) = (launch.read::<T>(dy)?, launch.grad(&mut slot)?);
            launch.cuda(|gpu| {
                let rows = [1, n_rows, n_out];
                gpu.sum_rows(1.0, (gpu.slice(&dy)?, T::DTYPE), rows, (gpu.slice(&out)?, DType::F32, store))
            })?;
            launch.run(move |cpu| {
                elementwise::bias_grad(cpu, dy.slice(cpu), (out.slice(cpu), store), scratch.slice(cpu));
            })
        })
    }

    fn input_gradient(&self, dy: &Tensor, cx: &mut Backward<'_>) -> Result<()> {
        if !cx.needs(0) {
            return Ok(());
        }
        let (Sizes { n_in, n_out, .. }, n_rows) = (self.sizes, dy.shape().n_rows());
        let (mut dx, store) = cx.slot_of(0, dy.shape().with_last(n_in)?, dy)?;
        let w = self.weight.weight()?;
        let sizes = [n_rows, n_in, n_out];
        let (mut launch, scratch) = product(dy.device(), "linear input grad", dy.dtype(), sizes)?;
        with_float!(dy.dtype(), "linear", T => {
            let (op, dy, w) = (self.sizes, launch.read::<T>(dy)?, launch.read::<T>(&w)?);
            let dx = launch.store::<T>(&mut dx, store)?;
            launch.cuda(|gpu| {
                let (dy, w) = (gpu.matrix(&dy, n_rows, n_out)?, op.right_matrix(gpu.slice(&w)?).t());
                gpu.multiply((T::DTYPE, 1), [dy, w], (&dx, T::DTYPE, store), None)
            })?;
            launch.run(move |cpu| {
                // dx[T, I] = dy[T, O]·W[O, I]
                let right = op.as_right(w.slice(cpu));
                let right = MatRef { rows: n_out, cols: n_in, transposed: !right.transposed, ..right };
                let (dy, out) = (MatRef::new(dy.slice(cpu), n_rows, n_out), MatMut::new(dx.slice(cpu), n_rows, n_in));
                gemm::gemm(cpu, dy, right, out, store, scratch.slice(cpu));
            })
        })?;
        cx.give(0, dx)
    }
}

/// A launch of a product of matrices `[m, k]` and `[k, n]` of `dtype`, and its scratch memory.
pub(crate) fn product<'d>(
    device: &'d Device,
    op: &'static str,
    dtype: DType,
    sizes: [usize; 3],
) -> Result<(Launch<'d>, ViewMut<u8>)> {
    products(device, op, dtype, 1, sizes)
}

/// As [`product`], for so many of them, one after the other.
pub(crate) fn products<'d>(
    device: &'d Device,
    op: &'static str,
    dtype: DType,
    count: usize,
    [m, n, k]: [usize; 3],
) -> Result<(Launch<'d>, ViewMut<u8>)> {
    let flops = 2 * count as u64 * m as u64 * n as u64 * k as u64;
    let mut launch = device.launch(op, flops, 0);
    let scratch = launch.scratch(gemm::gemm_scratch_bytes(device.host(), m, n, k, dtype))?;
    Ok((launch, scratch))
}
