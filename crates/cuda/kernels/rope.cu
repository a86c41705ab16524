// Rotary position embedding: rotates pairs inside the heads of each row, in place.
#include "words.h"

namespace {

// Elements j and j + half of a head make a pair, or with `interleaved` 2 j and 2 j + 1. Row r stands at positions[r], or
// without positions at r % seq + offset. `sign` is -1 in the backward pass.
template <class T>
DEVICE void rope(T* x, const f32* cos, const f32* sin, const i32* positions, u32 seq, u32 offset, f32 sign, u32 rows,
                 u32 heads, u32 head_dim, u32 half, u32 interleaved) {
  each((u64)rows * heads * half, [&](u64 i) {
    u32 j = (u32)(i % half);
    u64 head = i / half;
    u32 row = (u32)(head / heads);
    u64 position = positions ? (u64)positions[row] : row % seq + offset;
    f32 c = cos[position * half + j], s = sin[position * half + j] * sign;
    T* a = x + head * head_dim + (interleaved ? 2 * j : j);
    T* b = a + (interleaved ? 1 : half);
    f32 u = to_f32(*a), v = to_f32(*b);
    put(*a, u * c - v * s);
    put(*b, v * c + u * s);
  });
}

}  // namespace

#define ROPE(T) \
  KERNEL(rope_##T, THREADS, \
         (T* x, const f32* cos, const f32* sin, const i32* positions, u32 seq, u32 offset, f32 sign, u32 rows, \
          u32 heads, u32 head_dim, u32 half, u32 interleaved), \
         rope<T>(x, cos, sin, positions, seq, offset, sign, rows, heads, head_dim, half, interleaved))

ROPE(f32)
ROPE(bf16)
ROPE(f16)
