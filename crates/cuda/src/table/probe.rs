//! The kernels of `probe.cu`, which use one word each; they run in one block.

use super::{NONE, kernels};
use crate::element::Element::{BF16, F16};
use crate::kernel::Dtypes;
use crate::source::PROBE;

/// What tensor cores multiply.
const HALVES: &[Dtypes] = &[&[BF16], &[F16]];

kernels! { WORDS, PROBE, 32, &[];
    probe_mma (a: read(0), b: read(0), c: write(f32)) for HALVES;
    probe_load (x: read(0), rows: write(u32), columns: write(u32)) for HALVES;
    probe_round (x: read(f32), y: write(0), back: write(f32)) for HALVES;
    probe_copy (x: read(0), y: write(0)) for HALVES;
    probe_numbers (x: read(f32), pairs: write(u32), powers: write(f32)) for HALVES;
}

kernels! { PLAIN, PROBE, 32, &[];
    probe_mul (x: read(f32), y: read(f32), z: read(f32), sum: write(f32)) for NONE;
}

kernels! { SUMS, PROBE;
    probe_sums (x: read(f32), shuffled: write(f32), of_warps: write(f32), of_block: write(f32)) for NONE;
}
