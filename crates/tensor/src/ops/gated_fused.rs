//! Gated linear units of gates and ups that one product has made, side by side in each row.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry;
use oarlock_kernels::glu::{self, Activation};
use oarlock_kernels::{Element, Result};

use crate::cuda::{Call, Form, FormError, Found, forms};
use crate::ops::{gated, split, with_float, wrong_shape};
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// Elements that a kernel of a GPU moves at once, which may not be in two rows.
const PACK: usize = 8;

/// As [`gated`], of `[.., 2·W]` with the gates before the ups → `[.., W]`.
///
/// # Errors
/// A last dim of an odd size, or integers.
pub fn gated_fused(gate_up: &Tensor, activation: Activation) -> Result<Tensor> {
    let size = gate_up.sizes().last().copied().filter(|size| size.is_multiple_of(2));
    let Some(width) = size.map(|size| size / 2) else {
        return Err(wrong_shape("gated_fused", "a last dim of an even size", gate_up));
    };
    if !width.is_multiple_of(PACK) {
        let parts = split(gate_up, [width, width], -1)?;
        return gated(&parts[0], &parts[1], activation);
    }
    let recorder = Recorder::new(&[gate_up], &[])?;
    let y = forward(gate_up, width, activation, "activation", "gated forward")?;
    let backward = |recorder: &Recorder| {
        let gate_up = recorder.save(gate_up);
        GatedFusedBackward { gate_up, width, activation }
    };
    Ok(Recorder::record(recorder, y, backward))
}

/// The ups in the memory of rows of gates and ups.
fn ups(rows: Slice<'_>, width: usize, element_bytes: usize) -> Found<Slice<'_>> {
    let end = rows.bytes();
    forms::part(rows, (width * element_bytes).min(end)..end)
}

/// Runs a call that ends with the number of outputs and the sizes of rows.
fn in_rows(call: Call<'_>, n: usize, width: usize) -> Form {
    // The kernel counts packs in 32 bits.
    u32::try_from(n / PACK).map_err(|_| FormError::NoForm)?;
    call.u64(n).u32(width).u32(2 * width).run(geometry::elements(n))
}

fn forward(
    gate_up: &Tensor,
    width: usize,
    activation: Activation,
    what: &'static str,
    name: &'static str,
) -> Result<Tensor> {
    let mut y = Tensor::uninit(gate_up.shape().with_last(width)?, gate_up.dtype(), gate_up.device(), what)?;
    let mut launch = gate_up.device().launch(name, 0, 3 * y.len_bytes() as u64);
    with_float!(gate_up.dtype(), "gated", T => {
        let n = y.n_elems();
        let (gate_up, y) = (launch.read::<T>(gate_up)?, launch.write::<T>(&mut y)?);
        launch.cuda(|gpu| {
            let call = gpu.kernel("gated_forward", &[T::DTYPE])?.u32(activation as usize).view(&gate_up);
            in_rows(call.slice(ups(gpu.slice(&gate_up)?, width, size_of::<T>())?).view(&y), n, width)
        })?;
        launch.run(move |cpu| {
            let rows = gate_up.slice(cpu).chunks_exact(2 * width.max(1));
            for (row, y) in rows.zip(y.slice(cpu).chunks_exact_mut(width.max(1))) {
                let (gate, up) = row.split_at(width);
                glu::gated_forward(cpu, activation, gate, up, y);
            }
        })
    })?;
    Ok(y)
}

struct GatedFusedBackward {
    gate_up: Saved,
    width: usize,
    activation: Activation,
}

impl GatedFusedBackward {
    /// The gradients of gates and ups; with `y`, the output is written there.
    fn gradients(&self, gate_up: &Tensor, dy: &Tensor, mut y: Option<&mut Tensor>) -> Result<Tensor> {
        let device = gate_up.device();
        let mut grads = Tensor::uninit(*gate_up.shape(), gate_up.dtype(), device, "gradient")?;
        let (activation, width, n) = (self.activation, self.width, dy.n_elems());
        let mut launch = device.launch("gated backward", 0, 5 * dy.len_bytes() as u64);
        with_float!(dy.dtype(), "gated", T => {
            let (gate_up, dy) = (launch.read::<T>(gate_up)?, launch.read::<T>(dy)?);
            let grads = launch.write::<T>(&mut grads)?;
            let y = y.as_mut().map(|y| launch.write::<T>(y)).transpose()?;
            launch.cuda(|gpu| {
                let call = gpu.kernel("gated_backward", &[T::DTYPE])?.u32(activation as usize).view(&gate_up);
                let call = call.slice(ups(gpu.slice(&gate_up)?, width, size_of::<T>())?).view(&dy).view(&grads);
                let call = call.slice(ups(gpu.slice(&grads)?, width, size_of::<T>())?).optional(y.as_ref());
                in_rows(call, n, width)
            })?;
            launch.run(move |cpu| {
                let (gate_up, one, two) = (gate_up.slice(cpu), width.max(1), 2 * width.max(1));
                let rows = gate_up.chunks_exact(two).zip(dy.slice(cpu).chunks_exact(one));
                for ((row, dy), grads) in rows.zip(grads.slice(cpu).chunks_exact_mut(two)) {
                    let ((gate, up), (d_gate, d_up)) = (row.split_at(width), grads.split_at_mut(width));
                    glu::gated_backward(cpu, activation, gate, up, dy, d_gate, d_up);
                }
                let Some(y) = y else { return };
                for (row, y) in gate_up.chunks_exact(two).zip(y.slice(cpu).chunks_exact_mut(one)) {
                    let (gate, up) = row.split_at(width);
                    glu::gated_forward(cpu, activation, gate, up, y);
                }
            })
        })?;
        Ok(grads)
    }
}

impl Function for GatedFusedBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let gate_up = cx.get(&self.gate_up)?;
        cx.give(0, self.gradients(&gate_up, &dy, None)?)
    }

    fn can_replay(&self) -> bool {
        true
    }

    fn replay(&self, cx: &mut Backward<'_>) -> Result<Tensor> {
        let gate_up = cx.get(&self.gate_up)?;
        forward(&gate_up, self.width, self.activation, "replayed", "gated replay")
    }

    fn can_finish(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<Tensor> {
        let gate_up = cx.get(&self.gate_up)?;
        let mut y = Tensor::uninit(*dy.shape(), dy.dtype(), dy.device(), "replayed")?;
        let grads = self.gradients(&gate_up, &dy, Some(&mut y))?;
        cx.give(0, grads)?;
        Ok(y)
    }
}
