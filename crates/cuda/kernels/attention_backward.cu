// Attention, backward: probabilities are recomputed from the log-sum-exps, and every gradient is summed by one block in
// one order.
//
// P = exp(scale K Q^T - lse), dS = P (V dO^T - delta), dV = P dO, dK = scale dS Q, dQ = scale dS^T K. Where scores have a
// cap, dS is multiplied by its slope as well. `delta` is the inner product of a query's output and its gradient.
//
// One pass sums the gradients of keys and values, the other one those of queries, so that two of seven products are computed
// twice. A single pass would have to add dQ in memory for each tile of keys: reading and writing that, the gradients of the
// heads of a group that are added behind, and multiprocessors without a block take longer than the two products.
// bench/runs/2026-11-26-gpu-roofline.md has the arithmetic.
#define IS_BACKWARD
#include "attention.h"

namespace {

// Tiles of a walk that are held at a time: with two, the next one is in flight while products of one are computed.
const int STAGES = HEAD_BYTES <= 256 ? 2 : 1, Q_STAGES = ASYNCHRONOUS ? 3 : STAGES;

// The rows that a warp owns as left operands: in registers where there are enough of them beside sums and scores.
const bool HOLDS_KEYS = D <= 64 && WALKED <= 64, HOLDS_QUERIES = D * WALKED <= 4096;

struct Pointers {
  const T *q, *k, *v, *d_o;
  const i32* starts;
  const f32 *lse, *delta;
};

// delta [batch, heads, q_len]: some lanes of a warp for each, with eight elements at a time.
const int DELTA_LANES = D <= 32 ? 4 : D <= 64 ? 8 : D <= 128 ? 16 : 32;
DEVICE void attention_delta(const T* o, const T* d_o, f32* delta, int q_len, int heads, int head_dim, int batch) {
  int at = (blockIdx.x * ATTENTION_THREADS + threadIdx.x) / DELTA_LANES, n = batch * heads * q_len;
  int col = threadIdx.x % DELTA_LANES * 8, row = at % q_len, head = at / q_len % heads, b = at / q_len / heads;
  f32 x[8], y[8], sum = 0;
  if ((at < n) & (col < head_dim)) {
    u64 from = (((u64)b * q_len + row) * heads + head) * head_dim + col;
    load8(x, o + from, 8, true);
    load8(y, d_o + from, 8, true);
    UNROLL for (int i = 0; i < 8; i++) sum += x[i] * y[i];
  }
  UNROLL for (int m = DELTA_LANES / 2; m; m >>= 1) sum += shuffle_xor(sum, m);
  if ((at < n) & (col == 0)) delta[at] = sum;
}

// Scores that have a cap are no plain products: they become powers of two, and the gradients of outputs times values those of
// scores, but for the probabilities.
template <class Delta>
DEVICE void apply_cap(f32 (&probs)[WALKED / 8][4], f32 (&grads)[WALKED / 8][4], const Shape& s, Delta delta) {
  UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++) {
    f32 slope;
    probs[j][e] = score(s, probs[j][e], slope);
    grads[j][e] = (grads[j][e] - delta(j, e)) * slope;
  }
}
// Scores, `unit` times what they are given as, become probabilities. `lse` and `sees` say of element e of part j what is known of
// its query, and whether that sees its key.
template <class Lse, class Sees>
DEVICE void to_probs(f32 (&probs)[WALKED / 8][4], f32 unit, bool masked, Lse lse, Sees sees) {
  TELL_TILE(masked);
  UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++)
    probs[j][e] = exp2_fast(probs[j][e] * unit - lse(j, e));
  // What most tiles do not need is branched over as a whole: a branch for each score would take longer than the products.
  if (masked)
    UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++)
      probs[j][e] = sees(j, e) ? probs[j][e] : 0.f;
}
// The gradients of outputs times values become those of scores.
template <class Delta>
DEVICE void to_gradients(f32 (&grads)[WALKED / 8][4], const f32 (&probs)[WALKED / 8][4], Delta delta) {
  UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++)
    grads[j][e] = (grads[j][e] - delta(j, e)) * probs[j][e];
}

// Writes the 16 rows of a warp, times a factor.
template <class O> DEVICE void write_rows(O* to, u64 stride, const f32 (&c)[D / 8][4], f32 factor, int first, int end, int dim) {
  UNROLL for (int half = 0; half < 2; half++) {
    int row = first + row_of(2 * half);
    if (row >= end) continue;
    UNROLL for (int j = 0; j < D / 8; j++)
      if (col_of(j, 0) < dim)
        put2(to + row * stride + col_of(j, 0), c[j][2 * half] * factor, c[j][2 * half + 1] * factor);
  }
}

