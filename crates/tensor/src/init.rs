//! How parameters start: each element is a function of the seed, the parameter and its place.

mod normal;

use oarlock_kernels::decompose::orthogonal;
use oarlock_kernels::random::{self, Permutation, Stream};
use oarlock_kernels::{Error, Result};

use crate::device::Device;
use crate::shape::Shape;

/// How a parameter starts, element by element addressed by (seed, parameter, element). The names are those of
/// `torch.nn.init`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// One number everywhere.
    Constant {
        /// The number.
        value: f32,
    },
    /// Normal with mean 0.
    Normal {
        /// The standard deviation.
        std: f32,
    },
    /// Normal with mean 0, without what lies outside of `low..=high`: `trunc_normal_`, where these are -2 and 2 by
    /// default.
    TruncNormal {
        /// The standard deviation of the whole distribution.
        std: f32,
        /// The least number.
        low: f32,
        /// The largest number.
        high: f32,
    },
    /// Uniform in [-bound, bound).
    Uniform {
        /// The bound.
        bound: f32,
    },
    /// Uniform in [low, high).
    UniformBetween {
        /// The least number.
        low: f32,
        /// Above all numbers.
        high: f32,
    },
    /// Uniform up to `gain · √(6 / (inputs + outputs))` (Glorot and Bengio 2010).
    XavierUniform {
        /// A factor for what follows, see [`Init::gain`].
        gain: f32,
    },
    /// Normal with standard deviation `gain · √(2 / (inputs + outputs))` (Glorot and Bengio 2010).
    XavierNormal {
        /// A factor for what follows, see [`Init::gain`].
        gain: f32,
    },
    /// Uniform up to `gain · √(3 / fan)` (He et al. 2015).
    KaimingUniform {
        /// Whether the size of activations or that of gradients is kept.
        fan: Fan,
        /// A factor for what follows, see [`Init::gain`].
        gain: f32,
    },
    /// Normal with standard deviation `gain / √fan` (He et al. 2015).
    KaimingNormal {
        /// Whether the size of activations or that of gradients is kept.
        fan: Fan,
        /// A factor for what follows, see [`Init::gain`].
        gain: f32,
    },
    /// A matrix `[outputs, everything else]` whose rows, or columns if there are fewer of them, have length `gain` and are
    /// orthogonal (Saxe et al. 2014). All of its elements depend on each other: see [`Init::is_whole`].
    Orthogonal {
        /// A factor for what follows, see [`Init::gain`].
        gain: f32,
    },
    /// Ones on the diagonal of a matrix, and zeros elsewhere.
    Eye,
    /// The weight `[outputs, inputs, kernel ..]` of a convolution that gives each input of a group back as one of its
    /// outputs: a one in the middle of the kernel.
    Dirac {
        /// The groups of the convolution; 1 in torch by default.
        groups: usize,
    },
    /// Normal with mean 0, with zeros at random places: as many in each column of the matrix (Martens 2010).
    Sparse {
        /// The share of zeros in a column; their number is rounded up.
        sparsity: f64,
        /// The standard deviation of the others; 0.01 in torch by default.
        std: f32,
    },
}

/// What the numbers of [`Init::KaimingNormal`] are scaled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// The inputs of an output: activations keep their size.
    In,
    /// The outputs of an input: gradients keep their size.
    Out,
}

/// What follows a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nonlinearity {
    /// Nothing, or a convolution.
    Linear,
    /// The logistic function.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// The larger of x and 0.
    Relu,
    /// A line with this slope below 0.
    LeakyRelu {
        /// The slope.
        negative_slope: f32,
    },
    /// The scaled exponential linear unit.
    Selu,
}

impl Init {
    /// The gain of a layer before a nonlinearity: `calculate_gain`.
    pub fn gain(nonlinearity: Nonlinearity) -> f32 {
        match nonlinearity {
            Nonlinearity::Linear | Nonlinearity::Sigmoid => 1.0,
            Nonlinearity::Tanh => 5.0 / 3.0,
            Nonlinearity::Relu => 2f32.sqrt(),
            Nonlinearity::LeakyRelu { negative_slope } => (2.0 / (1.0 + negative_slope.powi(2))).sqrt(),
            Nonlinearity::Selu => 0.75,
        }
    }

    /// Whether an element depends on all others, so that each call of [`Init::fill`] computes the whole parameter: about
    /// `2 n k²` operations in f64 for an orthogonal matrix of `k` vectors of `n` numbers, and memory for them.
    pub fn is_whole(self) -> bool {
        matches!(self, Init::Orthogonal { .. })
    }

