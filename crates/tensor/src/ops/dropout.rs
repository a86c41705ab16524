//! Dropout (Srivastava et al. 2014) with addressed random numbers: the mask is computed again, never stored.

use oarlock_cuda::geometry;
use oarlock_kernels::random::{self, Stream};
use oarlock_kernels::{Element, Error, Result};

use crate::ops::with_float;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// Each element with probability `p` becomes 0, the others are divided by `1 - p`. Element `i` is decided by
/// (seed, stream, i) alone: give each layer of each step a stream of its own, and leave dropout out for evaluation.
///
/// # Errors
/// `p` outside `0..1`, or a tensor of integers.
pub fn dropout(x: &Tensor, p: f32, seed: u64, stream: u64) -> Result<Tensor> {
    if !(0.0..1.0).contains(&p) {
        return Err(Error::Usage(format!("dropout: the probability is {p}; it is at least 0 and below 1")));
    }
    let recorder = Recorder::new(&[x], &[])?;
    let mask = Mask { p: f64::from(p), stream: Stream { seed, stream } };
    let y = mask.apply(x, "activation")?;
    Ok(Recorder::record(recorder, y, |recorder| DropoutBackward { x: recorder.save_recipe(x), mask }))
}

#[derive(Clone, Copy)]
struct Mask {
    p: f64,
    stream: Stream,
}

impl Mask {
    fn apply(self, x: &Tensor, what: &'static str) -> Result<Tensor> {
        let keep = 1.0 - self.p;
        let (mut y, n, scale) = (x.copied(what)?, x.n_elems(), (1.0 / keep) as f32);
        let mut launch = x.device().launch("dropout", 0, 4 * x.len_bytes() as u64);
        with_float!(x.dtype(), "dropout", T => {
            let y = launch.update::<T>(&mut y)?;
            launch.cuda(|gpu| {
                let call = gpu.kernel("dropout", &[T::DTYPE])?.random(self.stream, 0);
                let call = call.u64(random::dropout_threshold(keep) as usize).f32(scale);
                call.view(&y).view(&y).u64(n).run(geometry::elements(n))
            })?;
            launch.run(move |cpu| {
                random::dropout(cpu, self.stream, 0, keep, scale, y.slice(cpu));
            })
        })?;
        Ok(y)
    }
}

struct DropoutBackward {
    x: Option<Saved>,
    mask: Mask,
}

impl Function for DropoutBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        cx.give(0, self.mask.apply(&dy, "gradient")?)
    }

    fn can_replay(&self) -> bool {
        self.x.is_some()
    }

    fn replay(&self, cx: &mut Backward<'_>) -> Result<Tensor> {
        match &self.x {
            Some(x) => self.mask.apply(&cx.get(x)?, "replayed"),
            None => Err(Error::Usage("dropout: its input was not kept".to_string())),
        }
    }
}
