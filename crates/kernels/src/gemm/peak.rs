//! The machine's peak: what the micro-kernel reaches when its operands stay in the first-level cache.

use std::time::{Duration, Instant};

use crate::Cpu;
use crate::dtype::DType;

use super::kernel::{Micro, Out, PACKED, Tile};

/// Steps of the measured product: both panels fit the first-level cache.
const STEPS: usize = 128;
const TIME: Duration = Duration::from_millis(8);

/// Floating-point operations per second of one thread of `cpu` in products of `dtype`, the best of many runs in 8 ms:
/// the ceiling against which a utilization is stated.
pub fn peak_flops(cpu: &Cpu, dtype: DType) -> f64 {
    let micro = Micro::of(cpu.isa, dtype);
    let per_word = if micro.pairs { 2 } else { 1 };
    let (a, b) = (vec![0u32; STEPS * micro.a_width], vec![0u32; STEPS * micro.nr]);
    let mut c = vec![0f32; micro.mr * micro.nr];
    let tile = Tile {
        rows: micro.mr,
        cols: micro.nr,
        steps: STEPS,
        a: a.as_ptr().cast(),
        a_row_bytes: PACKED,
        b: b.as_ptr(),
        c: Out::F32(c.as_mut_ptr()),
        c_stride: micro.nr,
        add: false,
    };
    const REPEATS: usize = 100;
    let flops = (2 * micro.mr * micro.nr * STEPS * per_word * REPEATS) as f64;
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < TIME {
        let start = Instant::now();
        for _ in 0..REPEATS {
            // SAFETY: the vectors above have the sizes that the tile names, and nobody else holds them.
            unsafe { micro.tile(&tile) }
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    flops / best
}
