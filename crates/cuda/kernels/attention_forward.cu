// Attention, forward: a block has a tile of queries of a head (usually 64) and walks over the keys that they see, with a running softmax.
#include "attention.h"

namespace {

// Below every finite score, and finite itself so that differences of maxima are numbers.
const f32 FLOOR = -1e30f;

// The running softmax of the two rows that a thread has a part of, and the output so far.
struct Running {
  f32 max[2], sum[2], out[D / 8][4];

  // Scores become probabilities, still to be divided by their sum. They are `unit` times what they are given as.
  DEVICE void take(f32 (&s)[WALKED / 8][4], f32 unit) {
    UNROLL for (int half = 0; half < 2; half++) {
      f32 top = max[half];
      UNROLL for (int j = 0; j < WALKED / 8; j++) top = ::max(top, ::max(s[j][2 * half], s[j][2 * half + 1]));
      // The four lanes that share a row.
      top = ::max(top, shuffle_xor(top, 1));
      top = ::max(top, shuffle_xor(top, 2));
      // Fused with the product of FLOOR, what rounding leaves of `shift` alone is far above 1, of either sign.
      f32 shift = top * unit, back = exp2_fast(min(max[half] * unit - shift, 0.f)), added = 0;
      max[half] = top;
      UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 2 * half; e < 2 * half + 2; e++) {
        s[j][e] = exp2_fast(s[j][e] * unit - shift);
        added += s[j][e];
      }
      sum[half] = sum[half] * back + added;
      UNROLL for (int j = 0; j < D / 8; j++) {
        out[j][2 * half] *= back;
        out[j][2 * half + 1] *= back;
      }
    }
  }
};

// The queries as left operand: in registers where there are enough of them.
template <class E> struct Queries {
  typedef HeldRows<E, D> Type;
};
template <> struct Queries<f32> {
  typedef SharedRows<f32, D> Type;
};
#if HEAD_DIM > 128
template <> struct Queries<bf16> {
  typedef SharedRows<bf16, D> Type;
};
template <> struct Queries<f16> {
  typedef SharedRows<f16, D> Type;
};
#endif

DEVICE void attention_forward(const T* q, const T* k, const T* v, const i32* starts, T* o, f32* lse, const Shape& s) {
  DYNAMIC_SHARED(memory);
  T *tile_q = (T*)memory, *tiles_k = tile_q + TILE_ROWS * LD, *tiles_v = tiles_k + 2 * WALKED * LD;
  T* scratch = tiles_v + 2 * WALKED * LD + threadIdx.x / 32 * Scratch<T, WALKED>::ELEMS;
  // Late queries see most keys: they go first.
  int q0 = ((int)gridDim.x - 1 - (int)blockIdx.x) * TILE_ROWS, head = blockIdx.y, b = blockIdx.z;
  u64 q_stride = (u64)s.heads * s.head_dim, kv_stride = (u64)s.kv_heads * s.head_dim;
  u64 q_start = (u64)b * s.q_len * q_stride + (u64)head * s.head_dim;
  u64 kv_start = (u64)b * s.kv_capacity * kv_stride + (u64)(head / (s.heads / s.kv_heads)) * s.head_dim;
  if (starts) starts += (u64)b * s.q_len;
  k += kv_start;
  v += kv_start;

  Span span(s, starts, q0, TILE_ROWS);
  int first = span.any.high > 0 ? span.any.low / WALKED : 0, end = (span.any.high + WALKED - 1) / WALKED;
  fetch<TILE_ROWS, D>(tile_q, q + q_start, q_stride, q0, s.q_len, s.head_dim);
  if (first < end) {
    fetch<WALKED, D>(tiles_k, k, kv_stride, first * WALKED, s.kv_len, s.head_dim);
    fetch<WALKED, D>(tiles_v, v, kv_stride, first * WALKED, s.kv_len, s.head_dim);
  }
  cp_async_commit();
  cp_async_wait<0>();
  sync_block();
  int warp_row = threadIdx.x / 32 * 16;
  typename Queries<T>::Type queries(tile_q + warp_row * LD);
  Keys seen[2];
  UNROLL for (int half = 0; half < 2; half++) {
    int i = q0 + warp_row + row_of(2 * half);
    seen[half] = visible(s, start_of(s, starts, i), i);
  }
  bool plain = is_plain(s);
  f32 unit = plain ? s.factor : 1.f;
  Running run = {{FLOOR, FLOOR}, {0.f, 0.f}, {}};
  zero(run.out);
  for (int t = first; t < end; t++) {
    T *tile_k = tiles_k + (t - first) % 2 * WALKED * LD, *tile_v = tiles_v + (t - first) % 2 * WALKED * LD;
    if (t > first) {
      cp_async_wait<0>();
      sync_block();
    }
    if (t + 1 < end) {
      fetch<WALKED, D>(tiles_k + (t + 1 - first) % 2 * WALKED * LD, k, kv_stride, (t + 1) * WALKED, s.kv_len, s.head_dim);
      fetch<WALKED, D>(tiles_v + (t + 1 - first) % 2 * WALKED * LD, v, kv_stride, (t + 1) * WALKED, s.kv_len, s.head_dim);
      cp_async_commit();
    }
    f32 scores[WALKED / 8][4], slope;
    zero(scores);
    multiply_transposed<WALKED, D>(scores, queries, tile_k);
    // What most tiles do not need is branched over as a whole: a branch for each score would take longer than the products.
    if (!plain)
      UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++)
        scores[j][e] = score(s, scores[j][e], slope);
    bool masked = !span.sees_all(t * WALKED, (t + 1) * WALKED);
    TELL_TILE(masked);
    if (masked)
      UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++) {
        int key = t * WALKED + col_of(j, e);
        scores[j][e] = (seen[e / 2].low <= key) & (key < seen[e / 2].high) ? scores[j][e] : minus_infinity();
      }
    run.take(scores, unit);
    Rounded<T, WALKED> probs(scores, scratch);
    multiply<D, WALKED>(run.out, probs, tile_v);
  }
  UNROLL for (int half = 0; half < 2; half++) {
    f32 sum = run.sum[half];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    int row = q0 + warp_row + row_of(2 * half);
    if (row >= s.q_len) continue;
    // A query that sees no key gets zeros.
    f32 factor = sum != 0.f ? 1.f / sum : 0.f;
    if (threadIdx.x % 4 == 0)
      lse[((u64)b * s.heads + head) * s.q_len + row] = sum != 0.f ? run.max[half] * unit * LN_2 + logf(sum) : minus_infinity();
    T* to = o + q_start + row * q_stride;
    UNROLL for (int j = 0; j < D / 8; j++)
      if (col_of(j, 0) < s.head_dim)
        put2(to + col_of(j, 0), run.out[j][2 * half] * factor, run.out[j][2 * half + 1] * factor);
  }
}

}  // namespace

ATTENTION_KERNEL(attention_forward,
                 (const T* q, const T* k, const T* v, const i32* doc_start, T* o, f32* lse, SHAPE_PARAMS),
                 attention_forward(q, k, v, doc_start, o, lse, SHAPE))
