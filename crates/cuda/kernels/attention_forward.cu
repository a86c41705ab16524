// Attention, forward: a block has a tile of queries of a head (usually 64) and walks over the keys that they see, with a running softmax.
#include "attention.h"

namespace {

// Below every finite score, and finite itself so that differences of maxima are numbers.
const f32 FLOOR = -1e30f;

// The running softmax of the two rows that a thread has a part of, and the output so far.
struct Running {
  f32 max[2], sum[2], back[2], out[D / 8][4];

  // Scores become probabilities, still to be divided by their sum. They are `unit` times what they are given as. The output so
  // far is to be multiplied by `back` before more is added to it.
  DEVICE void take(f32 (&s)[WALKED / 8][4], f32 unit) {
    UNROLL for (int half = 0; half < 2; half++) {
      f32 top = max[half];
      UNROLL for (int j = 0; j < WALKED / 8; j++) top = ::max(top, ::max(s[j][2 * half], s[j][2 * half + 1]));
      // The four lanes that share a row.
      top = ::max(top, shuffle_xor(top, 1));
      top = ::max(top, shuffle_xor(top, 2));
      // Fused with the product of FLOOR, what rounding leaves of `shift` alone is far above 1, of either sign.
      f32 shift = top * unit, added = 0;
      back[half] = exp2_fast(min(max[half] * unit - shift, 0.f));
      max[half] = top;
      UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 2 * half; e < 2 * half + 2; e++) {
        s[j][e] = exp2_fast(s[j][e] * unit - shift);
        added += s[j][e];
      }
      sum[half] = sum[half] * back[half] + added;
    }
  }
  DEVICE void scale() {
    // Most tiles behind the first ones leave the maxima as they are.
    if ((back[0] != 1.f) | (back[1] != 1.f))
      UNROLL for (int j = 0; j < D / 8; j++) UNROLL for (int e = 0; e < 4; e++) out[j][e] *= back[e / 2];
  }
};

DEVICE void attention_forward(const T* q, const T* k, const T* v, const i32* starts, T* o, f32* lse, const Shape& s) {
  DYNAMIC_SHARED(memory);
  T *tile_q = (T*)tiles_of(memory), *tiles_k = tile_q + TILE_ROWS * LD, *tiles_v = tiles_k + 2 * WALKED * LD;
  T* scratch = tiles_v + 2 * WALKED * LD + threadIdx.x / 32 * Scratch<T, WALKED>::ELEMS;
  // Late queries see most keys: those of all heads go first.
  int q0 = ((int)gridDim.y - 1 - (int)blockIdx.y) * TILE_ROWS, head = blockIdx.x % s.heads, b = blockIdx.x / s.heads;
  u32 q_stride = s.heads * s.head_dim, kv_stride = s.kv_heads * s.head_dim;
  u64 q_start = (u64)b * s.q_len * q_stride + (u64)head * s.head_dim;
  u64 kv_start = (u64)b * s.kv_capacity * kv_stride + (u64)(head / (s.heads / s.kv_heads)) * s.head_dim;
  if (starts) starts += (u64)b * s.q_len;
  k += kv_start;
  v += kv_start;

  Span span(s, starts, q0, TILE_ROWS);
  int first = span.any.high > 0 ? span.any.low / WALKED : 0, end = (span.any.high + WALKED - 1) / WALKED;
  auto tile_k = [&](int t) { return tiles_k + (t - first) % 2 * WALKED * LD; };
  auto tile_v = [&](int t) { return tiles_v + (t - first) % 2 * WALKED * LD; };
  // Begins to bring the keys of one tile and the values of another one, where there are such.
  auto begin = [&](int t_k, int t_v) {
    if (t_k < end) fetch<WALKED, D>(tile_k(t_k), k, kv_stride, t_k * WALKED, s.kv_len, s.head_dim);
    if (t_v < end) fetch<WALKED, D>(tile_v(t_v), v, kv_stride, t_v * WALKED, s.kv_len, s.head_dim);
    cp_async_commit();
  };
  fetch<TILE_ROWS, D>(tile_q, q + q_start, q_stride, q0, s.q_len, s.head_dim);
  begin(first, ASYNCHRONOUS ? end : first);
  await_copies();
  int warp_row = threadIdx.x / 32 * 16;
  typename OwnRows<T, D, D <= 128>::Type queries(tile_q);
  Keys seen[2];
  UNROLL for (int half = 0; half < 2; half++) {
    int i = q0 + warp_row + row_of(2 * half);
    seen[half] = visible(s, start_of(s, starts, i), i);
  }
  bool plain = is_plain(s);
  f32 unit = plain ? s.factor : 1.f;
  Running run = {{FLOOR, FLOOR}, {0.f, 0.f}, {}, {}};
  zero(run.out);
  // Products of queries and keys become probabilities.
  auto take = [&](f32 (&scores)[WALKED / 8][4], int t) {
    // What most tiles do not need is branched over as a whole: a branch for each score would take longer than the products.
    f32 slope;
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
  };
  f32 scores[WALKED / 8][4];
  if constexpr (ASYNCHRONOUS) {
    // The products of the next keys, and of these values, are under way while scores become probabilities.
    if (first < end) {
      begin(first + 1, first);
      multiply_transposed<WALKED, D>(scores, queries, tile_k(first));
      finish(scores);
      take(scores, first);
      for (int t = first + 1; t < end; t++) {
        Rounded<T, WALKED> probs(scores, scratch);
        await_copies();
        begin(t + 1, t);
        multiply_transposed<WALKED, D>(scores, queries, tile_k(t));
        multiply<D, WALKED>(run.out, probs, tile_v(t - 1));
        finish_but<1>(scores);
        take(scores, t);
        compute_before_wait(run.sum[0] + run.sum[1]);
        finish(run.out, probs);
        run.scale();
      }
      Rounded<T, WALKED> probs(scores, scratch);
      await_copies();
      multiply<D, WALKED>(run.out, probs, tile_v(end - 1));
      finish(run.out, probs);
    }
  } else {
    for (int t = first; t < end; t++) {
      if (t > first) await_copies();
      begin(t + 1, t + 1);
      multiply_transposed<WALKED, D>(scores, queries, tile_k(t));
      take(scores, t);
      run.scale();
      multiply<D, WALKED>(run.out, Rounded<T, WALKED>(scores, scratch), tile_v(t));
    }
    cp_async_wait<0>();  // Of the last group, which is empty.
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
