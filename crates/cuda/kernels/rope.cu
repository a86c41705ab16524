// Rotary position embedding: rotates pairs inside the heads of each row, of one tensor or of queries, keys and values that one
// product has made.
#include "words.h"

namespace {

// A head of a row, and where it goes.
template <class T> struct Head {
  const T* from;
  T* to;
};

// Elements j and j + half of a head make a pair, or with `interleaved` 2 j and 2 j + 1; those behind the pairs stay, and so
// do all heads of a row behind the first `turned`. Row r stands at positions[r], or without positions at r % seq + offset.
// `sign` is -1 in the backward pass.
//
// A thread has eight pairs, or eight elements that stay; where packs are not aligned it has one. The threads of a row are a
// power of two, so that no index needs a division of 64 bits.
template <class T, class Heads>
DEVICE void turn(Heads of, bool aligned, const f32* cos, const f32* sin, const i32* positions, u32 seq, u32 offset,
                 f32 sign, u32 rows, u32 heads, u32 turned, u32 head_dim, u32 half, u32 interleaved) {
  bool packed = aligned && head_dim % PACK == 0 && packs(cos, half) && packs(sin);
  u32 step = packed ? PACK : 1, pairs = half / step, per_head = pairs + (head_dim - 2 * half) / step;
  u32 copies = head_dim / step, units = turned * per_head + (heads - turned) * copies, together = 1;
  while (together < min(units, THREADS)) together *= 2;
  u32 at_once = THREADS / together;
  for (u64 row = (u64)blockIdx.x * at_once + threadIdx.x / together; row < rows; row += (u64)gridDim.x * at_once) {
    u64 position = positions ? (u64)positions[row] : (u32)row % seq + offset;
    for (u32 unit = threadIdx.x % together; unit < units; unit += together) {
      bool turns = unit < turned * per_head;
      u32 place = turns ? unit : unit - turned * per_head, of_each = turns ? per_head : copies;
      u32 head = place / of_each + (turns ? 0 : turned), j = place % of_each;
      Head<T> h = of(row, head);
      if (!turns || j >= pairs) {
        u32 rest = turns ? 2 * half + (j - pairs) * step : j * step;
        if (packed) *(Pack<T>*)(h.to + rest) = *(const Pack<T>*)(h.from + rest);
        else h.to[rest] = h.from[rest];
        continue;
      }
      j *= step;
      u64 angle = position * half + j;
      u32 a = interleaved ? 2 * j : j, b = a + (interleaved ? step : half);
      if (!packed) {
        f32 c = cos[angle], s = sin[angle] * sign, u = to_f32(h.from[a]), v = to_f32(h.from[b]);
        put(h.to[a], u * c - v * s);
        put(h.to[b], v * c + u * s);
        continue;
      }
      f32 u[PACK], v[PACK], c[PACK], s[PACK];
      load8(u, h.from + a, PACK, true);
      load8(v, h.from + b, PACK, true);
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
      store8(h.to + a, u, PACK, true, 0);
      store8(h.to + b, v, PACK, true, 0);
    }
  }
}

template <class T>
DEVICE void rope(const T* x, T* y, const f32* cos, const f32* sin, const i32* positions, u32 seq, u32 offset, f32 sign,
                 u32 rows, u32 heads, u32 head_dim, u32 half, u32 interleaved) {
  auto of = [&](u64 row, u32 head) {
    u64 at = (row * heads + head) * head_dim;
    return Head<T>{x + at, y + at};
  };
  turn<T>(of, packs(x) && packs(y), cos, sin, positions, seq, offset, sign, rows, heads, heads, head_dim, half,
          interleaved);
}

// Where head `head` of a row lies that holds queries, keys and values side by side, if each of them is a tensor by itself.
template <class T>
DEVICE T* apart(T* q, T* k, T* v, u64 row, u32 head, u32 heads, u32 kv_heads, u32 head_dim) {
  if (head < heads) return q + (row * heads + head) * head_dim;
  head -= heads;
  return head < kv_heads ? k + (row * kv_heads + head) * head_dim : v + (row * kv_heads + head - kv_heads) * head_dim;
}

// Rows of queries, keys and values become three tensors; queries and keys are turned.
template <class T>
DEVICE void rope_split(const T* x, T* q, T* k, T* v, const f32* cos, const f32* sin, u32 seq, u32 offset, u32 rows,
                       u32 heads, u32 kv_heads, u32 head_dim, u32 half, u32 interleaved) {
  u32 turned = heads + kv_heads, all = turned + kv_heads;
  auto of = [&](u64 row, u32 head) {
    return Head<T>{x + (row * all + head) * head_dim, apart(q, k, v, row, head, heads, kv_heads, head_dim)};
  };
  turn<T>(of, packs(x) && packs(q) && packs(k) && packs(v), cos, sin, nullptr, seq, offset, 1.f, rows, all, turned,
          head_dim, half, interleaved);
}

// The way back, for gradients: those of queries and keys are turned back.
template <class T>
DEVICE void rope_join(const T* q, const T* k, const T* v, T* x, const f32* cos, const f32* sin, u32 seq, u32 offset,
                      u32 rows, u32 heads, u32 kv_heads, u32 head_dim, u32 half, u32 interleaved) {
  u32 turned = heads + kv_heads, all = turned + kv_heads;
  auto of = [&](u64 row, u32 head) {
    return Head<T>{apart(q, k, v, row, head, heads, kv_heads, head_dim), x + (row * all + head) * head_dim};
  };
  turn<T>(of, packs(x) && packs(q) && packs(k) && packs(v), cos, sin, nullptr, seq, offset, -1.f, rows, all, turned,
          head_dim, half, interleaved);
}

}  // namespace

#define ROPE(T) \
  KERNEL(rope_##T, THREADS, \
         (const T* x, T* y, const f32* cos, const f32* sin, const i32* positions, u32 seq, u32 offset, f32 sign, \
          u32 rows, u32 heads, u32 head_dim, u32 half, u32 interleaved), \
         rope<T>(x, y, cos, sin, positions, seq, offset, sign, rows, heads, head_dim, half, interleaved)) \
  KERNEL(rope_split_##T, THREADS, \
         (const T* x, T* q, T* k, T* v, const f32* cos, const f32* sin, u32 seq, u32 offset, u32 rows, u32 heads, \
          u32 kv_heads, u32 head_dim, u32 half, u32 interleaved), \
         rope_split<T>(x, q, k, v, cos, sin, seq, offset, rows, heads, kv_heads, head_dim, half, interleaved)) \
  KERNEL(rope_join_##T, THREADS, \
         (const T* q, const T* k, const T* v, T* x, const f32* cos, const f32* sin, u32 seq, u32 offset, u32 rows, \
          u32 heads, u32 kv_heads, u32 head_dim, u32 half, u32 interleaved), \
         rope_join<T>(q, k, v, x, cos, sin, seq, offset, rows, heads, kv_heads, head_dim, half, interleaved))

ROPE(f32)
ROPE(bf16)
ROPE(f16)
