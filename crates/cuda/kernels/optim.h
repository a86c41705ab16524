// What the steps of optimizers share: a rule for eight elements at a time, torch's lerp.
#pragma once
#include "pieces.h"
#include "sums.h"

// from + weight (to - from), in the one of two forms that torch's lerp takes for this weight.
DEVICE f32 interpolate(f32 from, f32 to, f32 weight) {
  return weight < 0.5f ? from + weight * (to - from) : to - (to - from) * (1.f - weight);
}

// Updates eight elements from number `i` on; absent states are null.
template <class T, class F>
DEVICE void step8(f32* weights, f32* first, f32* second, const f32* grad, T* working, u64 i, u64 left, bool packed, F rule) {
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
}
template <class T> DEVICE bool all_pack(f32* weights, f32* first, f32* second, const f32* grad, T* working) {
  return packs(weights) && packs(first) && packs(second) && packs(grad) && packs(working);
}

// Of many pieces, whose operands are the weights, two states, the gradient and the working copy.
template <class T, class F> DEVICE void step_pieces(const pieces& all, F rule) {
  each_tile(all, [&](u32 piece, u64 start, u64 end) {
    f32 *weights = operand<f32>(all, 0, piece), *first = operand<f32>(all, 1, piece), *second = operand<f32>(all, 2, piece);
    const f32* grad = operand<f32>(all, 3, piece);
    T* working = operand<T>(all, 4, piece);
    bool packed = all_pack(weights, first, second, grad, working);
    for (u64 i = start + threadIdx.x * 8; i < end; i += THREADS * 8)
      step8(weights, first, second, grad, working, i, end - i, packed, rule);
  });
}
