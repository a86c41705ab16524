// Running sums along a dim, carried in f64.
#include "scan.h"

namespace {

DEVICE f64 widen(i32 v) { return v; }
template <class T> DEVICE f64 widen(T v) { return to_f32(v); }
template <class T> DEVICE void set(T& to, f64 sum) { put(to, (f32)sum); }
// A sum outside of the range of integers becomes the nearest of them.
DEVICE void set(i32& to, f64 sum) { to = (i32)min(max(sum, -2147483648.), 2147483647.); }

const u32 EACH = 8;  // Neighbors that a thread adds.

// Rows that lie in one piece: a block for each, in parts of EACH for a thread.
template <class T> DEVICE void rows_of(u32 reverse, const T* x, T* y, u32 rows, u32 n) {
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    f64 carry = 0;
    for (u32 first = 0; first < n; first += EACH * THREADS) {
      u64 at[EACH];
      f64 sum = 0, all, v[EACH];
      UNROLL for (u32 i = 0; i < EACH; i++) {
        u32 k = first + threadIdx.x * EACH + i;
        at[i] = (u64)row * n + (reverse ? n - 1 - k : k);
        v[i] = k < n ? widen(x[at[i]]) : 0.;
        sum += v[i];
      }
      sum = carry + block_before(sum, all);
      UNROLL for (u32 i = 0; i < EACH; i++) {
        sum += v[i];
        if (first + threadIdx.x * EACH + i < n) set(y[at[i]], sum);
      }
      carry += all;
    }
  }
}

// y[o, k, i] = the sum of x[o, ..= k, i], or with `reverse` of x[o, k .., i].
template <class T> DEVICE void cumsum(u32 reverse, const T* x, T* y, u32 outer, u32 n, u32 inner) {
  if (inner == 1) return rows_of(reverse, x, y, outer, n);
  each((u64)outer * inner, [&](u64 column) {
    f64 sum = 0;
    for (u32 k = 0; k < n; k++) {
      u64 at = (column / inner * n + (reverse ? n - 1 - k : k)) * inner + column % inner;
      sum += widen(x[at]);
      set(y[at], sum);
    }
  });
}

}  // namespace

#define CUMSUM(T) \
  KERNEL(cumsum_##T, THREADS, (u32 reverse, const T* x, T* y, u32 outer, u32 n, u32 inner), \
         cumsum(reverse, x, y, outer, n, inner))

CUMSUM(f32)
CUMSUM(bf16)
CUMSUM(f16)
CUMSUM(i32)
