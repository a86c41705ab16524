//! The kernels of attention: each is compiled for one dtype and one size of heads at a time.

use super::{FLOATS, kernels};
use crate::attention::{HEAD_DIMS, THREADS};
use crate::source::{ATTENTION_BACKWARD, ATTENTION_DECODE, ATTENTION_FORWARD};

kernels! { FORWARD, ATTENTION_FORWARD, THREADS, HEAD_DIMS;
    attention_forward (q: read(0), k: read(0), v: read(0), doc_start: read(i32), o: write(0), lse: write(f32),
        q_len: value(i32), kv_len: value(i32), kv_capacity: value(i32), heads: value(i32), kv_heads: value(i32),
        head_dim: value(i32), causal: value(i32), window: value(i32), factor: value(f32), cap: value(f32)) for FLOATS;
}

kernels! { BACKWARD, ATTENTION_BACKWARD, THREADS, HEAD_DIMS;
    attention_delta (o: read(0), d_o: read(0), delta: write(f32), q_len: value(i32), heads: value(i32),
        head_dim: value(i32), batch: value(i32)) for FLOATS;
    attention_backward_kv (q: read(0), k: read(0), v: read(0), doc_start: read(i32), d_o: read(0), lse: read(f32),
        delta: read(f32), dk: write(0), dv: write(0), parts: write(f32), n_splits: value(i32), scale: value(f32), q_len: value(i32), kv_len: value(i32),
        kv_capacity: value(i32), heads: value(i32), kv_heads: value(i32), head_dim: value(i32), causal: value(i32),
        window: value(i32), factor: value(f32), cap: value(f32)) for FLOATS;
    attention_join_kv (parts: read(f32), dk: write(0), dv: write(0), n_splits: value(i32), n: value(u64)) for FLOATS;
    attention_backward_q (q: read(0), k: read(0), v: read(0), doc_start: read(i32), d_o: read(0), lse: read(f32),
        delta: read(f32), dq: write(0), scale: value(f32), q_len: value(i32), kv_len: value(i32),
        kv_capacity: value(i32), heads: value(i32), kv_heads: value(i32), head_dim: value(i32), causal: value(i32),
        window: value(i32), factor: value(f32), cap: value(f32)) for FLOATS;
}

kernels! { DECODE, ATTENTION_DECODE, THREADS, HEAD_DIMS;
    attention_decode (q: read(0), k: read(0), v: read(0), doc_start: read(i32), parts: write(f32), maxima: write(f32),
        sums: write(f32), n_splits: value(i32), q_len: value(i32), kv_len: value(i32), kv_capacity: value(i32),
        heads: value(i32), kv_heads: value(i32), head_dim: value(i32), causal: value(i32), window: value(i32),
        factor: value(f32), cap: value(f32)) for FLOATS;
    attention_decode_join (parts: read(f32), maxima: read(f32), sums: read(f32), o: write(0), lse: write(f32),
        n_splits: value(i32), batch: value(i32), q_len: value(i32), heads: value(i32), kv_heads: value(i32),
        head_dim: value(i32)) for FLOATS;
}