    /// Fills host memory with elements `first..` of a parameter of this shape, whose random numbers are those of
    /// `stream`.
    ///
    /// # Errors
    /// Fewer dims than a distribution needs, groups that do not divide the outputs, a share of zeros outside `0..=1`, or
    /// a normal distribution without anything between its bounds.
    pub fn fill(
        self,
        shape: &Shape,
        device: &Device,
        stream: Stream,
        first: u64,
        out: &mut [f32],
    ) -> Result<()> {
        let cpu = device.host();
        let mut uniform = |low, high| random::fill_uniform(cpu, stream, first, low, high, out);
        match self {
            Init::Zeros => out.fill(0.0),
            Init::Ones => out.fill(1.0),
            Init::Constant { value } => out.fill(value),
            Init::Uniform { bound } => uniform(-bound, bound),
            Init::UniformBetween { low, high } => uniform(low, high),
            Init::XavierUniform { gain } => {
                let (fan_in, fan_out) = fans(shape)?;
                let bound = gain * (6.0 / (fan_in + fan_out)).sqrt();
                uniform(-bound, bound);
            }
            Init::KaimingUniform { fan, gain } => {
                let bound = gain * (3.0 / fan_of(shape, fan)?).sqrt();
                uniform(-bound, bound);
            }
            Init::Normal { std } => random::fill_normal(cpu, stream, first, 0.0, std, out),
            Init::XavierNormal { gain } => {
                let (fan_in, fan_out) = fans(shape)?;
                let std = gain * (2.0 / (fan_in + fan_out)).sqrt();
                random::fill_normal(cpu, stream, first, 0.0, std, out);
            }
            Init::KaimingNormal { fan, gain } => {
                let std = gain / fan_of(shape, fan)?.sqrt();
                random::fill_normal(cpu, stream, first, 0.0, std, out);
            }
            Init::TruncNormal { std, low, high } => {
                if !(std > 0.0 && low < high) {
                    return Err(Error::Usage(format!(
                        "trunc_normal: expected a positive standard deviation and bounds in order, got {std} and {low} to {high}"
                    )));
                }
                uniform(0.0, 1.0);
                normal::truncate(f64::from(std), f64::from(low), f64::from(high), out);
            }
            Init::Orthogonal { gain } => {
                let &[rows, .., _] = shape.sizes() else {
                    return Err(wrong("an orthogonal matrix", "at least two dims", shape));
                };
                let whole = orthogonal::matrix(cpu, rows, shape.n_elems() / rows.max(1), stream, gain);
                out.copy_from_slice(&whole[first as usize..][..out.len()]);
            }
            Init::Eye => {
                let &[_, cols] = shape.sizes() else { return Err(wrong("eye", "two dims", shape)) };
                let one = |i: u64| i / cols as u64 == i % cols as u64;
                each(first, out, |i, _| f32::from(u8::from(one(i))));
            }
            Init::Dirac { groups } => dirac(shape, groups, first, out)?,
            Init::Sparse { sparsity, std } => {
                let &[rows, cols] = shape.sizes() else { return Err(wrong("sparse", "two dims", shape)) };
                if !(0.0..=1.0).contains(&sparsity) {
                    return Err(Error::Usage(format!("sparse: expected a share in 0..=1, got {sparsity}")));
                }
                let n_zeros = (sparsity * rows as f64).ceil() as u64;
                // A random order of the rows for each column.
                let order = |column: u64| {
                    let stream = Stream { stream: stream.stream.wrapping_add(1 + column), ..stream };
                    Permutation::new(stream, rows as u64)
                };
                let orders: Vec<Permutation> = (0..cols as u64).map(order).collect();
                random::fill_normal(cpu, stream, first, 0.0, std, out);
                each(first, out, |i, x| {
                    let (row, column) = (i / cols as u64, (i % cols as u64) as usize);
                    let is_zero = orders[column].get(row).is_some_and(|place| place < n_zeros);
                    if is_zero { 0.0 } else { x }
                });
            }
        }
        Ok(())
    }
}

/// Element `i` becomes `f(i, what it was)`; the first is element `first`.
fn each(first: u64, out: &mut [f32], f: impl Fn(u64, f32) -> f32) {
    out.iter_mut().zip(first..).for_each(|(x, i)| *x = f(i, *x));
}

