//! The kernels of matrix products.

use super::{FLOATS, kernels};
use crate::element::Element::{BF16, F16, F32};
use crate::kernel::Dtypes;
use crate::source;

/// Of the operands, and of the result.
const PRODUCTS: &[Dtypes] = &[&[F32, F32], &[BF16, BF16], &[BF16, F32], &[F16, F16], &[F16, F32]];

kernels! { GEMM, source::GEMM;
    gemm_nn (a: read(0), a_stride: value(u64), a_batch: value(u64), b: read(0), b_stride: value(u64),
        b_batch: value(u64), c: read(1), bias: read(1), d: write(1), d_stride: value(u64), d_batch: value(u64),
        alpha: value(f32), beta: value(f32), m: value(u32), n: value(u32), k: value(u32)) for PRODUCTS;
    gemm_nt (a: read(0), a_stride: value(u64), a_batch: value(u64), b: read(0), b_stride: value(u64),
        b_batch: value(u64), c: read(1), bias: read(1), d: write(1), d_stride: value(u64), d_batch: value(u64),
        alpha: value(f32), beta: value(f32), m: value(u32), n: value(u32), k: value(u32)) for PRODUCTS;
    gemm_tn (a: read(0), a_stride: value(u64), a_batch: value(u64), b: read(0), b_stride: value(u64),
        b_batch: value(u64), c: read(1), bias: read(1), d: write(1), d_stride: value(u64), d_batch: value(u64),
        alpha: value(f32), beta: value(f32), m: value(u32), n: value(u32), k: value(u32)) for PRODUCTS;
    gemm_tt (a: read(0), a_stride: value(u64), a_batch: value(u64), b: read(0), b_stride: value(u64),
        b_batch: value(u64), c: read(1), bias: read(1), d: write(1), d_stride: value(u64), d_batch: value(u64),
        alpha: value(f32), beta: value(f32), m: value(u32), n: value(u32), k: value(u32)) for PRODUCTS;
}

kernels! { GEMM_QUANTIZED, source::GEMM_QUANTIZED;
    product_4bit_forward (x: read(0), x_stride: value(u64), codes: read(u8), values: read(f32), absmax: read(f32),
        nested: read(u8), map: read(f32), offset: read(f32), bias: read(0), y: update(0), y_stride: value(u64),
        beta: value(f32), m: value(u32), rows: value(u32), cols: value(u32)) for FLOATS;
    product_4bit_backward (x: read(0), x_stride: value(u64), codes: read(u8), values: read(f32), absmax: read(f32),
        nested: read(u8), map: read(f32), offset: read(f32), bias: read(0), y: update(0), y_stride: value(u64),
        beta: value(f32), m: value(u32), rows: value(u32), cols: value(u32)) for FLOATS;
    product_int8_forward (x: read(0), x_stride: value(u64), codes: read(i8), absmax: read(f32), bias: read(0),
        y: update(0), y_stride: value(u64), beta: value(f32), m: value(u32), rows: value(u32), cols: value(u32))
        for FLOATS;
    product_int8_backward (x: read(0), x_stride: value(u64), codes: read(i8), absmax: read(f32), bias: read(0),
        y: update(0), y_stride: value(u64), beta: value(f32), m: value(u32), rows: value(u32), cols: value(u32))
        for FLOATS;
}
