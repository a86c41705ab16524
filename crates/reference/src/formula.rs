//! Formulas in f64 with their gradients.
//!
//! Everything is made of five operations on arrays, whose gradients are below: functions of an element, functions of two,
//! picked elements, sums of elements by place, and products of matrices. Nothing of the ops' own code takes part.

use std::cell::RefCell;
use std::rc::Rc;
use std::thread;

/// What a node gives to those that it was made of, for a gradient of its own.
type Back = Box<dyn Fn(&[f64]) -> Vec<(usize, Vec<f64>)>>;

/// All arrays of a formula, in the order in which they were made.
#[derive(Clone, Default)]
pub struct Formula(Rc<RefCell<Vec<Back>>>);

/// Numbers with sizes, row after row.
#[derive(Clone)]
pub struct Array {
    formula: Formula,
    at: usize,
    /// The sizes of its dims.
    pub sizes: Vec<usize>,
    /// Its elements.
    pub values: Rc<Vec<f64>>,
}

impl Formula {
    /// Numbers that were computed from others, with what gives those their gradients.
    pub(crate) fn made(&self, sizes: &[usize], values: Vec<f64>, back: Back) -> Array {
        assert_eq!(sizes.iter().product::<usize>(), values.len(), "sizes {sizes:?}");
        let mut nodes = self.0.borrow_mut();
        nodes.push(back);
        Array { formula: self.clone(), at: nodes.len() - 1, sizes: sizes.to_vec(), values: Rc::new(values) }
    }

    /// Numbers that are given.
    pub fn array(&self, sizes: &[usize], values: Vec<f64>) -> Array {
        self.made(sizes, values, Box::new(|_| Vec::new()))
    }

    /// The gradients of these arrays, if that of `y` is `upstream`.
    pub fn gradients(&self, y: &Array, upstream: Vec<f64>, of: &[Array]) -> Vec<Vec<f64>> {
        let nodes = self.0.borrow();
        let mut gradients: Vec<Option<Vec<f64>>> = vec![None; nodes.len()];
        gradients[y.at] = Some(upstream);
        let is_wanted = |at: usize| of.iter().any(|x| x.at == at);
        for at in (0..=y.at).rev().filter(|at| !is_wanted(*at)) {
            // Taken, so that its memory is free for those before it.
            let Some(gradient) = gradients[at].take() else { continue };
            for (from, part) in nodes[at](&gradient) {
                match &mut gradients[from] {
                    Some(sum) => sum.iter_mut().zip(&part).for_each(|(sum, x)| *sum += x),
                    none => *none = Some(part),
                }
            }
        }
        of.iter().map(|x| gradients[x.at].clone().unwrap_or_else(|| vec![0.0; x.values.len()])).collect()
    }
}

/// The distance of neighbors of each dim.
fn steps(sizes: &[usize]) -> Vec<usize> {
    (0..sizes.len()).map(|dim| sizes[dim + 1..].iter().product()).collect()
}

/// For each place of an array of these sizes: the sum of its coordinates, each times its factor.
fn places(sizes: &[usize], factors: &[usize]) -> Vec<usize> {
    sizes.iter().zip(factors).fold(vec![0], |places, (&n, &factor)| {
        places.iter().flat_map(|place| (0..n).map(move |i| place + i * factor)).collect()
    })
}

impl Array {
    /// A function of each element, with its derivative.
    pub fn map(&self, f: impl Fn(f64) -> f64, slope: impl Fn(f64) -> f64 + 'static) -> Array {
        let (at, x) = (self.at, self.values.clone());
        let values = x.iter().map(|x| f(*x)).collect();
        let back = move |dy: &[f64]| vec![(at, x.iter().zip(dy).map(|(x, dy)| slope(*x) * dy).collect())];
        self.formula.made(&self.sizes, values, Box::new(back))
    }

