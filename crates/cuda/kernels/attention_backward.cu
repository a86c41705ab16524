// Attention, backward: probabilities are recomputed from the log-sum-exps, and every gradient is summed by one block in
// one order.
//
// P = exp(scale K Q^T - lse), dS = P (V dO^T - delta), dV = P dO, dK = scale dS Q, dQ = scale dS^T K. Where scores have a
// cap, dS is multiplied by its slope as well. `delta` is the inner product of a query's output and its gradient.
#include "attention.h"

namespace {

struct Pointers {
  const T *q, *k, *v, *d_o;
  const i32* starts;
  const f32 *lse, *delta;
};

// delta [batch, heads, q_len]: a warp for each.
DEVICE void attention_delta(const T* o, const T* d_o, f32* delta, int q_len, int heads, int head_dim, int batch) {
  int at = blockIdx.x * WARPS + threadIdx.x / 32;
  if (at >= batch * heads * q_len) return;
  int row = at % q_len, head = at / q_len % heads, b = at / q_len / heads;
  u64 from = (((u64)b * q_len + row) * heads + head) * head_dim;
  f32 sum = 0;
  for (int c = threadIdx.x % 32; c < head_dim; c += 32) sum += to_f32(o[from + c]) * to_f32(d_o[from + c]);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) delta[at] = sum;
}

// Writes the 16 rows of a warp, times a factor.
DEVICE void write_rows(T* to, u64 stride, const f32 (&c)[D / 8][4], f32 factor, int first, int end, int dim) {
  UNROLL for (int half = 0; half < 2; half++) {
    int row = first + row_of(2 * half);
    if (row >= end) continue;
    UNROLL for (int j = 0; j < D / 8; j++)
      if (col_of(j, 0) < dim)
        put2(to + row * stride + col_of(j, 0), c[j][2 * half] * factor, c[j][2 * half + 1] * factor);
  }
}

