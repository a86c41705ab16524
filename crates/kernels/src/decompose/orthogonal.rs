//! Orthogonal matrices: the vectors of a matrix of normal numbers, each made orthogonal to those before it.

use crate::Cpu;
use crate::isa::multiversion;
use crate::random::{self, Stream};

/// Vectors that are made orthogonal to each other before all later ones are made orthogonal to them: so few that they
/// stay in the cache.
const BLOCK: usize = 32;

/// A matrix `[rows, cols]` of `gain` times orthonormal rows, or columns where there are not more columns than rows. It is
/// the Q of a QR decomposition whose R has a positive diagonal (as torch chooses the signs), of a matrix of normal
/// numbers; so all orthogonal matrices are equally likely (Mezzadri 2007).
pub fn matrix(cpu: &Cpu, rows: usize, cols: usize, stream: Stream, gain: f32) -> Vec<f32> {
    let mut x = vec![0.0f32; rows * cols];
    random::fill_normal(cpu, stream, 0, 0.0, 1.0, &mut x);
    let by_rows = rows < cols;
    let (k, n) = (rows.min(cols), rows.max(cols));
    let place = |vector: usize, i: usize| if by_rows { vector * cols + i } else { i * cols + vector };
    let mut vectors: Vec<f64> =
        (0..k * n).map(|at| f64::from(x[place(at / n.max(1), at % n.max(1))])).collect();
    orthonormalize(cpu, &mut vectors, n);
    for (at, value) in vectors.into_iter().enumerate() {
        x[place(at / n, at % n)] = (f64::from(gain) * value) as f32;
    }
    x
}

/// Gram-Schmidt in its modified form (Golub and Van Loan 2013, section 5.2): in f64, what it loses of the orthogonality is
/// far below the rounding to f32.
fn orthonormalize(cpu: &Cpu, vectors: &mut [f64], n: usize) {
    let mut rest = vectors;
    while !rest.is_empty() {
        let (block, later) = rest.split_at_mut((BLOCK * n).min(rest.len()));
        for i in 0..block.len() / n {
            let (done, after) = block.split_at_mut((i + 1) * n);
            let unit = &mut done[i * n..];
            let length = dot(cpu.isa, unit, unit).sqrt();
            unit.iter_mut().for_each(|x| *x /= length);
            after.chunks_exact_mut(n).for_each(|vector| subtract_projection(cpu.isa, unit, vector));
        }
        let block = &*block;
        cpu.par.chunks_mut(later, n, |_, vector| {
            block.chunks_exact(n).for_each(|unit| subtract_projection(cpu.isa, unit, vector));
        });
        rest = later;
    }
}

const LANES: usize = 8;

multiversion! {
    /// The inner product of two vectors.
    pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
        sum_of_products(a, b)
    }
}

multiversion! {
    /// Makes a vector orthogonal to a vector of length 1.
    pub(crate) fn subtract_projection(unit: &[f64], vector: &mut [f64]) {
        let along = sum_of_products(unit, vector);
        vector.iter_mut().zip(unit).for_each(|(x, unit)| *x -= along * unit);
    }
}

/// Lane by lane, so that each instruction set gives bitwise identical results.
#[inline(always)]
fn sum_of_products(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for l in 0..LANES {
            lanes[l] += a[l] * b[l];
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f64>() + rest
}