    /// A function of two, with both derivatives; the sizes of `other` must be the same, or those that [`Array::to`] spreads.
    pub fn zip(&self, other: &Array, f: fn(f64, f64) -> f64, slopes: fn(f64, f64) -> (f64, f64)) -> Array {
        if self.sizes != other.sizes {
            return self.zip(&other.to(&self.sizes), f, slopes);
        }
        let (of, x, y) = ([self.at, other.at], self.values.clone(), other.values.clone());
        let values = x.iter().zip(y.iter()).map(|(x, y)| f(*x, *y)).collect();
        let back = move |dy: &[f64]| {
            let both = x.iter().zip(y.iter()).zip(dy);
            let (a, b) = both
                .map(|((x, y), dy)| {
                    let (a, b) = slopes(*x, *y);
                    (a * dy, b * dy)
                })
                .unzip();
            vec![(of[0], a), (of[1], b)]
        };
        self.formula.made(&self.sizes, values, Box::new(back))
    }

    /// The elements of these places, each as often as it is named.
    pub fn pick(&self, sizes: &[usize], places: Vec<usize>) -> Array {
        let (at, n) = (self.at, self.values.len());
        let values = places.iter().map(|place| self.values[*place]).collect();
        let back = move |dy: &[f64]| {
            let mut dx = vec![0.0; n];
            places.iter().zip(dy).for_each(|(place, dy)| dx[*place] += dy);
            vec![(at, dx)]
        };
        self.formula.made(sizes, values, Box::new(back))
    }

    /// An array of these sizes, where each place has the sum of the elements that go there.
    pub fn sum_by(&self, sizes: &[usize], places: Vec<usize>) -> Array {
        let at = self.at;
        let mut values = vec![0.0; sizes.iter().product()];
        places.iter().zip(self.values.iter()).for_each(|(place, x)| values[*place] += x);
        let back = move |dy: &[f64]| vec![(at, places.iter().map(|place| dy[*place]).collect())];
        self.formula.made(sizes, values, Box::new(back))
    }

    /// `[.., M, K]` times `[.., K, N]`, with the same dims before.
    pub fn product(&self, other: &Array) -> Array {
        let ([.., m, k], [batch @ .., _, n]) = (&self.sizes[..], &other.sizes[..]) else {
            panic!("a product of {:?} and {:?}", self.sizes, other.sizes);
        };
        let (of, a, b) = ([self.at, other.at], self.values.clone(), other.values.clone());
        let (m, k, n) = (*m, *k, *n);
        let values = multiply(&a, &b, [m, k, n]);
        let back = move |dy: &[f64]| {
            if dy.is_empty() {
                return of.into_iter().zip([&a, &b].map(|x| vec![0.0; x.len()])).collect();
            }
            let da = multiply(dy, &transposed(&b, [k, n]), [m, n, k]);
            vec![(of[0], da), (of[1], multiply(&transposed(&a, [m, k]), dy, [k, m, n]))]
        };
        self.formula.made(&[batch, &[m, n]].concat(), values, Box::new(back))
    }

    /// The same numbers with other sizes.
    pub fn reshape(&self, sizes: &[usize]) -> Array {
        let at = self.at;
        self.formula.made(sizes, self.values.to_vec(), Box::new(move |dy| vec![(at, dy.to_vec())]))
    }

    /// Dims in another order.
    pub fn permute<const N: usize>(&self, order: [usize; N]) -> Array {
        let from = steps(&self.sizes);
        let sizes = order.map(|dim| self.sizes[dim]);
        self.pick(&sizes, places(&sizes, &order.map(|dim| from[dim])))
    }

    /// Spread to these sizes, as torch does it: dims that are missing at the front, or of one element, are repeated.
    pub fn to(&self, sizes: &[usize]) -> Array {
        let missing = sizes.len() - self.sizes.len();
        let steps = steps(&self.sizes);
        let factor = |dim: usize| match dim.checked_sub(missing) {
            Some(own) if self.sizes[own] > 1 => steps[own],
            _ => 0,
        };
        self.pick(sizes, places(sizes, &(0..sizes.len()).map(factor).collect::<Vec<_>>()))
    }