// What a thread knows of a query of the next tile, on its way from memory.
struct Statistics {
  f32 lse, delta;
  int start;
};
// The same of all queries of a tile.
struct alignas(8) Two {
  f32 of[2];
};
struct alignas(16) Queries {
  Two lse[WALKED / 2], delta[WALKED / 2];
  Keys seen[WALKED];
};

// The tiles of queries that see one of the keys of a block: of the heads head .. last_head, in this order.
struct Walk {
  const Shape& s;
  const i32* starts;
  int k0, from, end, last_head, head, q0;
  bool more;
  DEVICE Walk(const Shape& s, const i32* starts, int k0, int head, int last_head)
      : s(s), starts(starts), k0(k0), last_head(last_head), head(head) {
    // Queries before and behind these see none of the keys. All heads have the same, so they are found once.
    int ahead = k0 - (s.kv_len - s.q_len);
    from = s.causal ? max(ahead, 0) : 0;
    end = s.window ? min(ahead + TILE_ROWS - 1 + min(s.window, s.kv_len), s.q_len) : s.q_len;
    if (starts) {
      int first = MANY, last = -1;
      for (int i = from + threadIdx.x % 32; i < end; i += 32) {
        Keys keys = visible(s, starts[i], i);
        if (keys.low >= min(keys.high, k0 + TILE_ROWS) || keys.high <= k0) continue;
        first = min(first, i);
        last = i;
      }
      from = lowest(first);
      end = highest(last) + 1;
    }
    more = from < end;
    q0 = from = from / WALKED * WALKED;
  }
  DEVICE void next() {
    q0 += WALKED;
    if (q0 >= end) {
      more = head < last_head;
      head++;
      q0 = from;
    }
  }
};

// Gradients of keys and values, or where the heads of a group are divided over blocks, the sums of each: parts
// [2, splits, batch, kv_capacity, kv_heads, head_dim].
struct KeyGradients {
  T *dk, *dv;
  f32 *parts, scale;
  int n_splits;
};