// The gradients of 64 keys and values: the sum over all heads of their group and all queries that see one of them, in
// this order. Heads of more than 128 elements take two passes, as registers hold only one of both.
template <bool KEYS, bool VALUES>
DEVICE void key_gradients(Pointers p, T* dk, T* dv, f32 scale, const Shape& s, int tile) {
  DYNAMIC_SHARED(memory);
  T *tile_k = (T*)memory, *tile_v = tile_k + TILE_ROWS * LD, *tile_q = tile_v + TILE_ROWS * LD;
  T *tile_do = tile_q + WALKED * LD, *scratches = tile_do + WALKED * LD;
  T* scratch = scratches + threadIdx.x / 32 * Scratch<T, WALKED>::ELEMS;
  f32 *lses = (f32*)(scratches + WARPS * Scratch<T, WALKED>::ELEMS), *deltas = lses + WALKED;
  Keys* seen = (Keys*)(deltas + WALKED);
  int k0 = tile * TILE_ROWS, kv_head = blockIdx.y, b = blockIdx.z, group = s.heads / s.kv_heads;
  u64 q_stride = (u64)s.heads * s.head_dim, kv_stride = (u64)s.kv_heads * s.head_dim;
  u64 kv_start = (u64)b * s.kv_capacity * kv_stride + (u64)kv_head * s.head_dim;
  const i32* starts = p.starts ? p.starts + (u64)b * s.q_len : nullptr;
  f32 grad_k[KEYS ? D / 8 : 1][4], grad_v[VALUES ? D / 8 : 1][4];
  zero(grad_k);
  zero(grad_v);
  int warp_row = threadIdx.x / 32 * 16;
  if (k0 < s.kv_len) {
    fetch<TILE_ROWS, D>(tile_k, p.k + kv_start, kv_stride, k0, s.kv_len, s.head_dim);
    fetch<TILE_ROWS, D>(tile_v, p.v + kv_start, kv_stride, k0, s.kv_len, s.head_dim);
    cp_async_commit();
    cp_async_wait<0>();
    sync_block();
    SharedRows<T, D> keys(tile_k + warp_row * LD), values(tile_v + warp_row * LD);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
      u64 q_start = (u64)b * s.q_len * q_stride + (u64)head * s.head_dim, statistic = ((u64)b * s.heads + head) * s.q_len;
      // Earlier queries see none of these keys.
      int from = s.causal ? max(k0 - (s.kv_len - s.q_len), 0) / WALKED * WALKED : 0;
      for (int q0 = from; q0 < s.q_len; q0 += WALKED) {
        Span span(s, starts, q0, WALKED);
        if (!span.sees_some(k0, k0 + TILE_ROWS)) continue;
        sync_block();
        fetch<WALKED, D>(tile_q, p.q + q_start, q_stride, q0, s.q_len, s.head_dim);
        fetch<WALKED, D>(tile_do, p.d_o + q_start, q_stride, q0, s.q_len, s.head_dim);
        cp_async_commit();
        if (threadIdx.x < WALKED) {
          int i = q0 + threadIdx.x;
          lses[threadIdx.x] = i < s.q_len ? p.lse[statistic + i] * LOG2_E : 0.f;
          deltas[threadIdx.x] = i < s.q_len ? p.delta[statistic + i] : 0.f;
          seen[threadIdx.x] = visible(s, starts, i);
        }
        cp_async_wait<0>();
        sync_block();
        f32 probs[WALKED / 8][4], grads[WALKED / 8][4];
        zero(probs);
        zero(grads);
        multiply_transposed<WALKED, D>(probs, keys, tile_q);
        if (KEYS) multiply_transposed<WALKED, D>(grads, values, tile_do);
        UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++) {
          int key = k0 + warp_row + row_of(e), col = col_of(j, e);
          f32 slope, power = score(s, probs[j][e], slope) - lses[col];
          probs[j][e] = seen[col].low <= key && key < seen[col].high ? exp2_fast(power) : 0.f;
          grads[j][e] = probs[j][e] * (grads[j][e] - deltas[col]) * slope;
        }
        if constexpr (VALUES) multiply<D, WALKED>(grad_v, Rounded<T, WALKED>(probs, scratch), tile_do);
        if constexpr (KEYS) multiply<D, WALKED>(grad_k, Rounded<T, WALKED>(grads, scratch), tile_q);
      }
    }
  }
  // Rows behind the keys get zeros.
  if constexpr (KEYS) write_rows(dk + kv_start, kv_stride, grad_k, scale, k0 + warp_row, s.kv_capacity, s.head_dim);
  if constexpr (VALUES) write_rows(dv + kv_start, kv_stride, grad_v, 1.f, k0 + warp_row, s.kv_capacity, s.head_dim);
}

DEVICE void attention_backward_kv(Pointers p, T* dk, T* dv, f32 scale, const Shape& s) {
#if HEAD_DIM > 128
  if (blockIdx.x % 2) key_gradients<false, true>(p, dk, dv, scale, s, blockIdx.x / 2);
  else key_gradients<true, false>(p, dk, dv, scale, s, blockIdx.x / 2);
#else
  key_gradients<true, true>(p, dk, dv, scale, s, blockIdx.x);
#endif
}

