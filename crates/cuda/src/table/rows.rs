//! The kernels that work on rows.

use super::{FLOATS, NONE, kernels};
use crate::element::Element::{BF16, F16, F32, I32};
use crate::kernel::Dtypes;
use crate::source;

/// Of a table and of the rows read from it.
const EMBEDDED: &[Dtypes] = &[&[F32, F32], &[BF16, BF16], &[BF16, F32], &[F16, F16], &[F16, F32]];
/// Of logits and of their gradient.
const LOGITS: &[Dtypes] = &[&[F32, F32], &[F32, BF16], &[F32, F16], &[BF16, BF16], &[F16, F16]];
/// Whatever can be compared.
const WORDS: &[Dtypes] = &[&[F32], &[BF16], &[F16], &[I32]];
/// Of terms and of their sum.
const SUMS: &[Dtypes] = &[&[F32, F32], &[BF16, F32], &[F16, F32], &[BF16, BF16], &[F16, F16]];

/// Of terms, of which f32 ones may be the sums of parts, and of their sum.
const ROW_SUMS: &[Dtypes] =
    &[&[F32, F32], &[BF16, F32], &[F16, F32], &[BF16, BF16], &[F16, F16], &[F32, BF16], &[F32, F16]];

kernels! { CROSS_ENTROPY, source::CROSS_ENTROPY;
    token_loss (logits: read(0), labels: read(i32), kind: value(u32), smoothing: value(f32), losses: write(f32),
        rows: value(u32), vocab: value(u32)) for FLOATS;
    label_log_probs (logits: read(0), labels: read(i32), log_probs: write(f32), rows: value(u32), vocab: value(u32))
        for FLOATS;
    token_loss_grad (logits: read(0), labels: read(i32), kind: value(u32), smoothing: value(f32), scale: value(f32),
        row_scales: read(f32), cap: value(f32), losses: write(f32), d_logits: write(1), rows: value(u32),
        vocab: value(u32)) for LOGITS;
}

kernels! { TOTAL_LOSS, source::CROSS_ENTROPY;
    total_loss (losses: read(f32), labels: read(i32), exact: write(f64), loss: write(f32), scale: write(f32),
        n: value(u32)) for NONE;
}

kernels! { EMBED, source::EMBED;
    embed_forward (table: read(0), ids: read(i32), y: write(1), rows: value(u32), dim: value(u32)) for EMBEDDED;
    embed_runs (dy: read(0), order: read(i32), starts: read(i32), runs: update(f32), n: value(u32), dim: value(u32))
        for FLOATS;
    embed_backward (dy: read(0), order: read(i32), starts: read(i32), ids: read(i32), runs: read(f32),
        d_table: update(f32), n_ids: value(u32), dim: value(u32)) for FLOATS;
    place_rows (x: read(f32), ids: read(i32), y: update(0), rows: value(u32), dim: value(u32)) for FLOATS;
}

kernels! { REDUCE, source::REDUCE;
    sum_last (scale: value(f32), x: read(0), out: update(1), add: value(u32), rows: value(u32), dim: value(u32))
        for SUMS;
    squared_norm (x: read(0), blocks: write(f64), n: value(u64)) for FLOATS;
    squared_norms (all: value(pieces)) for NONE;
    sum_f64 (x: read(f64), out: write(f64), n: value(u64)) for NONE;
    mean_f64 (x: read(f64), out: write(f32), divisor: value(u64), n: value(u64)) for NONE;
    sum_ints (x: read(i32), out: write(i32), positions: write(u32), outer: value(u32), n: value(u32),
        inner: value(u32)) for NONE;
}

kernels! { SUM_ROWS, source::REDUCE;
    sum_rows (scale: value(f32), x: read(0), out: update(1), add: value(u32), outer: value(u32), n: value(u32),
        inner: value(u32), width: value(u32), run: value(u32)) for ROW_SUMS;
}

kernels! { REDUCE_WORDS, source::REDUCE;
    extreme (least: value(u32), x: read(0), values: write(0), places: write(i32), outer: value(u32), n: value(u32),
        inner: value(u32)) for WORDS;
}

kernels! { ROPE, source::ROPE;
    rope (x: read(0), y: write(0), cos: read(f32), sin: read(f32), positions: read(i32), seq: value(u32), offset: value(u32),
        sign: value(f32), rows: value(u32), heads: value(u32), head_dim: value(u32), half: value(u32),
        interleaved: value(u32)) for FLOATS;
    rope_split (x: read(0), q: write(0), k: write(0), v: write(0), cos: read(f32), sin: read(f32), seq: value(u32),
        offset: value(u32), rows: value(u32), heads: value(u32), kv_heads: value(u32), head_dim: value(u32),
        half: value(u32), interleaved: value(u32)) for FLOATS;
    rope_join (q: read(0), k: read(0), v: read(0), x: write(0), cos: read(f32), sin: read(f32), seq: value(u32),
        offset: value(u32), rows: value(u32), heads: value(u32), kv_heads: value(u32), head_dim: value(u32),
        half: value(u32), interleaved: value(u32)) for FLOATS;
}

kernels! { ROW_LOSS, source::ROW_LOSS;
    row_loss (x: read(f32), labels: read(i32), weight: read(f32), smoothing: value(f32), log_probs: value(u32),
        losses: write(f32), weights: write(f32), rows: value(u32), n_classes: value(u32)) for NONE;
    row_loss_grad (x: read(f32), labels: read(i32), weight: read(f32), smoothing: value(f32), log_probs: value(u32),
        dy: read(f32), dx: write(0), rows: value(u32), n_classes: value(u32)) for FLOATS;
}

kernels! { SOFTMAX, source::SOFTMAX;
    softmax_forward (x: read(0), y: write(0), rows: value(u32), dim: value(u32)) for FLOATS;
    log_softmax_forward (x: read(0), y: write(0), rows: value(u32), dim: value(u32)) for FLOATS;
    softmax_backward (y: read(0), dy: read(0), dx: update(0), add: value(u32), rows: value(u32), dim: value(u32))
        for FLOATS;
    log_softmax_backward (y: read(0), dy: read(0), dx: update(0), add: value(u32), rows: value(u32), dim: value(u32))
        for FLOATS;
}
