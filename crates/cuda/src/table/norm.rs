//! The kernels of `norm.cu`.

use super::{FLOATS, kernels};
use crate::element::Element::{BF16, F16, F32};
use crate::kernel::Dtypes;
use crate::source::NORM;

/// Of an RMSNorm that adds to its rows first, which is done to residual streams alone.
const ADD_RMS: &[Dtypes] = &[&[F32, F32, F32], &[F32, F32, BF16], &[F32, F32, F16]];
/// Rows, weight and output of an RMSNorm: rows and weight may be f32 where the output has 16 bits.
const RMS: &[Dtypes] = &[
    &[F32, F32, F32],
    &[BF16, BF16, BF16],
    &[F16, F16, F16],
    &[F32, F32, BF16],
    &[F32, F32, F16],
    &[BF16, F32, BF16],
    &[F16, F32, F16],
];

kernels! { KERNELS, NORM;
    rms_norm_forward (x: read(0), weight: read(1), offset: value(f32), eps: value(f32), y: write(2), rstd: write(f32),
        rows: value(u32), dim: value(u32)) for RMS;
    add_rms_norm_forward (x: read(0), part: read(2), sum: write(0), weight: read(1), offset: value(f32), eps: value(f32),
        y: write(2), rstd: write(f32), rows: value(u32), dim: value(u32)) for ADD_RMS;
    rms_norm_apply (x: read(0), weight: read(1), offset: value(f32), rstd: read(f32), y: write(2), rows: value(u32),
        dim: value(u32)) for RMS;
    rms_norm_backward (x: read(0), weight: read(1), offset: value(f32), rstd: read(f32), dy: read(2), dx: update(0),
        rounded: write(2), y: write(2), add: value(u32), partials: write(f32), rows: value(u32), dim: value(u32)) for RMS;
    layer_norm_forward (x: read(0), weight: read(0), bias: read(0), eps: value(f32), y: write(0), mean: write(f32),
        rstd: write(f32), rows: value(u32), dim: value(u32)) for FLOATS;
    layer_norm_backward (x: read(0), weight: read(0), mean: read(f32), rstd: read(f32), dy: read(0), dx: update(0),
        add: value(u32), weight_partials: write(f32), bias_partials: write(f32), rows: value(u32), dim: value(u32))
        for FLOATS;
}
