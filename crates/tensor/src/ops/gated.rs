//! Gated linear units (Shazeer 2020): y = activation(gate) · up; with SiLU it is SwiGLU, with GELU it is GeGLU.

use oarlock_cuda::geometry;
use oarlock_kernels::glu::{self, Activation};
use oarlock_kernels::{Element, Result};

use crate::ints::Int;
use crate::ops::{check_device, check_dtype, dim_of, narrow, with_float, wrong_shape};
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// activation(gate) · up, of equal shapes. The output is cheap, so the tape keeps gate and up and recomputes it.
///
/// # Errors
/// Unequal shapes or dtypes.
pub fn gated(gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
    check_device("gated", gate, &[up])?;
    check_dtype("gated", gate, up)?;
    if gate.shape() != up.shape() {
        return Err(wrong_shape("gated", format!("{:?}", gate.shape()), up));
    }
    let recorder = Recorder::new(&[gate, up], &[])?;
    let y = forward(gate, up, activation, "activation", "gated forward")?;
    Ok(Recorder::record(recorder, y, |recorder| GatedBackward {
        gate: recorder.save(gate),
        up: recorder.save(up),
        activation,
    }))
}

/// The first half of x along a dim, times the sigmoid of the second (Dauphin et al. 2017).
///
/// # Errors
/// A dim that x does not have or of an odd size, or a tensor of integers.
pub fn glu(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    let dim = dim_of("glu", x, dim)?;
    let n = x.sizes()[dim];
    if !n.is_multiple_of(2) {
        return Err(wrong_shape("glu", format!("an even size at dim {dim}"), x));
    }
    gated(&narrow(x, dim, n / 2..n)?, &narrow(x, dim, 0..n / 2)?, Activation::Sigmoid)
}

fn forward(
    gate: &Tensor,
    up: &Tensor,
    activation: Activation,
    what: &'static str,
    name: &'static str,
) -> Result<Tensor> {
    let mut y = Tensor::uninit(*gate.shape(), gate.dtype(), gate.device(), what)?;
    let mut launch = gate.device().launch(name, 0, 3 * gate.len_bytes() as u64);
    with_float!(gate.dtype(), "gated", T => {
        let n = gate.n_elems();
        let (gate, up, y) = (launch.read::<T>(gate)?, launch.read::<T>(up)?, launch.write::<T>(&mut y)?);
        launch.cuda(|gpu| {
            let call = gpu.kernel("gated_forward", &[T::DTYPE])?.u32(activation as usize);
            // Without gaps between rows.
            call.view(&gate).view(&up).view(&y).u64(n).u32(0).u32(0).run(geometry::elements(n))
        })?;
        launch.run(move |cpu| {
            glu::gated_forward(cpu, activation, gate.slice(cpu), up.slice(cpu), y.slice(cpu));
        })
    })?;
    Ok(y)
}

struct GatedBackward {
    gate: Saved,
    up: Saved,
    activation: Activation,
}

impl Function for GatedBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (gate, up) = (cx.get(&self.gate)?, cx.get(&self.up)?);
        let device = gate.device().clone();
        let mut d_gate = Tensor::uninit(*gate.shape(), gate.dtype(), &device, "gradient")?;
        let mut d_up = Tensor::uninit(*up.shape(), up.dtype(), &device, "gradient")?;
        let (activation, n) = (self.activation, gate.n_elems());
        let mut launch = device.launch("gated backward", 0, 5 * gate.len_bytes() as u64);
        with_float!(gate.dtype(), "gated", T => {
            let (gate, up, dy) = (launch.read::<T>(&gate)?, launch.read::<T>(&up)?, launch.read::<T>(&dy)?);
            let (d_gate, d_up) = (launch.write::<T>(&mut d_gate)?, launch.write::<T>(&mut d_up)?);
            launch.cuda(|gpu| {
                let call = gpu.kernel("gated_backward", &[T::DTYPE])?.u32(activation as usize);
                let call = call.view(&gate).view(&up).view(&dy).view(&d_gate).view(&d_up).null();
                call.u64(n).u32(0).u32(0).run(geometry::elements(n))
            })?;
            launch.run(move |cpu| {
                let (gate, up, dy) = (gate.slice(cpu), up.slice(cpu), dy.slice(cpu));
                glu::gated_backward(cpu, activation, gate, up, dy, d_gate.slice(cpu), d_up.slice(cpu));
            })
        })?;
        cx.give(0, d_gate)?;
        cx.give(1, d_up)
    }

    fn can_replay(&self) -> bool {
        true
    }

    fn replay(&self, cx: &mut Backward<'_>) -> Result<Tensor> {
        let (gate, up) = (cx.get(&self.gate)?, cx.get(&self.up)?);
        forward(&gate, &up, self.activation, "replayed", "gated replay")
    }
}
