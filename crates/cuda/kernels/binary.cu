// Functions of two elements, with broadcasting.
#include "walk.h"

namespace {

enum Binary : u32 {
  ADD, SUB, MUL, DIV, FLOOR_DIVIDE, REMAINDER, MAXIMUM, MINIMUM, POWER, MAXIMUM_SLOPE, MINIMUM_SLOPE, POWER_SLOPE,
  POWER_EXPONENT_SLOPE,
};

// x / y rounded down, from the exact remainder.
DEVICE f32 floor_divide(f32 x, f32 y) {
  if (y == 0.f) return x / y;
  f32 rest = fmodf(x, y), quotient = (x - rest) / y;
  if (rest != 0.f && (rest < 0.f) != (y < 0.f)) quotient -= 1.f;
  // The division of a multiple of y was rounded as well.
  f32 down = floorf(quotient), whole = quotient - down > 0.5f ? down + 1.f : down;
  return whole == 0.f ? copysignf(0.f, x / y) : whole;
}
DEVICE f32 remainder_of(f32 x, f32 y) {
  f32 rest = fmodf(x, y);
  return rest != 0.f && (rest < 0.f) != (y < 0.f) ? rest + y : rest;
}
// 1 where x was chosen, and where one of both is NaN; half where they are equal.
DEVICE f32 share(bool chosen, f32 x, f32 y) { return x == y ? 0.5f : chosen || x != x || y != y ? 1.f : 0.f; }

DEVICE f32 binary(u32 f, f32 a, f32 b) {
  switch (f) {
    case ADD: return a + b;
    case SUB: return a - b;
    case MUL: return a * b;
    case DIV: return a / b;
    case FLOOR_DIVIDE: return floor_divide(a, b);
    case REMAINDER: return remainder_of(a, b);
    // Comparisons written so that NaN passes.
    case MAXIMUM: return a > b || a != a ? a : b;
    case MINIMUM: return a < b || a != a ? a : b;
    case POWER: return powf(a, b);
    case MAXIMUM_SLOPE: return share(a > b, a, b);
    case MINIMUM_SLOPE: return share(a < b, a, b);
    case POWER_SLOPE: return b == 0.f ? 0.f : b * powf(a, b - 1.f);
    default: return a == 0.f && b >= 0.f ? 0.f : powf(a, b) * logf(a);
  }
}

// Of integers, which wrap around: only these functions.
DEVICE i32 binary(u32 f, i32 a, i32 b) {
  switch (f) {
    case ADD: return (i32)((u32)a + (u32)b);
    case SUB: return (i32)((u32)a - (u32)b);
    case MUL: return (i32)((u32)a * (u32)b);
    case MAXIMUM: return max(a, b);
    default: return min(a, b);
  }
}

}  // namespace

#define BINARY(T) \
  KERNEL(binary_##T, THREADS, (u32 f, walk order, const T* x, const T* y, T* out, u64 n), each(n, [&](u64 i) { \
           put(out[i], binary(f, to_f32(x[offset(order, i, 0)]), to_f32(y[offset(order, i, 1)]))); \
         }))

BINARY(f32)
BINARY(bf16)
BINARY(f16)
KERNEL(binary_ints, THREADS, (u32 f, walk order, const i32* x, const i32* y, i32* out, u64 n),
       each(n, [&](u64 i) { out[i] = binary(f, x[offset(order, i, 0)], y[offset(order, i, 1)]); }))