// The gradients of 64 queries.
DEVICE void attention_backward_q(Pointers p, T* dq, f32 scale, const Shape& s) {
  DYNAMIC_SHARED(memory);
  T *tile_q = (T*)memory, *tile_do = tile_q + TILE_ROWS * LD, *tile_k = tile_do + TILE_ROWS * LD;
  T *tile_v = tile_k + WALKED * LD, *scratch = tile_v + WALKED * LD + threadIdx.x / 32 * Scratch<T, WALKED>::ELEMS;
  int q0 = ((int)gridDim.x - 1 - (int)blockIdx.x) * TILE_ROWS, head = blockIdx.y, b = blockIdx.z;
  u64 q_stride = (u64)s.heads * s.head_dim, kv_stride = (u64)s.kv_heads * s.head_dim;
  u64 q_start = (u64)b * s.q_len * q_stride + (u64)head * s.head_dim, statistic = ((u64)b * s.heads + head) * s.q_len;
  u64 kv_start = (u64)b * s.kv_capacity * kv_stride + (u64)(head / (s.heads / s.kv_heads)) * s.head_dim;
  const i32* starts = p.starts ? p.starts + (u64)b * s.q_len : nullptr;
  fetch<TILE_ROWS, D>(tile_q, p.q + q_start, q_stride, q0, s.q_len, s.head_dim);
  fetch<TILE_ROWS, D>(tile_do, p.d_o + q_start, q_stride, q0, s.q_len, s.head_dim);
  cp_async_commit();
  int warp_row = threadIdx.x / 32 * 16;
  SharedRows<T, D> queries(tile_q + warp_row * LD), d_outs(tile_do + warp_row * LD);
  Keys seen[2];
  f32 lse[2], delta[2], grad_q[D / 8][4];
  UNROLL for (int half = 0; half < 2; half++) {
    int i = q0 + warp_row + row_of(2 * half);
    seen[half] = visible(s, starts, i);
    lse[half] = i < s.q_len ? p.lse[statistic + i] * LOG2_E : 0.f;
    delta[half] = i < s.q_len ? p.delta[statistic + i] : 0.f;
  }
  zero(grad_q);
  Span span(s, starts, q0, TILE_ROWS);
  int first = span.any.high > 0 ? span.any.low / WALKED * WALKED : 0;
  for (int k0 = first; k0 < span.any.high; k0 += WALKED) {
    sync_block();
    fetch<WALKED, D>(tile_k, p.k + kv_start, kv_stride, k0, s.kv_len, s.head_dim);
    fetch<WALKED, D>(tile_v, p.v + kv_start, kv_stride, k0, s.kv_len, s.head_dim);
    cp_async_commit();
    cp_async_wait<0>();
    sync_block();
    f32 probs[WALKED / 8][4], grads[WALKED / 8][4];
    zero(probs);
    zero(grads);
    multiply_transposed<WALKED, D>(probs, queries, tile_k);
    multiply_transposed<WALKED, D>(grads, d_outs, tile_v);
    UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++) {
      int key = k0 + col_of(j, e);
      f32 slope, power = score(s, probs[j][e], slope) - lse[e / 2];
      f32 prob = seen[e / 2].low <= key && key < seen[e / 2].high ? exp2_fast(power) : 0.f;
      grads[j][e] = prob * (grads[j][e] - delta[e / 2]) * slope;
    }
    multiply<D, WALKED>(grad_q, Rounded<T, WALKED>(grads, scratch), tile_k);
  }
  cp_async_wait<0>();
  write_rows(dq + q_start, q_stride, grad_q, scale, q0 + warp_row, s.q_len, s.head_dim);
}

}  // namespace

ATTENTION_KERNEL(attention_delta,
                 (const T* o, const T* d_o, f32* delta, i32 q_len, i32 heads, i32 head_dim, i32 batch),
                 attention_delta(o, d_o, delta, q_len, heads, head_dim, batch))
ATTENTION_KERNEL(attention_backward_kv,
                 (const T* q, const T* k, const T* v, const i32* doc_start, const T* d_o, const f32* lse,
                  const f32* delta, T* dk, T* dv, f32 scale, SHAPE_PARAMS),
                 attention_backward_kv(Pointers{q, k, v, d_o, doc_start, lse, delta}, dk, dv, scale, SHAPE))
ATTENTION_KERNEL(attention_backward_q,
                 (const T* q, const T* k, const T* v, const i32* doc_start, const T* d_o, const f32* lse,
                  const f32* delta, T* dq, f32 scale, SHAPE_PARAMS),
                 attention_backward_q(Pointers{q, k, v, d_o, doc_start, lse, delta}, dq, scale, SHAPE))
