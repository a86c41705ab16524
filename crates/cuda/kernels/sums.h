// Sums over flat slices: of blocks of 4,096 elements, and of those.
#pragma once
#include "words.h"

// Calls f(element, how many are left) for eight elements at a time, block of 4,096 by block, and writes the sum of what it
// returned in each block, in f64.
const u32 SUM_BLOCK = 4096;
template <class F> DEVICE void sum_blocks(u64 n, f64* sums, F f) {
  for (u64 first = (u64)blockIdx.x * SUM_BLOCK; first < n; first += (u64)gridDim.x * SUM_BLOCK) {
    f64 sum = 0;
    for (u64 i = first + threadIdx.x * 8; i < min(n, first + SUM_BLOCK); i += THREADS * 8) sum += f(i, n - i);
    sum = team_sum<THREADS>(sum);
    if (threadIdx.x == 0) sums[first / SUM_BLOCK] = sum;
  }
}
DEVICE f64 squares(const f32 (&v)[8]) {
  f64 sum = 0;
  UNROLL for (u32 k = 0; k < 8; k++) sum += (f64)v[k] * (f64)v[k];
  return sum;
}
// The sum of them, by one block. A thread has eight on their way at a time; the order depends on n alone.
DEVICE f64 sum_of(const f64* sums, u64 n) {
  f64 sum = 0;
  for (u64 first = threadIdx.x; first < n; first += THREADS * 8) {
    f64 v[8];
    UNROLL for (u32 k = 0; k < 8; k++) v[k] = first + k * THREADS < n ? sums[first + k * THREADS] : 0;
    sum += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  }
  return team_sum<THREADS>(sum);
}
