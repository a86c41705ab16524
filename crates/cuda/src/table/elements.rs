//! The kernels whose elements do not depend on each other.

use super::{FLOATS, NONE, kernels};
use crate::element::Element::{BF16, F16, F32, I32};
use crate::kernel::Dtypes;
use crate::source;

/// Whatever can be moved.
const WORDS: &[Dtypes] = &[&[F32], &[BF16], &[F16], &[I32]];
/// Every two floats that differ.
const CASTS: &[Dtypes] = &[&[F32, BF16], &[F32, F16], &[BF16, F32], &[BF16, F16], &[F16, F32], &[F16, BF16]];
/// Of a sum, and of what is added to it.
const ADDED: &[Dtypes] = &[&[F32, F32], &[F32, BF16], &[F32, F16], &[BF16, BF16], &[F16, F16]];

kernels! { BINARY, source::BINARY;
    binary (f: value(u32), order: value(walk), x: read(0), y: read(0), out: write(0), n: value(u64)) for FLOATS;
}

kernels! { BINARY_INTS, source::BINARY;
    binary_ints (f: value(u32), order: value(walk), x: read(i32), y: read(i32), out: write(i32), n: value(u64)) for NONE;
}

kernels! { COMPARE, source::COMPARE;
    compare (f: value(u32), order: value(walk), x: read(0), y: read(0), out: write(i32), n: value(u64)) for WORDS;
}

kernels! { COPY, source::COPY;
    strided (order: value(walk), x: read(0), y: write(0), n: value(u64)) for WORDS;
    write_strided (order: value(walk), x: read(0), y: update(0), n: value(u64)) for WORDS;
    read_window (full: value(u32), first: value(u32), len: value(u32), whole: read(0), part: write(0), n: value(u64))
        for WORDS;
    write_window (full: value(u32), first: value(u32), len: value(u32), part: read(0), whole: update(0),
        n: value(u64)) for WORDS;
    reversed (x: read(0), y: write(0), n: value(u32), inner: value(u32), n_elems: value(u64)) for WORDS;
    triangle (upper: value(u32), diagonal: value(i32), x: read(0), y: write(0), rows: value(u32), cols: value(u32),
        n: value(u64)) for WORDS;
    select (mask: read(i32), x: read(0), y: read(0), value: value(0), out: write(0), n: value(u64)) for WORDS;
}

kernels! { COPY_FLOATS, source::COPY;
    add_strided (order: value(walk), x: read(0), y: update(0), n: value(u64)) for FLOATS;
    add_window (full: value(u32), first: value(u32), len: value(u32), part: read(0), whole: update(0), n: value(u64))
        for FLOATS;
}

kernels! { ELEMENTWISE, source::ELEMENTWISE;
    cast (x: read(0), y: write(1), n: value(u64)) for CASTS;
    axpy (alpha: value(f32), x: read(1), y: update(0), n: value(u64)) for ADDED;
    add_mixed (x: read(f32), y: read(0), out: write(f32), n: value(u64)) for FLOATS;
    bias_add (x: update(0), bias: read(0), rows: value(u32), dim: value(u32)) for FLOATS;
    from_integers (x: read(i32), y: write(0), n: value(u64)) for FLOATS;
    to_integers (x: read(0), y: write(i32), n: value(u64)) for FLOATS;
    fill (x: write(0), value: value(0), n: value(u64)) for WORDS;
    scale_clamp (x: update(f32), alpha: value(f32), bound: value(f32), n: value(u64)) for NONE;
    soft_cap (x: update(f32), cap: value(f32), n: value(u64)) for NONE;
}

kernels! { GLU, source::GLU;
    gated_forward (act: value(u32), gate: read(0), up: read(0), y: write(0), n: value(u64), width: value(u32),
        stride: value(u32)) for FLOATS;
    gated_backward (act: value(u32), gate: read(0), up: read(0), dy: read(0), d_gate: write(0), d_up: write(0),
        y: write(0), n: value(u64), width: value(u32), stride: value(u32)) for FLOATS;
}

kernels! { PAIR_LOSS, source::PAIR_LOSS;
    pair_loss_sum (kind: value(u32), beta: value(f32), factor: value(f32), x: read(0), target: read(0),
        blocks: write(f64), n: value(u64)) for FLOATS;
    pair_loss_each (kind: value(u32), beta: value(f32), factor: value(f32), x: read(0), target: read(0), y: write(0),
        n: value(u64)) for FLOATS;
    pair_loss_input_grad (kind: value(u32), beta: value(f32), factor: value(f32), scale: value(f32),
        upstream: read(f32), x: read(0), target: read(0), dx: write(0), n: value(u64)) for FLOATS;
    pair_loss_target_grad (kind: value(u32), beta: value(f32), factor: value(f32), scale: value(f32),
        upstream: read(f32), x: read(0), target: read(0), dt: write(0), n: value(u64)) for FLOATS;
}

kernels! { QUANTIZED, source::QUANTIZED;
    dequantize_4bit (codes: read(u8), values: read(f32), absmax: read(f32), nested: read(u8), map: read(f32),
        offset: read(f32), out: write(0), first: value(u64), n: value(u64)) for FLOATS;
    dequantize_int8 (codes: read(i8), absmax: read(f32), out: write(0), first_row: value(u32), rows: value(u32),
        cols: value(u32)) for FLOATS;
}

kernels! { RANDOM_BITS, source::RANDOM;
    random_bits (seed: value(u64), stream: value(u64), first: value(u64), out: write(u32), n: value(u64)) for NONE;
}

kernels! { RANDOM, source::RANDOM;
    fill_uniform (seed: value(u64), stream: value(u64), first: value(u64), low: value(f32), high: value(f32),
        out: write(0), n: value(u64)) for FLOATS;
    fill_steps (seed: value(u64), stream: value(u64), first: value(u64), n_steps: value(f32), out: write(0),
        n: value(u64)) for FLOATS;
    fill_normal (seed: value(u64), stream: value(u64), first: value(u64), mean: value(f32), std: value(f32),
        out: write(0), n: value(u64)) for FLOATS;
    add_normal (seed: value(u64), stream: value(u64), first: value(u64), std: value(f32), x: update(0), n: value(u64))
        for FLOATS;
    dropout (seed: value(u64), stream: value(u64), first: value(u64), threshold: value(u64), scale: value(f32),
        x: read(0), y: write(0), n: value(u64)) for FLOATS;
}

kernels! { UNARY, source::UNARY;
    unary_forward (f: value(u32), a: value(f32), b: value(f32), x: read(0), y: write(0), n: value(u64)) for FLOATS;
    unary_backward (f: value(u32), a: value(f32), b: value(f32), x: read(0), dy: read(0), dx: update(0),
        add: value(u32), n: value(u64)) for FLOATS;
}
