// What the steps of optimizers share: a rule for eight elements at a time, torch's lerp.
#pragma once
#include "sums.h"

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
