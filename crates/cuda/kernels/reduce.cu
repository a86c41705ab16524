// Sums in fixed trees, and extreme elements.
#include "words.h"

namespace {

// out[row] = scale * sum of a row.
template <u32 TEAM, class T, class U>
DEVICE void sum_last_rows(f32 scale, const T* x, U* out, u32 add, u32 rows, u32 dim) {
  bool packed = packs(x, dim);
  for (u32 row = team_index<TEAM>(); row < rows; row += n_teams<TEAM>()) {
    f32 v[8], sum = 0;
    for (u32 c = team_lane<TEAM>() * 8; c < dim; c += TEAM * 8) {
      load8(v, x + (u64)row * dim + c, dim - c, packed);
      UNROLL for (u32 i = 0; i < 8; i++) sum += v[i];
    }
    sum = team_sum<TEAM>(sum);
    if (team_lane<TEAM>() == 0) store(out[row], scale * sum, add);
  }
}
template <class T, class U> DEVICE void sum_last(f32 scale, const T* x, U* out, u32 add, u32 rows, u32 dim) {
  if (dim <= WARP_ROW) sum_last_rows<32>(scale, x, out, add, rows, dim);
  else sum_last_rows<THREADS>(scale, x, out, add, rows, dim);
}

// The pairwise tree over numbers that come one after the other: `level[k]` is the sum of 2^k of them.
struct Tree {
  f32 level[24];
  u32 n = 0;
  DEVICE void push(f32 v) {
    bool open = true;
    UNROLL for (u32 k = 0; k < 24; k++) {
      if (!open) continue;
      if (n >> k & 1) v = level[k] + v;
      else {
        level[k] = v;
        open = false;
      }
    }
    n++;
  }
  DEVICE f32 sum() const {
    f32 v = 0;
    bool any = false;
    UNROLL for (u32 k = 0; k < 24; k++)
      if (n >> k & 1) {
        v = any ? level[k] + v : level[k];
        any = true;
      }
    return v;
  }
};

// out[o, i] = scale * sum over k of x[o, k, i]: a warp for 32 columns adds a run of rows whose length is a power of two,
// and the eight warps of a block join their runs, all in the one pairwise tree over the rows.
template <class T, class U>
DEVICE void sum_rows(f32 scale, const T* x, U* out, u32 add, u32 outer, u32 n, u32 inner) {
  SHARED(f32, runs, 8 * 32);
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, run = 1;
  while (8 * (u64)run < n) run *= 2;
  u32 per_row = (inner + 31) / 32;
  for (u64 task = blockIdx.x; task < (u64)outer * per_row; task += gridDim.x) {
    u64 o = task / per_row;
    u32 i = (u32)(task % per_row) * 32 + lane;
    u64 end = min((u64)n, (warp + 1) * (u64)run);
    Tree tree;
    if (i < inner)
      for (u64 k = warp * (u64)run; k < end; k++) tree.push(to_f32(x[(o * n + k) * inner + i]));
    sync_block();
    runs[threadIdx.x] = tree.sum();
    sync_block();
    if (warp == 0 && i < inner) {
      Tree top;
      for (u32 w = 0; w < 8 && w * (u64)run < n; w++) top.push(runs[w * 32 + lane]);
      store(out[o * inner + i], scale * top.sum(), add);
    }
  }
}

// The sum of squares of each block of 4,096 elements, in f64: it neither overflows nor underflows.
const u32 NORM_BLOCK = 4096;
template <class T> DEVICE void squared_norm(const T* x, f64* blocks, u64 n) {
  bool packed = packs(x);
  for (u64 first = (u64)blockIdx.x * NORM_BLOCK; first < n; first += (u64)gridDim.x * NORM_BLOCK) {
    f32 v[8];
    f64 sum = 0;
    for (u64 i = first + threadIdx.x * 8; i < min(n, first + NORM_BLOCK); i += THREADS * 8) {
      load8(v, x + i, n - i, packed);
      UNROLL for (u32 k = 0; k < 8; k++) sum += (f64)v[k] * (f64)v[k];
    }
    sum = team_sum<THREADS>(sum);
    if (threadIdx.x == 0) blocks[first / NORM_BLOCK] = sum;
  }
}

// out = sum of x, by one block.
DEVICE void sum_doubles(const f64* x, f64* out, u64 n) {
  f64 sum = 0;
  for (u64 i = threadIdx.x; i < n; i += THREADS) sum += x[i];
  sum = team_sum<THREADS>(sum);
  if (threadIdx.x == 0) *out = sum;
}

// The same divided by a number, as f32.
DEVICE void mean_doubles(const f64* x, f32* out, u64 divisor, u64 n) {
  f64 sum = 0;
  for (u64 i = threadIdx.x; i < n; i += THREADS) sum += x[i];
  sum = team_sum<THREADS>(sum);
  if (threadIdx.x == 0) *out = (f32)(sum / (f64)divisor);
}

// What elements are compared by.
DEVICE i32 value(i32 v) { return v; }
template <class T> DEVICE f32 value(T v) { return to_f32(v); }

// The extreme element over k of x[o, k, i] and its place, the first of equals; NaN goes before every number.
template <class T>
DEVICE void extreme(u32 least, const T* x, T* values, i32* places, u32 outer, u32 n, u32 inner) {
  each((u64)outer * inner, [&](u64 at) {
    u64 first = at / inner * n * inner + at % inner;
    auto best = value(x[first]);
    u32 place = 0;
    for (u32 k = 1; k < n; k++) {
      auto v = value(x[first + (u64)k * inner]);
      bool before = least ? v < best : v > best;
      if (before || (v != v && best == best)) {
        best = v;
        place = k;
      }
    }
    values[at] = x[first + (u64)place * inner];
    places[at] = (i32)place;
  });
}

// out[o, i] = the sum over k of x[o, k, i], in f64, which holds those of up to 2^22 integers.
// positions [blocks]: the first sum that a block finds beyond the range of integers, or as many as there are sums.
DEVICE void sums_of_ints(const i32* x, i32* out, u32* positions, u32 outer, u32 n, u32 inner) {
  u32 outside = outer * inner;
  auto set = [&](u64 at, f64 sum) {
    if (sum < -2147483648. || sum > 2147483647.) outside = min(outside, (u32)at);
    else out[at] = (i32)sum;
  };
  if (inner == 1) {
    for (u32 row = blockIdx.x; row < outer; row += gridDim.x) {
      f64 sum = 0;
      for (u32 k = threadIdx.x; k < n; k += THREADS) sum += x[(u64)row * n + k];
      sum = team_sum<THREADS>(sum);
      if (threadIdx.x == 0) set(row, sum);
    }
  } else {
    each((u64)outer * inner, [&](u64 at) {
      f64 sum = 0;
      for (u32 k = 0; k < n; k++) sum += x[(at / inner * n + k) * inner + at % inner];
      set(at, sum);
    });
  }
  outside = block_least(outside);
  if (threadIdx.x == 0) positions[blockIdx.x] = outside;
}

}  // namespace

