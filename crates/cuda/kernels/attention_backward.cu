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
const int STAGES = HEAD_BYTES <= 256 ? 2 : 1;

// The rows that a warp owns as left operands: in registers where there are enough of them beside sums and scores.
const bool HOLDS_KEYS = D <= 64 && WALKED <= 64, HOLDS_QUERIES = D * WALKED <= 4096;
template <class E, bool HELD> struct Owned {
  typedef SharedRows<E, D> Type;
};
template <> struct Owned<bf16, true> {
  typedef HeldRows<bf16, D> Type;
};
template <> struct Owned<f16, true> {
  typedef HeldRows<f16, D> Type;
};

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

// Products of queries and keys become probabilities, those of values and gradients of outputs the gradients of scores.
// `lse`, `delta` and `sees` say of element e of part j what is known of its query, and whether that sees its key.
template <class Lse, class Delta, class Sees>
DEVICE void to_gradients(f32 (&probs)[WALKED / 8][4], f32 (&grads)[WALKED / 8][4], const Shape& s, bool masked, Lse lse,
                         Delta delta, Sees sees) {
  TELL_TILE(masked);
  // What most tiles do not need is branched over as a whole: a branch for each score would take longer than the products.
  if (is_plain(s))
    UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++) {
      probs[j][e] = exp2_fast(probs[j][e] * s.factor - lse(j, e));
      grads[j][e] -= delta(j, e);
    }
  else
    UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++) {
      f32 slope, power = score(s, probs[j][e], slope) - lse(j, e);
      probs[j][e] = exp2_fast(power);
      grads[j][e] = (grads[j][e] - delta(j, e)) * slope;
    }
  if (masked)
    UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++)
      probs[j][e] = sees(j, e) ? probs[j][e] : 0.f;
  UNROLL for (int j = 0; j < WALKED / 8; j++) UNROLL for (int e = 0; e < 4; e++) grads[j][e] *= probs[j][e];
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

// What a thread knows of a query of the next tile, on its way from memory.
struct Statistics {
  f32 lse, delta;
  int start;
};
// The same of all queries of a tile.
struct alignas(16) Queries {
  f32 lse[WALKED], delta[WALKED];
  Keys seen[WALKED];
};

