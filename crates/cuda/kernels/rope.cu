// Rotary position embedding: rotates pairs inside the heads of each row.
#include "words.h"

namespace {

// Elements j and j + half of a head make a pair, or with `interleaved` 2 j and 2 j + 1; those behind the pairs stay. Row r
// stands at positions[r], or without positions at r % seq + offset. `sign` is -1 in the backward pass.
//
// A thread has eight pairs, or eight elements that stay; where packs are not aligned it has one. The threads of a row are a
// power of two, so that no index needs a division of 64 bits.
template <class T>
DEVICE void rope(const T* x, T* y, const f32* cos, const f32* sin, const i32* positions, u32 seq, u32 offset, f32 sign,
                 u32 rows, u32 heads, u32 head_dim, u32 half, u32 interleaved) {
  bool packed = packs(x, head_dim) && packs(y) && packs(cos, half) && packs(sin);
  u32 step = packed ? PACK : 1, pairs = half / step, per_head = pairs + (head_dim - 2 * half) / step;
  u32 units = heads * per_head, together = 1;
  while (together < min(units, THREADS)) together *= 2;
  u32 at_once = THREADS / together;
  for (u64 row = (u64)blockIdx.x * at_once + threadIdx.x / together; row < rows; row += (u64)gridDim.x * at_once) {
    u64 position = positions ? (u64)positions[row] : (u32)row % seq + offset;
    for (u32 unit = threadIdx.x % together; unit < units; unit += together) {
      u32 head = unit / per_head, j = unit % per_head;
      u64 at = row * heads * head_dim + head * head_dim;
      if (j >= pairs) {
        u64 rest = at + 2 * half + (j - pairs) * step;
        if (packed) *(Pack<T>*)(y + rest) = *(const Pack<T>*)(x + rest);
        else y[rest] = x[rest];
        continue;
      }
      j *= step;
      u64 angle = position * half + j, a = at + (interleaved ? 2 * j : j), b = a + (interleaved ? step : half);
      if (!packed) {
        f32 c = cos[angle], s = sin[angle] * sign, u = to_f32(x[a]), v = to_f32(x[b]);
        put(y[a], u * c - v * s);
        put(y[b], v * c + u * s);
        continue;
      }
      f32 u[PACK], v[PACK], c[PACK], s[PACK];
      load8(u, x + a, PACK, true);
      load8(v, x + b, PACK, true);
      load8(c, cos + angle, PACK, true);
      load8(s, sin + angle, PACK, true);
      UNROLL for (u32 i = 0; i < PACK; i++) s[i] *= sign;
      // The pair of angle i, either in both packs or side by side in one of them.
      auto turn = [&](f32& first, f32& second, u32 i) {
        f32 before = first;
        first = before * c[i] - second * s[i];
        second = second * c[i] + before * s[i];
      };
      if (interleaved)
        UNROLL for (u32 i = 0; i < PACK / 2; i++) {
          turn(u[2 * i], u[2 * i + 1], i);
          turn(v[2 * i], v[2 * i + 1], PACK / 2 + i);
        }
      else
        UNROLL for (u32 i = 0; i < PACK; i++) turn(u[i], v[i], i);
      store8(y + a, u, PACK, true, 0);
      store8(y + b, v, PACK, true, 0);
    }
  }
}

}  // namespace

#define ROPE(T) \
  KERNEL(rope_##T, THREADS, \
         (const T* x, T* y, const f32* cos, const f32* sin, const i32* positions, u32 seq, u32 offset, f32 sign, \
          u32 rows, u32 heads, u32 head_dim, u32 half, u32 interleaved), \
         rope<T>(x, y, cos, sin, positions, seq, offset, sign, rows, heads, head_dim, half, interleaved))

ROPE(f32)
ROPE(bf16)
ROPE(f16)
