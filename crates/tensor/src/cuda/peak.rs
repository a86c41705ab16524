//! How fast a GPU computes matrix products, measured with numbers that are none of zeros: those take less power, so that the
//! clock stays higher than in a training run.

use std::sync::Arc;

use oarlock_kernels::{DType, Error, Result, Store, bf16, f16};

use super::form::{self, Matrix};
use super::{Gpu, failed};

/// A size counts if one product takes so many milliseconds; larger ones reach no more.
const LONG_MS: f32 = 2.0;
const LARGEST: usize = 8192;
/// Products that are timed one by one, as many as fit in some time.
const RUNS: usize = 10;
const TIME_MS: f32 = 40.0;
/// Elements of the pattern that fills the matrices.
const PATTERN: usize = 1 << 16;

impl Gpu {
    /// Floating-point operations per second that products of `dtype` reach: of square matrices that grow until one of them
    /// takes long enough to be timed, the median of several.
    ///
    /// # Errors
    /// No memory, or what a launch met.
    pub fn peak_flops(self: &Arc<Self>, dtype: DType) -> Result<f64> {
        let mut size = 512;
        loop {
            let bytes = size * size * dtype.size();
            let block =
                self.alloc(3 * bytes)?.ok_or(Error::OutOfMemory { bytes: 3 * bytes, what: "matrices" })?;
            // Both factors; the host writes the first bytes, and the GPU repeats them.
            let pattern = pattern(dtype, PATTERN.min(size * size));
            block.write(0, &pattern)?;
            let mut written = pattern.len();
            while written < 2 * bytes {
                let more = written.min(2 * bytes - written);
                self.stream.copy(block.slice(0, more)?, block.slice(written, more)?).map_err(failed)?;
                written += more;
            }
            let matrix = |place: usize| block.slice(place * bytes, bytes);
            let operands = [Matrix::new(matrix(0)?, size, size), Matrix::new(matrix(1)?, size, size)];
            let to = (matrix(2)?, dtype, Store::Overwrite);
            let product = form::product((self.precision(dtype), 1), operands, to, None);
            let product = product.map_err(|_| Error::Usage("a product without a peak".to_string()))?;
            let multiply = || self.blas.multiply(&product);
            // The first one chooses an algorithm.
            let mut times = Vec::new();
            for _ in 0..=RUNS {
                times.push(self.stream.milliseconds(1, multiply).map_err(failed)?);
                if times.len() > 1 && times[1..].iter().sum::<f32>() > TIME_MS {
                    break;
                }
            }
            let times = &mut times[1..];
            times.sort_by(f32::total_cmp);
            let median = times[times.len() / 2];
            if median > LONG_MS || size >= LARGEST {
                return Ok(2.0 * (size as f64).powi(3) / (1e-3 * f64::from(median)));
            }
            size *= 2;
        }
    }
}

/// Numbers between -1 and 1 of which no two neighbors are alike.
fn pattern(dtype: DType, n: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let numbers = (0..n).map(|_| number());
    match dtype {
        DType::BF16 => numbers.flat_map(|x| bf16::from_f32(x).to_ne_bytes()).collect(),
        DType::F16 => numbers.flat_map(|x| f16::from_f32(x).to_ne_bytes()).collect(),
        _ => numbers.flat_map(f32::to_ne_bytes).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_has_numbers_of_all_kinds() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let bytes = pattern(dtype, PATTERN);
            assert_eq!(bytes.len(), PATTERN * dtype.size());
            let mut seen = [false; 256];
            bytes.iter().step_by(dtype.size()).for_each(|byte| seen[usize::from(*byte)] = true);
            let n_seen = seen.iter().filter(|seen| **seen).count();
            assert!(n_seen >= 100, "{n_seen} low bytes of {dtype}");
        }
        let numbers: Vec<f32> = pattern(DType::F32, PATTERN)
            .chunks(4)
            .map(|x| f32::from_ne_bytes(x.try_into().unwrap()))
            .collect();
        let mean = numbers.iter().sum::<f32>() / PATTERN as f32;
        assert!(mean.abs() < 0.02 && numbers.iter().all(|x| (-1.0..1.0).contains(x)), "{mean}");
    }
}
