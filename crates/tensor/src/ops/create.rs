//! New tensors: of one number, in steps, random, the identity. None of them is on a tape, except for those that are made
//! like a tensor that is.
//!
//! Random numbers are a function of the seed and the place of the element, on any device and with any number of threads.

use oarlock_cuda::geometry;
use oarlock_kernels::pieces::TASK_ELEMS;
use oarlock_kernels::random::{self, Stream};
use oarlock_kernels::{DType, Element, Error, Result};

use crate::cuda::FormError;
use crate::device::Device;
use crate::ops::operand::check_number;
use crate::ops::{Number, beside, with_element, with_float};
use crate::shape::IntoShape;
use crate::tensor::Tensor;

impl Tensor {
    /// A tensor in which every element is `value`.
    ///
    /// # Errors
    /// No memory, an impossible shape, or a fraction in a tensor of integers.
    pub fn full(shape: impl IntoShape, value: impl Number, dtype: DType, device: &Device) -> Result<Tensor> {
        let value = value.number();
        check_number("full", value, dtype)?;
        computed(shape, dtype, device, ("full", Some(value)), move |_| value)
    }

    /// A tensor of ones.
    ///
    /// # Errors
    /// No memory, or an impossible shape.
    pub fn ones(shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::full(shape, 1, dtype, device)
    }

    /// The numbers `start`, `start + step` and so on before `end`.
    ///
    /// # Errors
    /// A step that does not lead from `start` toward `end`, or a fraction in a tensor of integers.
    pub fn arange(
        start: impl Number,
        end: impl Number,
        step: impl Number,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let (start, end, step) = (start.number(), end.number(), step.number());
        [start, step].iter().try_for_each(|number| check_number("arange", *number, dtype))?;
        let n = ((end - start) / step).ceil();
        // Also no number.
        if step == 0.0 || !(0.0..=isize::MAX as f64).contains(&n) {
            return Err(Error::Shape {
                op: "arange",
                expected: "finite numbers, and a step that leads from the start to the end".to_string(),
                got: format!("{start} to {end} in steps of {step}"),
            });
        }
        computed([n as usize], dtype, device, ("arange", None), move |i| start + i as f64 * step)
    }

    /// `n` numbers at equal distances from `start` to `end`, which is the last of them.
    ///
    /// # Errors
    /// No memory.
    pub fn linspace(
        start: impl Number,
        end: impl Number,
        n: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let (start, end) = (start.number(), end.number());
        let step = (end - start) / n.saturating_sub(1).max(1) as f64;
        // From both ends, so that both are met exactly.
        let value = move |i| {
            if i < n.div_ceil(2) { start + i as f64 * step } else { end - (n - 1 - i) as f64 * step }
        };
        computed([n], dtype, device, ("linspace", None), value)
    }

    /// The identity matrix of n rows.
    ///
    /// # Errors
    /// No memory.
    pub fn eye(n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        computed([n, n], dtype, device, ("eye", None), move |i| f64::from(u8::from(i / n == i % n)))
    }

    /// Random numbers, uniform from 0 up to, but without, 1.
    ///
    /// # Errors
    /// No memory, or a dtype of integers.
    pub fn rand(shape: impl IntoShape, seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
        let mut y = Tensor::uninit(shape, dtype, device, "tensor")?;
        let mut launch = device.launch("rand", 0, y.len_bytes() as u64);
        // As fine as the dtype is just below 1, so that none is rounded up to 1.
        let n_steps = match dtype {
            DType::BF16 => 256.0,
            DType::F16 => 2048.0,
            DType::F32 | DType::I32 => 16_777_216.0,
        };
        with_float!(dtype, "rand", T => {
            let n = y.n_elems();
            let y = launch.write::<T>(&mut y)?;
            launch.cuda(|gpu| {
                let call = gpu.kernel("fill_steps", &[T::DTYPE])?.random(stream(seed), 0).f32(n_steps);
                call.view(&y).u64(n).run(geometry::elements(n))
            })?;
            launch.run(move |cpu| random::fill_steps(cpu, stream(seed), 0, n_steps, y.slice(cpu)))
        })?;
        Ok(y)
    }

    /// Random numbers, normal with mean 0 and standard deviation 1.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    pub fn randn(shape: impl IntoShape, seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
        let mut y = Tensor::uninit(shape, dtype, device, "tensor")?;
        let mut launch = device.launch("randn", 0, y.len_bytes() as u64);
        with_float!(dtype, "randn", T => {
            let n = y.n_elems();
            let y = launch.write::<T>(&mut y)?;
            launch.cuda(|gpu| {
                let call = gpu.kernel("fill_normal", &[T::DTYPE])?.random(stream(seed), 0).f32(0.0).f32(1.0);
                call.view(&y).u64(n).run(geometry::elements(n))
            })?;
            launch.run(move |cpu| random::fill_normal(cpu, stream(seed), 0, 0.0, 1.0, y.slice(cpu)))
        })?;
        Ok(y)
    }

    /// [`Tensor::full`] with the shape, dtype and device of this tensor.
    ///
    /// # Errors
    /// As [`Tensor::full`].
    pub fn full_like(&self, value: impl Number) -> Result<Tensor> {
        Ok(beside(&[self], Tensor::full(*self.shape(), value, self.dtype(), self.device())?))
    }

    /// [`Tensor::zeros`] with the shape, dtype and device of this tensor.
    ///
    /// # Errors
    /// No memory.
    pub fn zeros_like(&self) -> Result<Tensor> {
        Ok(beside(&[self], Tensor::zeros(*self.shape(), self.dtype(), self.device())?))
    }

    /// [`Tensor::ones`] with the shape, dtype and device of this tensor.
    ///
    /// # Errors
    /// No memory.
    pub fn ones_like(&self) -> Result<Tensor> {
        self.full_like(1)
    }

    /// [`Tensor::rand`] with the shape, dtype and device of this tensor.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    pub fn rand_like(&self, seed: u64) -> Result<Tensor> {
        Ok(beside(&[self], Tensor::rand(*self.shape(), seed, self.dtype(), self.device())?))
    }

    /// [`Tensor::randn`] with the shape, dtype and device of this tensor.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    pub fn randn_like(&self, seed: u64) -> Result<Tensor> {
        Ok(beside(&[self], Tensor::randn(*self.shape(), seed, self.dtype(), self.device())?))
    }
}

fn stream(seed: u64) -> Stream {
    Stream { seed, stream: 0 }
}

/// A tensor whose element `i` is `value(i)`; `constant` where that is the same for all of them.
fn computed(
    shape: impl IntoShape,
    dtype: DType,
    device: &Device,
    (op, constant): (&'static str, Option<f64>),
    value: impl Fn(usize) -> f64 + Send + Sync + 'static,
) -> Result<Tensor> {
    let mut y = Tensor::uninit(shape, dtype, device, "tensor")?;
    let mut launch = device.launch(op, 0, y.len_bytes() as u64);
    with_element!(dtype, T => {
        let n = y.n_elems();
        let y = launch.write::<T>(&mut y)?;
        launch.cuda(|gpu| {
            let call = gpu.kernel("fill", &[T::DTYPE])?.view(&y).value(constant.ok_or(FormError::NoForm)?);
            call.u64(n).run(geometry::elements(n))
        })?;
        launch.run(move |cpu| {
            cpu.par.chunks_mut(y.slice(cpu), TASK_ELEMS, |i, y| {
                let numbered = y.iter_mut().zip(i * TASK_ELEMS..);
                numbered.for_each(|(y, i)| *y = <T as Element>::from_number(value(i)));
            });
        })
    })?;
    Ok(y)
}