// The gradients of a tile of keys and values: the sum over heads of their group and all queries that see one of them, in
// this order. Heads of more than 128 elements take two passes, as registers hold only one of both.
template <bool KEYS, bool VALUES>
DEVICE void key_gradients(Pointers p, const KeyGradients& to, const Shape& s, int tile) {
  DYNAMIC_SHARED(memory);
  T *tile_k = (T*)tiles_of(memory), *tile_v = tile_k + TILE_ROWS * LD, *tiles = tile_v + TILE_ROWS * LD;
  T* scratches = tiles + STAGES * 2 * WALKED * LD;
  T* scratch = scratches + threadIdx.x / 32 * Scratch<T, WALKED>::ELEMS;
  Queries* queries = (Queries*)(scratches + WARPS * Scratch<T, WALKED>::ELEMS);
  int split = blockIdx.x % to.n_splits, kv_head = blockIdx.x / to.n_splits % s.kv_heads;
  int b = blockIdx.x / to.n_splits / s.kv_heads, batch = gridDim.x / to.n_splits / s.kv_heads, k0 = tile * TILE_ROWS;
  u32 q_stride = s.heads * s.head_dim, kv_stride = s.kv_heads * s.head_dim;
  u64 kv_start = (u64)b * s.kv_capacity * kv_stride + (u64)kv_head * s.head_dim;
  const i32* starts = p.starts ? p.starts + (u64)b * s.q_len : nullptr;
  f32 grad_k[KEYS ? D / 8 : 1][4], grad_v[VALUES ? D / 8 : 1][4];
  zero(grad_k);
  zero(grad_v);
  int warp_row = threadIdx.x / 32 * 16;
  bool plain = is_plain(s);
  // Where scores have a cap, it is applied with their inner products.
  f32 unit = plain ? s.factor : 1.f, left_delta = plain ? 1.f : 0.f;
  if (k0 < s.kv_len) {
    int group = s.heads / s.kv_heads, head = kv_head * group;
    Walk walk(s, starts, k0, head + split * group / to.n_splits, head + (split + 1) * group / to.n_splits - 1);
    Statistics ahead;
    // Begins to bring a tile; `there` puts down what it brings into registers.
    auto begin = [&](int stage) {
      if (!walk.more) return;
      T* to = tiles + stage * 2 * WALKED * LD;
      u64 q_start = (u64)b * s.q_len * q_stride + (u64)walk.head * s.head_dim;
      fetch<WALKED, D>(to, p.q + q_start, q_stride, walk.q0, s.q_len, s.head_dim);
      fetch<WALKED, D>(to + WALKED * LD, p.d_o + q_start, q_stride, walk.q0, s.q_len, s.head_dim);
      cp_async_commit();
      int i = walk.q0 + threadIdx.x;
      bool valid = ((int)threadIdx.x < WALKED) & (i < s.q_len);
      u64 at = ((u64)b * s.heads + walk.head) * s.q_len + (valid ? i : 0);
      ahead = {valid ? p.lse[at] : 0.f, valid ? p.delta[at] : 0.f, valid ? start_of(s, starts, i) : 0};
    };
    auto there = [&](int stage) {
      if (!walk.more || (int)threadIdx.x >= WALKED) return;
      queries[stage].lse[threadIdx.x / 2].of[threadIdx.x % 2] = ahead.lse * LOG2_E;
      queries[stage].delta[threadIdx.x / 2].of[threadIdx.x % 2] = ahead.delta;
      queries[stage].seen[threadIdx.x] = visible(s, ahead.start, walk.q0 + threadIdx.x);
    };
    fetch<TILE_ROWS, D>(tile_k, p.k + kv_start, kv_stride, k0, s.kv_len, s.head_dim);
    fetch<TILE_ROWS, D>(tile_v, p.v + kv_start, kv_stride, k0, s.kv_len, s.head_dim);
    cp_async_commit();
    begin(0);
    there(0);
    await_copies();
    typename OwnRows<T, D, HOLDS_KEYS>::Type keys(tile_k), values(tile_v);
    for (int stage = 0; walk.more; stage = (stage + 1) % STAGES) {
      await_copies();  // The tile is there, and nobody reads the one before any more.
      T *tile_q = tiles + stage * 2 * WALKED * LD, *tile_do = tile_q + WALKED * LD;
      const Queries& known = queries[stage];
      bool masked = !Span(s, starts, walk.q0, WALKED).sees_all(k0, k0 + TILE_ROWS);
      if (STAGES == 2) {
        walk.next();
        begin(1 - stage);
      }
      // Read two at a time.
      auto lse = [&](int j, int e) {
        Two two = known.lse[col_of(j, 0) / 2];
        return two.of[e % 2];
      };
      auto delta = [&](int j, int e) {
        Two two = known.delta[col_of(j, 0) / 2];
        return two.of[e % 2];
      };
      auto sees = [&](int j, int e) {
        Keys seen = known.seen[col_of(j, e)];
        int key = k0 + warp_row + row_of(e);
        return (seen.low <= key) & (key < seen.high);
      };
      // What was computed is taken as soon as it is there, while the other products are under way.
      f32 probs[WALKED / 8][4], grads[WALKED / 8][4];
      if (!KEYS) zero(grads);
      multiply_transposed<WALKED, D>(probs, keys, tile_q);
      if constexpr (KEYS) multiply_transposed<WALKED, D>(grads, values, tile_do);
      finish_but<KEYS ? 1 : 0>(probs);
      if (!plain) {
        finish(grads);
        apply_cap(probs, grads, s, delta);
      }
      to_probs(probs, unit, masked, lse, sees);
      Rounded<T, WALKED> of_values(probs, scratch);
      if constexpr (VALUES) multiply<D, WALKED>(grad_v, of_values, tile_do);
      if constexpr (KEYS) {
        if constexpr (VALUES) finish_but<1>(grads);
        else finish(grads);
        to_gradients(grads, probs, [&](int j, int e) { return delta(j, e) * left_delta; });
        Rounded<T, WALKED> of_keys(grads, scratch);
        multiply<D, WALKED>(grad_k, of_keys, tile_q);
        finish(grad_v, grad_k, of_values, of_keys);
      } else {
        finish(grad_v, of_values);
      }
      if (STAGES == 1) {
        sync_block();  // Nobody reads the tile any more.
        walk.next();
        begin(0);
      }
      there((stage + 1) % STAGES);
    }
  }
  // Rows behind the keys get zeros.
  int row = k0 + warp_row;
  if (to.n_splits == 1) {
    if constexpr (KEYS) write_rows(to.dk + kv_start, kv_stride, grad_k, to.scale, row, s.kv_capacity, s.head_dim);
    if constexpr (VALUES) write_rows(to.dv + kv_start, kv_stride, grad_v, 1.f, row, s.kv_capacity, s.head_dim);
  } else {
    u64 n = (u64)batch * s.kv_capacity * kv_stride;
    f32* part = to.parts + split * n + kv_start;
    if constexpr (KEYS) write_rows(part, kv_stride, grad_k, to.scale, row, s.kv_capacity, s.head_dim);
    if constexpr (VALUES) write_rows(part + to.n_splits * n, kv_stride, grad_v, 1.f, row, s.kv_capacity, s.head_dim);
  }
}

