//! The passes of the 1-bit optimizers over weights, moments and gradients. Between them ranks exchange signs, so each
//! optimizer is several passes: 1-bit Adam (Tang et al. 2021), 0/1 Adam (Lu et al. 2022) and 1-bit LAMB (Li et al. 2021), in
//! the order of operations of DeepSpeed.

use crate::Cpu;
use crate::isa::multiversion;
use crate::pieces::{TASK_ELEMS, cut, for_pieces};
use crate::sums::{NORM_BLOCK, squares};

/// The most slices of a pass.
pub const MAX_SLICES: usize = 5;
/// The most results of a pass for each block of [`NORM_BLOCK`] elements.
pub const MAX_RESULTS: usize = 3;

/// One pass over slices of the same length. The names say which slices, in order: w weights, m and v the moments, g
/// gradients, a what local steps have added up, f the second moment that goes on after the freeze. A slice whose name is
/// in brackets is only read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pass {
    /// m \[g\]: the first moment takes up a gradient.
    Momentum {
        /// What it keeps of itself.
        beta1: f64,
    },
    /// v \[g\]: the second moment takes up the square of a gradient.
    Variance {
        /// What it keeps of itself.
        beta2: f64,
    },
    /// w \[m v\]: Adam's step without correction of the moments; weight decay is a part of the direction.
    Step {
        /// Learning rate.
        lr: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// Weight decay.
        decay: f64,
    },
    /// w a \[m v\]: the same step, which is also added to `a`.
    LocalStep {
        /// Learning rate.
        lr: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// Weight decay.
        decay: f64,
    },
    /// a \[v\]: makes a sum of moments of the local steps, which ranks can average.
    SumMoments {
        /// Added to the root of the second moment.
        eps: f64,
    },
    /// w a m \[v\]: takes the mean of the ranks' local steps from where they met, and makes the first moment of it, which stays
    /// where nothing has moved (learning rates of 0).
    TakeMean {
        /// Added to the root of the second moment.
        eps: f64,
        /// The sum of the learning rates of the local steps.
        lrs: f64,
    },
    /// m \[k\]: a product with a mask, as of moments that are zero for good, which one bit cannot say.
    Mask,
    /// g \[w m v\]: the gradient becomes LAMB's direction. Results: the squared norms of weights and direction.
    LambDirection {
        /// Added to the root of the second moment.
        eps: f64,
        /// Weight decay.
        decay: f64,
    },
    /// w \[g\]: a step along a direction.
    Along {
        /// Its length.
        length: f64,
    },
    /// m g: the first moment takes up a gradient and is scaled for its way to the other ranks; what it was before stands
    /// in the place of the gradient.
    LambMomentum {
        /// What it keeps of itself.
        beta1: f64,
        /// The scale.
        scale: f64,
    },
    /// m g f \[v w\]: the first moment, back from the other ranks, loses its scale; the mean gradient that it has taken up goes
    /// into `f`, and LAMB's direction takes the place of `g`, which held the moment before. Results: the squared norms of
    /// the direction without and with weight decay, and the greatest ratio of the roots of `v` and `f`.
    LambFrozen {
        /// What the first moment keeps of itself.
        beta1: f64,
        /// What `f` keeps of itself.
        beta2: f64,
        /// Added to the roots of the second moments.
        eps: f64,
        /// Weight decay.
        decay: f64,
        /// The scale of the first moment.
        scale: f64,
    },
}

impl Pass {
    /// The slices of the pass, and how many of them, from the first on, it writes.
    pub fn slices(&self) -> (usize, usize) {
        match self {
            Pass::Momentum { .. } | Pass::Variance { .. } | Pass::Along { .. } | Pass::Mask => (2, 1),
            Pass::Step { .. } => (3, 1),
            Pass::LocalStep { .. } => (4, 2),
            Pass::SumMoments { .. } => (2, 1),
            Pass::TakeMean { .. } => (4, 3),
            Pass::LambDirection { .. } => (4, 1),
            Pass::LambMomentum { .. } => (2, 2),
            Pass::LambFrozen { .. } => (5, 3),
        }
    }

    /// The results of the pass for each block of elements.
    pub fn results(&self) -> usize {
        match self {
            Pass::LambDirection { .. } => 2,
            Pass::LambFrozen { .. } => 3,
            _ => 0,
        }
    }
}

/// Runs a pass. `written` are the slices that it writes and `read` the others, in the order of its description; unused ones
/// are empty. `results` holds one number for each block, first all of the first result.
pub fn run(
    cpu: &Cpu,
    pass: Pass,
    written: [&mut [f32]; MAX_SLICES],
    read: [&[f32]; MAX_SLICES],
    results: &mut [f64],
) {
    let n = written[0].len();
    let n_blocks = n.div_ceil(NORM_BLOCK);
    assert_eq!(results.len(), pass.results() * n_blocks, "one_bit: results");
    let mut rest = results.chunks_mut(n_blocks.max(1));
    let results = [(); MAX_RESULTS].map(|()| cut(rest.next().unwrap_or_default(), TASK_ELEMS / NORM_BLOCK));
    let pieces = (written.map(|slice| cut(slice, TASK_ELEMS)), results);
    for_pieces(&cpu.par, n.div_ceil(TASK_ELEMS), pieces, |i, (written, results)| {
        let from = i * TASK_ELEMS;
        let read =
            read.map(|slice| if slice.is_empty() { slice } else { &slice[from..][..written[0].len()] });
        task(cpu.isa, pass, written, read, results);
    });
}