fn dirac(shape: &Shape, groups: usize, first: u64, out: &mut [f32]) -> Result<()> {
    let &[outputs, inputs, ref kernel @ ..] = shape.sizes() else {
        return Err(wrong("dirac", "at least three dims", shape));
    };
    if kernel.is_empty() {
        return Err(wrong("dirac", "at least three dims", shape));
    }
    if groups == 0 || !outputs.is_multiple_of(groups) {
        return Err(Error::Usage(format!("dirac: {outputs} outputs cannot be divided into {groups} groups")));
    }
    let middle = kernel.iter().fold(0, |at, size| at * size + size / 2);
    let (places, of_group) = (kernel.iter().product::<usize>(), outputs / groups);
    each(first, out, |i, _| {
        let (output, rest) = (i as usize / (inputs * places), i as usize % (inputs * places));
        f32::from(u8::from(rest / places == output % of_group && rest % places == middle))
    });
    Ok(())
}

fn wrong(what: &'static str, expected: &str, shape: &Shape) -> Error {
    Error::Shape { op: what, expected: format!("a parameter of {expected}"), got: format!("{shape:?}") }
}

/// Inputs of an output and outputs of an input, of a weight `[outputs, inputs, kernel ..]`.
fn fans(shape: &Shape) -> Result<(f32, f32)> {
    let &[outputs, inputs, ref kernel @ ..] = shape.sizes() else {
        return Err(wrong("an initial distribution with fans", "at least two dims", shape));
    };
    let kernel: usize = kernel.iter().product();
    Ok(((inputs * kernel).max(1) as f32, (outputs * kernel).max(1) as f32))
}

fn fan_of(shape: &Shape, fan: Fan) -> Result<f32> {
    let (fan_in, fan_out) = fans(shape)?;
    Ok(if fan == Fan::In { fan_in } else { fan_out })
}

#[cfg(test)]
mod tests {
    use oarlock_kernels::difference::largest_magnitude;
    use oarlock_kernels::{Isa, Par};

    use super::*;

    fn filled(init: Init, sizes: &[usize]) -> Vec<f32> {
        let (shape, device) = (Shape::new(sizes).unwrap(), Device::cpu(Isa::detect(), Par::solo()));
        let stream = Stream { seed: 1, stream: 2 };
        let mut whole = vec![0.0; shape.n_elems()];
        init.fill(&shape, &device, stream, 0, &mut whole).unwrap();
        let (head, tail) = whole.split_at(whole.len() / 3);
        let mut part = vec![0.0; tail.len()];
        init.fill(&shape, &device, stream, head.len() as u64, &mut part).unwrap();
        assert_eq!(part, tail, "{init:?}: a part is that of the whole");
        whole
    }

    fn std_of(x: &[f32]) -> f32 {
        let mean = x.iter().sum::<f32>() / x.len() as f32;
        (x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / x.len() as f32).sqrt()
    }

    #[test]
    fn fans_and_gains_are_torchs() {
        // [outputs, inputs, 3, 3]: 90 inputs of an output, 180 outputs of an input.
        let sizes = [20, 10, 3, 3];
        let gain = Init::gain(Nonlinearity::Relu);
        for (init, std) in [
            (Init::XavierUniform { gain: 2.0 }, 2.0 * (2.0f32 / 270.0).sqrt()),
            (Init::XavierNormal { gain: 1.0 }, (2.0f32 / 270.0).sqrt()),
            (Init::KaimingUniform { fan: Fan::In, gain }, (2.0f32 / 90.0).sqrt()),
            (Init::KaimingNormal { fan: Fan::Out, gain }, (2.0f32 / 180.0).sqrt()),
            (Init::UniformBetween { low: 1.0, high: 3.0 }, 1.0 / 3f32.sqrt()),
        ] {
            let got = std_of(&filled(init, &sizes));
            assert!((got / std - 1.0).abs() < 0.05, "{init:?}: {got} {std}");
        }
        let largest = largest_magnitude(filled(Init::XavierUniform { gain: 1.0 }, &sizes)).unwrap();
        let bound = f64::from((6.0f32 / 270.0).sqrt());
        assert!(largest <= bound && largest > 0.98 * bound);
        assert_eq!(filled(Init::Constant { value: 0.25 }, &[4]), [0.25; 4]);
        let leaky = Init::gain(Nonlinearity::LeakyRelu { negative_slope: 5f32.sqrt() });
        assert!((leaky - (1f32 / 3.0).sqrt()).abs() < 1e-7);
    }