DEVICE void attention_backward_kv(Pointers p, const KeyGradients& to, const Shape& s) {
#if HEAD_DIM > 128
  if (blockIdx.y % 2) key_gradients<false, true>(p, to, s, blockIdx.y / 2);
  else key_gradients<true, false>(p, to, s, blockIdx.y / 2);
#else
  key_gradients<true, true>(p, to, s, blockIdx.y);
#endif
}

// The sums of the parts of n gradients of keys and of values.
DEVICE void attention_join_kv(const f32* parts, T* dk, T* dv, int n_splits, u64 n) {
  each8(2 * n, [&](u64 at, u64) {
    u64 i = at % n;
    const f32* part = parts + at / n * n_splits * n + i;
    f32 sum[8], v[8];
    load8(sum, part, 8, true);
    for (int split = 1; split < n_splits; split++) {
      load8(v, part + split * n, 8, true);
      UNROLL for (int k = 0; k < 8; k++) sum[k] += v[k];
    }
    put8((at < n ? dk : dv) + i, sum);
  });
}

// The gradients of a tile of queries.
DEVICE void attention_backward_q(Pointers p, T* dq, f32 scale, const Shape& s) {
  DYNAMIC_SHARED(memory);
  T *tile_q = (T*)tiles_of(memory), *tile_do = tile_q + TILE_ROWS * LD, *tiles = tile_do + TILE_ROWS * LD;
  T* scratch = tiles + Q_STAGES * 2 * WALKED * LD + threadIdx.x / 32 * Scratch<T, WALKED>::ELEMS;
  // Late queries see most keys: those of all heads go first.
  int q0 = ((int)gridDim.y - 1 - (int)blockIdx.y) * TILE_ROWS, head = blockIdx.x % s.heads, b = blockIdx.x / s.heads;
  u32 q_stride = s.heads * s.head_dim, kv_stride = s.kv_heads * s.head_dim;
  u64 q_start = (u64)b * s.q_len * q_stride + (u64)head * s.head_dim, statistic = ((u64)b * s.heads + head) * s.q_len;
  u64 kv_start = (u64)b * s.kv_capacity * kv_stride + (u64)(head / (s.heads / s.kv_heads)) * s.head_dim;
  const i32* starts = p.starts ? p.starts + (u64)b * s.q_len : nullptr;
  Span span(s, starts, q0, TILE_ROWS);
  int first = span.any.high > 0 ? span.any.low / WALKED : 0, end = (span.any.high + WALKED - 1) / WALKED;
  auto tile_k = [&](int t) { return tiles + (t - first) % Q_STAGES * 2 * WALKED * LD; };
  auto tile_v = [&](int t) { return tile_k(t) + WALKED * LD; };
  auto begin = [&](int t) {
    if (t < end) {
      fetch<WALKED, D>(tile_k(t), p.k + kv_start, kv_stride, t * WALKED, s.kv_len, s.head_dim);
      fetch<WALKED, D>(tile_v(t), p.v + kv_start, kv_stride, t * WALKED, s.kv_len, s.head_dim);
    }
    cp_async_commit();
  };
  fetch<TILE_ROWS, D>(tile_q, p.q + q_start, q_stride, q0, s.q_len, s.head_dim);
  fetch<TILE_ROWS, D>(tile_do, p.d_o + q_start, q_stride, q0, s.q_len, s.head_dim);
  begin(first);
  int warp_row = threadIdx.x / 32 * 16;
  Keys seen[2];
  f32 lse[2], delta[2], grad_q[D / 8][4];
  UNROLL for (int half = 0; half < 2; half++) {
    int i = q0 + warp_row + row_of(2 * half);
    seen[half] = visible(s, start_of(s, starts, i), i);
    lse[half] = i < s.q_len ? p.lse[statistic + i] * LOG2_E : 0.f;
    delta[half] = i < s.q_len ? p.delta[statistic + i] : 0.f;
  }
  zero(grad_q);
  await_copies();
  typename OwnRows<T, D, HOLDS_QUERIES>::Type queries(tile_q), d_outs(tile_do);
  bool plain = is_plain(s);
  // Where scores have a cap, it is applied with their inner products.
  f32 unit = plain ? s.factor : 1.f, left_delta = plain ? 1.f : 0.f;
  f32 probs[WALKED / 8][4], grads[WALKED / 8][4];
  auto multiply_both = [&](int t) {
    multiply_transposed<WALKED, D>(probs, queries, tile_k(t));
    multiply_transposed<WALKED, D>(grads, d_outs, tile_v(t));
  };
  // What these products become, with the next ones and `LATER` others behind them under way.
  auto take = [&](int t, auto later) {
    const int LATER = decltype(later)::value;
    finish_but<LATER + 1>(probs);
    if (!plain) {
      finish(grads);
      apply_cap(probs, grads, s, [&](int, int e) { return delta[e / 2]; });
    }
    to_probs(
        probs, unit, !span.sees_all(t * WALKED, (t + 1) * WALKED), [&](int, int e) { return lse[e / 2]; },
        [&](int j, int e) {
          int key = t * WALKED + col_of(j, e);
          return (seen[e / 2].low <= key) & (key < seen[e / 2].high);
        });
    keep(probs);
    finish_but<LATER>(grads);
    to_gradients(grads, probs, [&](int, int e) { return delta[e / 2] * left_delta; });
  };
  if constexpr (ASYNCHRONOUS) {
    // The sums of one tile are under way while the scores of the next one become gradients.
    if (first < end) {
      begin(first + 1);
      multiply_both(first);
      take(first, Constant<0>());
      for (int t = first + 1; t < end; t++) {
        Rounded<T, WALKED> left(grads, scratch);
        await_copies();
        begin(t + 1);
        multiply_both(t);
        multiply<D, WALKED>(grad_q, left, tile_k(t - 1));
        take(t, Constant<1>());
        keep(grads);
        finish(grad_q, left);
      }
      Rounded<T, WALKED> left(grads, scratch);
      multiply<D, WALKED>(grad_q, left, tile_k(end - 1));
      finish(grad_q, left);
    }
  } else {
    for (int t = first; t < end; t++) {
      await_copies();  // The tile is there, and nobody reads the one before any more.
      if (STAGES == 2) begin(t + 1);
      multiply_both(t);
      take(t, Constant<0>());
      multiply<D, WALKED>(grad_q, Rounded<T, WALKED>(grads, scratch), tile_k(t));
      if (STAGES == 1) {
        sync_block();  // Nobody reads the tile any more.
        begin(t + 1);
      }
    }
  }
  cp_async_wait<0>();  // Of the last group, which is empty.
  write_rows(dq + q_start, q_stride, grad_q, scale, q0 + warp_row, s.q_len, s.head_dim);
}

}  // namespace