multiversion! {
    fn task(
        pass: Pass, written: [&mut [f32]; MAX_SLICES], read: [&[f32]; MAX_SLICES],
        results: [&mut [f64]; MAX_RESULTS],
    ) {
        let [a, b, c, ..] = written;
        match pass {
            Pass::Momentum { beta1 } => {
                let (keep, add) = (beta1 as f32, (1.0 - beta1) as f32);
                for (m, g) in a.iter_mut().zip(read[0]) {
                    *m = *m * keep + add * g;
                }
            }
            Pass::Variance { beta2 } => {
                let (keep, add) = (beta2 as f32, (1.0 - beta2) as f32);
                for (v, g) in a.iter_mut().zip(read[0]) {
                    *v = *v * keep + add * g * g;
                }
            }
            Pass::Step { lr, eps, decay } => {
                let (lr, eps, decay) = (lr as f32, eps as f32, decay as f32);
                for ((w, m), v) in a.iter_mut().zip(read[0]).zip(read[1]) {
                    *w -= lr * (m / (v.sqrt() + eps) + decay * *w);
                }
            }
            Pass::LocalStep { lr, eps, decay } => {
                let (lr, eps, decay) = (lr as f32, eps as f32, decay as f32);
                for (((w, sum), m), v) in a.iter_mut().zip(b).zip(read[0]).zip(read[1]) {
                    let step = lr * (m / (v.sqrt() + eps) + decay * *w);
                    *w -= step;
                    *sum -= step;
                }
            }
            Pass::SumMoments { eps } => {
                let eps = eps as f32;
                for (sum, v) in a.iter_mut().zip(read[0]) {
                    *sum *= v.sqrt() + eps;
                }
            }
            Pass::TakeMean { eps, lrs } => {
                let (eps, lrs) = (eps as f32, lrs as f32);
                for (((w, sum), m), v) in a.iter_mut().zip(b).zip(c).zip(read[0]) {
                    *m = if lrs > 0.0 { -(*sum / lrs) } else { *m };
                    *w += *sum / (v.sqrt() + eps);
                    *sum = 0.0;
                }
            }
            Pass::Mask => {
                for (m, k) in a.iter_mut().zip(read[0]) {
                    *m *= k;
                }
            }
            Pass::LambDirection { eps, decay } => {
                let (eps, decay) = (eps as f32, decay as f32);
                for (((u, w), m), v) in a.iter_mut().zip(read[0]).zip(read[1]).zip(read[2]) {
                    *u = m / (v.sqrt() + eps) + decay * w;
                }
                let [of_weights, of_direction, _] = results;
                norms(read[0], of_weights);
                norms(a, of_direction);
            }
            Pass::Along { length } => {
                let length = length as f32;
                for (w, u) in a.iter_mut().zip(read[0]) {
                    *w -= length * u;
                }
            }
            Pass::LambMomentum { beta1, scale } => {
                let (keep, add, scale) = (beta1 as f32, (1.0 - beta1) as f32, scale as f32);
                for (m, g) in a.iter_mut().zip(b) {
                    let last = *m;
                    *m = (last * keep + add * *g) * scale;
                    *g = last;
                }
            }
            Pass::LambFrozen { beta1, beta2, eps, decay, scale } => {
                let (beta1, rest1) = (beta1 as f32, (1.0 - beta1) as f32);
                let (beta2, rest2) = (beta2 as f32, (1.0 - beta2) as f32);
                let (eps, decay, scale) = (eps as f32, decay as f32, scale as f32);
                let [of_plain, of_direction, of_ratio] = results;
                let blocks = a.chunks_mut(NORM_BLOCK).zip(b.chunks_mut(NORM_BLOCK)).zip(c.chunks_mut(NORM_BLOCK));
                let blocks = blocks.zip(read[0].chunks(NORM_BLOCK).zip(read[1].chunks(NORM_BLOCK)));
                let results = of_plain.iter_mut().zip(of_direction).zip(of_ratio);
                let mut plain = [0.0; NORM_BLOCK];
                for ((((m, u), fresh), (v, w)), ((of_plain, of_direction), of_ratio)) in blocks.zip(results) {
                    let plain = &mut plain[..m.len()];
                    let mut greatest = f32::MIN;
                    let elements = m.iter_mut().zip(u.iter_mut()).zip(fresh).zip(v).zip(w);
                    for (((((m, u), fresh), v), w), plain) in elements.zip(plain.iter_mut()) {
                        *m /= scale;
                        let g = (*m - *u * beta1) / rest1;
                        *fresh = *fresh * beta2 + rest2 * g * g;
                        let root = v.sqrt() + eps;
                        let ratio = root / (fresh.sqrt() + eps);
                        greatest = if ratio > greatest { ratio } else { greatest };
                        *plain = *m / root;
                        *u = *plain + decay * w;
                    }
                    *of_plain = squares(plain);
                    *of_direction = squares(u);
                    *of_ratio = f64::from(greatest);
                }
            }
        }
    }
}

/// The squared norm of each block.
#[inline(always)]
fn norms(x: &[f32], out: &mut [f64]) {
    for (x, out) in x.chunks(NORM_BLOCK).zip(out) {
        *out = squares(x);
    }
}