    #[test]
    fn a_truncated_normal_ends_at_its_bounds_and_is_normal_inside() {
        let x = filled(Init::TruncNormal { std: 0.02, low: -0.02, high: 0.04 }, &[200, 100]);
        assert!(x.iter().all(|x| (-0.02..=0.04).contains(x)));
        // Of a normal distribution, between -1 and 2: mean 0.2296, standard deviation 0.7208.
        let mean = x.iter().sum::<f32>() / x.len() as f32;
        assert!((mean / 0.02 - 0.2296).abs() < 0.02, "{mean}");
        assert!((std_of(&x) / 0.02 - 0.7208).abs() < 0.02);
        let wide = filled(Init::TruncNormal { std: 1.0, low: -10.0, high: 10.0 }, &[200, 100]);
        assert!((std_of(&wide) - 1.0).abs() < 0.02);
    }

    #[test]
    fn impossible_distributions_are_errors() {
        let (shape, device) = (Shape::new(&[3]).unwrap(), Device::cpu(Isa::detect(), Par::solo()));
        let fill = |init: Init| {
            init.fill(&shape, &device, Stream { seed: 1, stream: 2 }, 0, &mut [0.0; 3])
                .unwrap_err()
                .to_string()
        };
        assert!(fill(Init::XavierNormal { gain: 1.0 }).contains("at least two dims, got [3]"));
        assert!(fill(Init::TruncNormal { std: 1.0, low: 1.0, high: 0.0 }).contains("bounds in order"));
        assert_eq!(
            fill(Init::Orthogonal { gain: 1.0 }),
            "an orthogonal matrix: expected a parameter of at least two dims, got [3]"
        );
        assert_eq!(fill(Init::Eye), "eye: expected a parameter of two dims, got [3]");
        assert_eq!(
            fill(Init::Dirac { groups: 1 }),
            "dirac: expected a parameter of at least three dims, got [3]"
        );
    }

    #[test]
    fn ones_and_zeros_are_where_torch_has_them() {
        assert_eq!(filled(Init::Eye, &[2, 3]), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        // Of `[outputs, inputs, 3]` the ones are at (0, 0), (1, 1), (2, 0) and (3, 1), in the middle of the kernel.
        let ones = |init, sizes: &[usize]| -> Vec<usize> {
            let all = filled(init, sizes).into_iter().enumerate();
            all.filter(|(_, x)| *x != 0.0).map(|(i, x)| if x == 1.0 { i } else { usize::MAX }).collect()
        };
        assert_eq!(ones(Init::Dirac { groups: 2 }, &[4, 2, 3]), [1, 10, 13, 22]);
        assert_eq!(ones(Init::Dirac { groups: 1 }, &[3, 2, 2, 3]), [4, 22]);
        let x = filled(Init::Sparse { sparsity: 0.3, std: 0.5 }, &[50, 40]);
        for column in 0..40 {
            let zeros = (0..50).filter(|row| x[row * 40 + column] == 0.0).count();
            assert_eq!(zeros, 15, "column {column}");
        }
        let others: Vec<f32> = x.into_iter().filter(|x| *x != 0.0).collect();
        assert!((std_of(&others) - 0.5).abs() < 0.05);
    }

    #[test]
    fn the_vectors_of_an_orthogonal_matrix_have_the_same_length_and_no_common_direction() {
        for sizes in [&[40usize, 70][..], &[70, 40], &[33, 33], &[1, 5], &[5, 1], &[20, 3, 3, 3], &[0, 4]] {
            let x = filled(Init::Orthogonal { gain: 2.0 }, sizes);
            let rows = sizes[0];
            let cols = x.len() / rows.max(1);
            let at = |vector: usize, i: usize| {
                f64::from(if rows < cols { x[vector * cols + i] } else { x[i * cols + vector] })
            };
            let (k, n) = (rows.min(cols), rows.max(cols));
            for (a, b) in (0..k).flat_map(|a| (0..k).map(move |b| (a, b))) {
                let dot: f64 = (0..n).map(|i| at(a, i) * at(b, i)).sum();
                let want = if a == b { 4.0 } else { 0.0 };
                assert!((dot - want).abs() < 1e-6, "{sizes:?}: {a}, {b}: {dot}");
            }
        }
        let device = |threads| Device::cpu(Isa::detect(), Par::threads(threads).unwrap());
        let portable = Device::cpu(Isa::available()[0], Par::solo());
        let of = |device: &Device| {
            let (shape, mut x) = (Shape::new(&[90, 70]).unwrap(), vec![0.0; 6300]);
            let stream = Stream { seed: 1, stream: 2 };
            Init::Orthogonal { gain: 1.0 }.fill(&shape, device, stream, 0, &mut x).unwrap();
            x
        };
        assert!(of(&portable) == of(&device(1)) && of(&portable) == of(&device(7)));
    }
}
