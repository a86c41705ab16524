// Sums in fixed trees, and extreme elements.
#include "pieces.h"
#include "sums.h"

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

// Rows that a thread has on their way at one time, and the most such groups of them that it sums, as a power of two.
const u32 AT_ONCE = 8;
const u32 LEVELS = 4;

// The pairwise sum of the next eight rows of eight columns. What is not there is -0, the number that changes no sum, so that no
// sum depends on how many rows there are behind it.
template <class T> DEVICE void sum_of_eight(f32 (&v)[8], const T* x, u64 stride, u64 rows, u32 columns, bool packed) {
  Pack<T> row[AT_ONCE];
  if (packed && rows >= AT_ONCE) {
    UNROLL for (u32 k = 0; k < AT_ONCE; k++) row[k] = *(const Pack<T>*)(x + k * stride);
  } else {
    UNROLL for (u32 k = 0; k < AT_ONCE; k++) {
      UNROLL for (u32 i = 0; i < 8; i++) row[k].of[i] = k < rows && i < columns ? x[k * stride + i] : rounded<T>(-0.f);
    }
  }
  UNROLL for (u32 i = 0; i < 8; i++) {
    f32 first = to_f32(row[0].of[i]) + to_f32(row[1].of[i]), second = to_f32(row[2].of[i]) + to_f32(row[3].of[i]);
    f32 third = to_f32(row[4].of[i]) + to_f32(row[5].of[i]), fourth = to_f32(row[6].of[i]) + to_f32(row[7].of[i]);
    v[i] = (first + second) + (third + fourth);
  }
}

// out[o, chunk, i] = scale * sum over the rows k of a chunk of x[o, k, i]. A block takes `width` times eight columns of a chunk.
// A thread sums a run of `run` rows, which is a power of two, of eight columns, and the runs are joined in pairs: everything is a
// part of the one pairwise tree over all rows, so that sums are bitwise identical wherever rows are cut into chunks.
template <class T, class U>
DEVICE void sum_rows(f32 scale, const T* x, U* out, u32 add, u32 outer, u32 n, u32 inner, u32 width, u32 run) {
  SHARED(f32, joined, 8 * THREADS);
  u32 lane = threadIdx.x % width, own = threadIdx.x / width, runs = THREADS / width;
  u32 chunks = max(1u, (u32)(((u64)n + runs * run - 1) / (runs * run))), tiles = (inner + 8 * width - 1) / (8 * width);
  bool loads = packs(x, inner), stores = packs(out, inner);
  for (u64 task = blockIdx.x; task < (u64)outer * chunks * tiles; task += gridDim.x) {
    u32 c = (u32)(task % tiles) * 8 * width + lane * 8;
    u64 part = task / tiles, first = (part % chunks * runs + own) * run;
    const T* from = x + (part / chunks * n + first) * inner + c;
    f32 level[LEVELS][8], v[8];
    UNROLL for (u32 i = 0; i < 8; i++) v[i] = -0.f;
    for (u32 group = 0; c < inner && group < run / AT_ONCE; group++) {
      u64 row = first + group * AT_ONCE;
      sum_of_eight(v, from + (u64)group * AT_ONCE * inner, inner, row < n ? n - row : 0, inner - c, loads);
      bool open = true;
      UNROLL for (u32 k = 0; k < LEVELS; k++) {
        open = open && (k == 0 || group >> (k - 1) & 1);
        UNROLL for (u32 i = 0; i < 8; i++) {
          if (open && group >> k & 1) v[i] = level[k][i] + v[i];
          else if (open) level[k][i] = v[i];
        }
      }
    }
    for (u32 step = 1; step < runs; step *= 2) {
      if (own % (2 * step) == step) {
        UNROLL for (u32 i = 0; i < 8; i++) joined[i * THREADS + threadIdx.x] = v[i];
      }
      sync_block();
      if (own % (2 * step) == 0) {
        UNROLL for (u32 i = 0; i < 8; i++) v[i] += joined[i * THREADS + threadIdx.x + step * width];
      }
    }
    if (own != 0 || c >= inner) continue;
    UNROLL for (u32 i = 0; i < 8; i++) v[i] = n ? scale * v[i] : 0.f;
    store8(out + part * inner + c, v, inner - c, stores, add);
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

// The same of many slices, whose operands are the elements and the sums of their blocks.
DEVICE void norms_of_pieces(const pieces& all) {
  each_tile(all, [&](u32 piece, u64 first, u64 end) {
    const f32* x = operand<f32>(all, 0, piece);
    bool packed = packs(x);
    f32 v[8];
    f64 sum = 0;
    for (u64 i = first + threadIdx.x * 8; i < end; i += THREADS * 8) {
      load8(v, x + i, end - i, packed);
      UNROLL for (u32 k = 0; k < 8; k++) sum += (f64)v[k] * (f64)v[k];
    }
    sum = team_sum<THREADS>(sum);
    if (threadIdx.x == 0) operand<f64>(all, 1, piece)[first / PIECE_TILE] = sum;
  });
}

// The sum of each block of 4,096 numbers: of more than one block the sums are summed in the same way.
DEVICE void sum_doubles(const f64* x, f64* out, u64 n) {
  for (u64 block = blockIdx.x; block * SUM_BLOCK < n; block += gridDim.x) {
    f64 sum = sum_of(x + block * SUM_BLOCK, min((u64)SUM_BLOCK, n - block * SUM_BLOCK));
    if (threadIdx.x == 0) out[block] = sum;
  }
}

// The sum divided by a number, as f32, by one block.
DEVICE void mean_doubles(const f64* x, f32* out, u64 divisor, u64 n) {
  f64 sum = sum_of(x, n);
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

#define SUM_ROWS(T, U) \
  KERNEL(sum_rows_##T##_##U, THREADS, \
         (f32 scale, const T* x, U* out, u32 add, u32 outer, u32 n, u32 inner, u32 width, u32 run), \
         sum_rows<T, U>(scale, x, out, add, outer, n, inner, width, run))
#define SUM(T, U) \
  KERNEL(sum_last_##T##_##U, THREADS, (f32 scale, const T* x, U* out, u32 add, u32 rows, u32 dim), \
         sum_last<T, U>(scale, x, out, add, rows, dim)) \
  SUM_ROWS(T, U)
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
SUM_ROWS(f32, bf16)
SUM_ROWS(f32, f16)
REDUCE(f32)
REDUCE(bf16)
REDUCE(f16)
EXTREME(f32)
EXTREME(bf16)
EXTREME(f16)
EXTREME(i32)
KERNEL(squared_norms, THREADS, (const IN_PLACE pieces all), norms_of_pieces(all))
KERNEL(mean_f64, THREADS, (const f64* x, f32* out, u64 divisor, u64 n), mean_doubles(x, out, divisor, n))
KERNEL(sum_ints, THREADS, (const i32* x, i32* out, u32* positions, u32 outer, u32 n, u32 inner),
       sums_of_ints(x, out, positions, outer, n, inner))
KERNEL(sum_f64, THREADS, (const f64* x, f64* out, u64 n), sum_doubles(x, out, n))