#define SUM(T, U) \
  KERNEL(sum_last_##T##_##U, THREADS, (f32 scale, const T* x, U* out, u32 add, u32 rows, u32 dim), \
         sum_last<T, U>(scale, x, out, add, rows, dim)) \
  KERNEL(sum_rows_##T##_##U, THREADS, (f32 scale, const T* x, U* out, u32 add, u32 outer, u32 n, u32 inner), \
         sum_rows<T, U>(scale, x, out, add, outer, n, inner))
#define REDUCE(T) \
  KERNEL(squared_norm_##T, THREADS, (const T* x, f64* blocks, u64 n), squared_norm<T>(x, blocks, n))
#define EXTREME(T) \
  KERNEL(extreme_##T, THREADS, (u32 least, const T* x, T* values, i32* places, u32 outer, u32 n, u32 inner), \
         extreme<T>(least, x, values, places, outer, n, inner))

SUM(f32, f32)
SUM(bf16, f32)
SUM(f16, f32)
SUM(bf16, bf16)
SUM(f16, f16)
REDUCE(f32)
REDUCE(bf16)
REDUCE(f16)
EXTREME(f32)
EXTREME(bf16)
EXTREME(f16)
EXTREME(i32)
KERNEL(mean_f64, THREADS, (const f64* x, f32* out, u64 divisor, u64 n), mean_doubles(x, out, divisor, n))
KERNEL(sum_ints, THREADS, (const i32* x, i32* out, u32* positions, u32 outer, u32 n, u32 inner),
       sums_of_ints(x, out, positions, outer, n, inner))
KERNEL(sum_f64, THREADS, (const f64* x, f64* out, u64 n), sum_doubles(x, out, n))
