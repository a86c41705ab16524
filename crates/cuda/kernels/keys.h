// Numbers with the order of elements: NaN is the largest.
#pragma once
#include "words.h"

// A number with the order of x.
DEVICE u32 key_of(i32 x) { return (u32)x ^ 0x80000000u; }
template <class T> DEVICE u32 key_of(T x) {
  // Adding 0 makes -0 the 0 that it is equal to.
  f32 v = to_f32(x) + 0.f;
  u32 bits = as_u32(v);
  return v != v ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
}
