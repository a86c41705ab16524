// What the steps of optimizers share: a rule for eight elements at a time, torch's lerp.
#pragma once
#include "words.h"

// from + weight (to - from), in the one of two forms that torch's lerp takes for this weight.
DEVICE f32 interpolate(f32 from, f32 to, f32 weight) {
  return weight < 0.5f ? from + weight * (to - from) : to - (to - from) * (1.f - weight);
}

// Updates eight elements at a time; absent states are null.
template <class T, class F>
DEVICE void step(f32* weights, f32* first, f32* second, const f32* grad, T* working, u64 n, F rule) {
  bool packed = packs(weights) && packs(first) && packs(second) && packs(grad) && packs(working);
  each8(n, [&](u64 i, u64 left) {
    f32 w[8], m[8] = {}, v[8] = {}, g[8];
    load8(w, weights + i, left, packed);
    load8(g, grad + i, left, packed);
    if (first) load8(m, first + i, left, packed);
    if (second) load8(v, second + i, left, packed);
    UNROLL for (u32 k = 0; k < 8; k++) rule(w[k], m[k], v[k], g[k]);
    store8(weights + i, w, left, packed, 0);
    if (first) store8(first + i, m, left, packed, 0);
    if (second) store8(second + i, v, left, packed, 0);
    if (working) store8(working + i, w, left, packed, 0);
  });
}

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
// The sum of them, by one block.
DEVICE f64 sum_of(const f64* sums, u64 n) {
  f64 sum = 0;
  for (u64 i = threadIdx.x; i < n; i += THREADS) sum += sums[i];
  return team_sum<THREADS>(sum);
}