    /// Some indices of a dim, in this order.
    pub fn select(&self, dim: usize, indices: &[usize]) -> Array {
        let (mut sizes, factors) = (self.sizes.clone(), steps(&self.sizes));
        sizes[dim] = indices.len();
        let (inner, n) = (factors[dim], indices.len());
        let mut factors_of_rest = factors;
        factors_of_rest[dim] = 0;
        let mut from = places(&sizes, &factors_of_rest);
        from.iter_mut().enumerate().for_each(|(i, from)| *from += indices[i / inner % n] * inner);
        self.pick(&sizes, from)
    }

    /// Sums along a dim, of which one element is left.
    pub fn sum(&self, dim: usize) -> Array {
        let mut sizes = self.sizes.clone();
        sizes[dim] = 1;
        let mut factors = steps(&sizes);
        factors[dim] = 0;
        self.sum_by(&sizes, places(&self.sizes, &factors))
    }

    /// The sum of all, without dims.
    pub fn sum_all(&self) -> Array {
        self.sum_by(&[], vec![0; self.values.len()])
    }

    /// The mean of the last dim, of which one element is left.
    pub fn mean_of_rows(&self) -> Array {
        let last = self.sizes.len() - 1;
        self.sum(last).times(1.0 / self.sizes[last] as f64)
    }

    /// Sums.
    pub fn plus(&self, other: &Array) -> Array {
        self.zip(other, |x, y| x + y, |_, _| (1.0, 1.0))
    }

    /// Differences.
    pub fn minus(&self, other: &Array) -> Array {
        self.zip(other, |x, y| x - y, |_, _| (1.0, -1.0))
    }

    /// Products of elements.
    pub fn mul(&self, other: &Array) -> Array {
        self.zip(other, |x, y| x * y, |x, y| (y, x))
    }

    /// Times a number.
    pub fn times(&self, by: f64) -> Array {
        self.map(|x| by * x, move |_| by)
    }

    /// Exponentials.
    pub fn exp(&self) -> Array {
        self.map(f64::exp, f64::exp)
    }

    /// `1 / sqrt(x + eps)`.
    pub fn inverse_root(&self, eps: f64) -> Array {
        self.map(|x| (x + eps).powf(-0.5), move |x| -0.5 * (x + eps).powf(-1.5))
    }

    /// A number that does not depend on the inputs, in the same formula.
    pub fn beside(&self, sizes: &[usize], values: Vec<f64>) -> Array {
        self.formula.array(sizes, values)
    }

    /// The logarithms of the softmax of the last dim.
    pub fn log_softmax(&self) -> Array {
        let n = self.sizes[self.sizes.len() - 1];
        let largest = |row: &[f64]| row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sizes = self.sizes.clone();
        sizes[self.sizes.len() - 1] = 1;
        // Subtracting the same from a row changes nothing, so it needs no gradient.
        let x = self.minus(&self.beside(&sizes, self.values.chunks(n).map(largest).collect()));
        x.minus(&x.exp().sum(sizes.len() - 1).map(f64::ln, |x| 1.0 / x))
    }

    /// With each element rounded, as its gradient is.
    pub fn rounded(&self, round: impl Fn(f64) -> f64 + 'static) -> Array {
        let at = self.at;
        let rounded = move |x: &[f64]| x.iter().map(|x| round(*x)).collect::<Vec<_>>();
        let values = rounded(&self.values);
        self.formula.made(&self.sizes, values, Box::new(move |dy| vec![(at, rounded(dy))]))
    }

    /// The formula that it is a part of, and its place there.
    pub(crate) fn node(&self) -> (&Formula, usize) {
        (&self.formula, self.at)
    }
}