ATTENTION_KERNEL(attention_delta,
                 (const T* o, const T* d_o, f32* delta, i32 q_len, i32 heads, i32 head_dim, i32 batch),
                 attention_delta(o, d_o, delta, q_len, heads, head_dim, batch))
ATTENTION_KERNEL(attention_backward_kv,
                 (const T* q, const T* k, const T* v, const i32* doc_start, const T* d_o, const f32* lse,
                  const f32* delta, T* dk, T* dv, f32* parts, i32 n_splits, f32 scale, SHAPE_PARAMS),
                 attention_backward_kv(Pointers{q, k, v, d_o, doc_start, lse, delta},
                                       KeyGradients{dk, dv, parts, scale, n_splits}, SHAPE))
ATTENTION_KERNEL(attention_join_kv, (const f32* parts, T* dk, T* dv, i32 n_splits, u64 n),
                 attention_join_kv(parts, dk, dv, n_splits, n))
ATTENTION_KERNEL(attention_backward_q,
                 (const T* q, const T* k, const T* v, const i32* doc_start, const T* d_o, const f32* lse,
                  const f32* delta, T* dq, f32 scale, SHAPE_PARAMS),
                 attention_backward_q(Pointers{q, k, v, d_o, doc_start, lse, delta}, dq, scale, SHAPE))
