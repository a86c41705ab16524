// Walking over a dense output while operands move with strides of their own: broadcasts and permutations.
#pragma once
#include "words.h"

DEVICE u64 offset(const walk& w, u64 i, u32 operand) {
  u64 at = 0;
  for (u32 d = w.n_dims; d-- > 0;) {
    u64 row = i / w.sizes[d];
    at += (i - row * w.sizes[d]) * w.strides[operand][d];
    i = row;
  }
  return at;
}