/// What a formula makes of these inputs, and their gradients where that of the result is `upstream`.
pub fn with_gradients<const N: usize>(
    inputs: [(&[usize], Vec<f64>); N],
    upstream: &[f64],
    of: impl FnOnce(&[Array; N]) -> Array,
) -> (Vec<f64>, [Vec<f64>; N]) {
    let formula = Formula::default();
    let inputs = inputs.map(|(sizes, values)| formula.array(sizes, values));
    let y = of(&inputs);
    let mut gradients = formula.gradients(&y, upstream.to_vec(), &inputs).into_iter();
    (y.values.to_vec(), [(); N].map(|()| gradients.next().unwrap_or_default()))
}

/// What a formula makes of these inputs.
pub fn value<const N: usize>(
    inputs: [(&[usize], Vec<f64>); N],
    of: impl FnOnce(&[Array; N]) -> Array,
) -> Vec<f64> {
    let formula = Formula::default();
    of(&inputs.map(|(sizes, values)| formula.array(sizes, values))).values.to_vec()
}

/// From these many products on they are divided over all cores.
const LARGE: usize = 1 << 22;

/// Products of matrices, `[M, K]` times `[K, N]`, as many as there are.
pub fn multiply(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let mut c = vec![0.0; a.len() / k * n];
    let row = |i: usize, c: &mut [f64]| {
        let b = &b[i / m * k * n..][..k * n];
        for (x, b) in a[i * k..][..k].iter().zip(b.chunks_exact(n)) {
            // As of what a mask hides.
            if *x != 0.0 {
                c.iter_mut().zip(b).for_each(|(c, b)| *c += x * b);
            }
        }
    };
    let cores = if a.len() * n < LARGE { 1 } else { thread::available_parallelism().map_or(1, usize::from) };
    let rows = (a.len() / k).div_ceil(cores).max(1);
    thread::scope(|scope| {
        for (piece, c) in c.chunks_mut(rows * n).enumerate() {
            let row = &row;
            let mut work = move || c.chunks_mut(n).enumerate().for_each(|(i, c)| row(piece * rows + i, c));
            if cores == 1 { work() } else { drop(scope.spawn(work)) }
        }
    });
    c
}

/// `[M, N]` to `[N, M]`, as many as there are.
pub fn transposed(a: &[f64], [m, n]: [usize; 2]) -> Vec<f64> {
    let of_one = |a: &[f64]| (0..m * n).map(|i| a[i % m * n + i / m]).collect::<Vec<_>>();
    a.chunks(m * n).flat_map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::erf;

    /// Everything once, of two inputs.
    fn all([x, y]: &[Array; 2]) -> Array {
        let product = x.product(&y.permute([0, 2, 1])).rounded(|x| f64::from(x as f32));
        let z = product.log_softmax().plus(&product.mean_of_rows()).select(2, &[1, 0, 1]);
        let z = z.mul(&x.sum(2)).mul(&y.map(|y| y * y + 1.0, |y| 2.0 * y).select(2, &[0]).sum(1));
        z.times(0.5)
            .map(erf, |x| std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp())
            .reshape(&[2, 6])
            .sum_all()
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let run = |changed: usize, by: f64| {
            let formula = Formula::default();
            let mut values: Vec<f64> = (0..20).map(|i| f64::from(i * 7 % 11) / 8.0 - 0.5).collect();
            values[changed] += by;
            let y = values.split_off(12);
            let inputs =
                [formula.array(&[2, 2, 3], values), formula.array(&[2, 2, 3], [&y[..], &y[..4]].concat())];
            let z = all(&inputs);
            let gradients = formula.gradients(&z, vec![1.0], &inputs);
            let last = &gradients[1];
            // Four numbers stand at two places.
            let folded = (0..8).map(|i| last[i] + last.get(i + 8).copied().unwrap_or(0.0));
            (z.values[0], gradients[0].iter().copied().chain(folded).collect::<Vec<_>>())
        };
        let (_, gradient) = run(0, 0.0);
        for (i, got) in gradient.iter().enumerate() {
            // So large that the roundings to f32 inside are small beside it.
            let want = (run(i, 1e-2).0 - run(i, -1e-2).0) / 2e-2;
            assert!((got - want).abs() < 1e-3, "{i}: {got}, not {want}");
        }
    }
}