// The tiles of queries that see one of the keys of a block: of all heads of their group, in this order.
struct Walk {
  const Shape& s;
  const i32* starts;
  int k0, from, end, last_head, head, q0;
  bool more;
  DEVICE Walk(const Shape& s, const i32* starts, int k0, int kv_head)
      : s(s), starts(starts), k0(k0), last_head((kv_head + 1) * (s.heads / s.kv_heads) - 1),
        head(kv_head * (s.heads / s.kv_heads)) {
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

// The gradients of a tile of keys and values: the sum over all heads of their group and all queries that see one of them, in
// this order. Heads of more than 128 elements take two passes, as registers hold only one of both.
template <bool KEYS, bool VALUES>
DEVICE void key_gradients(Pointers p, T* dk, T* dv, f32 scale, const Shape& s, int tile) {
  DYNAMIC_SHARED(memory);
  T *tile_k = (T*)memory, *tile_v = tile_k + TILE_ROWS * LD, *tiles = tile_v + TILE_ROWS * LD;
  T* scratches = tiles + STAGES * 2 * WALKED * LD;
  T* scratch = scratches + threadIdx.x / 32 * Scratch<T, WALKED>::ELEMS;
  Queries* queries = (Queries*)(scratches + WARPS * Scratch<T, WALKED>::ELEMS);
  int k0 = tile * TILE_ROWS, kv_head = blockIdx.y, b = blockIdx.z;
  u64 q_stride = (u64)s.heads * s.head_dim, kv_stride = (u64)s.kv_heads * s.head_dim;
  u64 kv_start = (u64)b * s.kv_capacity * kv_stride + (u64)kv_head * s.head_dim;
  const i32* starts = p.starts ? p.starts + (u64)b * s.q_len : nullptr;
  f32 grad_k[KEYS ? D / 8 : 1][4], grad_v[VALUES ? D / 8 : 1][4];
  zero(grad_k);
  zero(grad_v);
  int warp_row = threadIdx.x / 32 * 16;
  if (k0 < s.kv_len) {
    Walk walk(s, starts, k0, kv_head);
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
      queries[stage].lse[threadIdx.x] = ahead.lse * LOG2_E;
      queries[stage].delta[threadIdx.x] = ahead.delta;
      queries[stage].seen[threadIdx.x] = visible(s, ahead.start, walk.q0 + threadIdx.x);
    };
    fetch<TILE_ROWS, D>(tile_k, p.k + kv_start, kv_stride, k0, s.kv_len, s.head_dim);
    fetch<TILE_ROWS, D>(tile_v, p.v + kv_start, kv_stride, k0, s.kv_len, s.head_dim);
    cp_async_commit();
    begin(0);
    there(0);
    cp_async_wait<0>();
    sync_block();
    typename Owned<T, HOLDS_KEYS>::Type keys(tile_k + warp_row * LD), values(tile_v + warp_row * LD);
    for (int stage = 0; walk.more; stage = (stage + 1) % STAGES) {
      cp_async_wait<0>();
      sync_block();  // The tile is there, and nobody reads the one before any more.
      T *tile_q = tiles + stage * 2 * WALKED * LD, *tile_do = tile_q + WALKED * LD;
      const Queries& of = queries[stage];
      bool masked = !Span(s, starts, walk.q0, WALKED).sees_all(k0, k0 + TILE_ROWS);
      if (STAGES == 2) {
        walk.next();
        begin(1 - stage);
      }
      f32 probs[WALKED / 8][4], grads[WALKED / 8][4];
      zero(probs);
      zero(grads);
      multiply_transposed<WALKED, D>(probs, keys, tile_q);
      if (KEYS) multiply_transposed<WALKED, D>(grads, values, tile_do);
      int key = k0 + warp_row;
      to_gradients(
          probs, grads, s, masked, [&](int j, int e) { return of.lse[col_of(j, e)]; },
          [&](int j, int e) { return of.delta[col_of(j, e)]; },
          [&](int j, int e) {
            Keys seen = of.seen[col_of(j, e)];
            return (seen.low <= key + row_of(e)) & (key + row_of(e) < seen.high);
          });
      if constexpr (VALUES) multiply<D, WALKED>(grad_v, Rounded<T, WALKED>(probs, scratch), tile_do);
      if constexpr (KEYS) multiply<D, WALKED>(grad_k, Rounded<T, WALKED>(grads, scratch), tile_q);
      if (STAGES == 1) {
        sync_block();  // Nobody reads the tile any more.
        walk.next();
        begin(0);
      }
      there((stage + 1) % STAGES);
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

// The gradients of a tile of queries.
DEVICE void attention_backward_q(Pointers p, T* dq, f32 scale, const Shape& s) {
  DYNAMIC_SHARED(memory);
  T *tile_q = (T*)memory, *tile_do = tile_q + TILE_ROWS * LD, *tiles = tile_do + TILE_ROWS * LD;
  T* scratch = tiles + STAGES * 2 * WALKED * LD + threadIdx.x / 32 * Scratch<T, WALKED>::ELEMS;
  int q0 = ((int)gridDim.x - 1 - (int)blockIdx.x) * TILE_ROWS, head = blockIdx.y, b = blockIdx.z;
  u64 q_stride = (u64)s.heads * s.head_dim, kv_stride = (u64)s.kv_heads * s.head_dim;
  u64 q_start = (u64)b * s.q_len * q_stride + (u64)head * s.head_dim, statistic = ((u64)b * s.heads + head) * s.q_len;
  u64 kv_start = (u64)b * s.kv_capacity * kv_stride + (u64)(head / (s.heads / s.kv_heads)) * s.head_dim;
  const i32* starts = p.starts ? p.starts + (u64)b * s.q_len : nullptr;
  auto begin = [&](int stage, int k0) {
    T* to = tiles + stage * 2 * WALKED * LD;
    fetch<WALKED, D>(to, p.k + kv_start, kv_stride, k0, s.kv_len, s.head_dim);
    fetch<WALKED, D>(to + WALKED * LD, p.v + kv_start, kv_stride, k0, s.kv_len, s.head_dim);
    cp_async_commit();
  };
  Span span(s, starts, q0, TILE_ROWS);
  int k0 = span.any.high > 0 ? span.any.low / WALKED * WALKED : 0;
  fetch<TILE_ROWS, D>(tile_q, p.q + q_start, q_stride, q0, s.q_len, s.head_dim);
  fetch<TILE_ROWS, D>(tile_do, p.d_o + q_start, q_stride, q0, s.q_len, s.head_dim);
  cp_async_commit();
  if (k0 < span.any.high) begin(0, k0);
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
  cp_async_wait<0>();
  sync_block();
  typename Owned<T, HOLDS_QUERIES>::Type queries(tile_q + warp_row * LD), d_outs(tile_do + warp_row * LD);
  for (int stage = 0; k0 < span.any.high; k0 += WALKED, stage = (stage + 1) % STAGES) {
    cp_async_wait<0>();
    sync_block();  // The tile is there, and nobody reads the one before any more.
    T *tile_k = tiles + stage * 2 * WALKED * LD, *tile_v = tile_k + WALKED * LD;
    bool more = k0 + WALKED < span.any.high;
    if (STAGES == 2 && more) begin(1 - stage, k0 + WALKED);
    f32 probs[WALKED / 8][4], grads[WALKED / 8][4];
    zero(probs);
    zero(grads);
    multiply_transposed<WALKED, D>(probs, queries, tile_k);
    multiply_transposed<WALKED, D>(grads, d_outs, tile_v);
    to_gradients(
        probs, grads, s, !span.sees_all(k0, k0 + WALKED), [&](int, int e) { return lse[e / 2]; },
        [&](int, int e) { return delta[e / 2]; },
        [&](int j, int e) {
          int key = k0 + col_of(j, e);
          return (seen[e / 2].low <= key) & (key < seen[e / 2].high);
        });
    multiply<D, WALKED>(grad_q, Rounded<T, WALKED>(grads, scratch), tile_k);
    if (STAGES == 1 && more) {
      sync_block();  // Nobody reads the tile any more.
      begin(0, k0 + WALKED);
    }
  }
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
