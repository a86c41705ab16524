// What the passes of attention share: the shape, which keys a query sees, how products become scores.
#pragma once
#include "functions.h"
#include "tile.h"

// The element type and the size of heads are macros: each unit is compiled for one of each. A head may have fewer
// elements, a multiple of 8: its tiles are filled up with zeros.
#ifndef HEAD_DIM
#error "attention is compiled with -DELEMENT=<type> -DHEAD_DIM=<size>, and -DOF_ROWS=<rows> -DOF_WALKED=<rows> for another tile"
#endif

namespace {
const int D = HEAD_DIM;
typedef ELEMENT T;
const int LD = Row<T, D>::STRIDE;
// Rows of the tiles that a pass walks over: usually so many that the tiles of a block fit into shared memory. The backward
// passes hold more of them at a time.
const int HEAD_BYTES = D * (int)sizeof(T);
#ifdef OF_WALKED
const int WALKED = OF_WALKED;
#elif defined(IS_BACKWARD)
const int WALKED = HEAD_BYTES <= 128 ? 64 : HEAD_BYTES <= 512 ? 32 : 16;
#else
const int WALKED = HEAD_BYTES <= 256 ? 64 : HEAD_BYTES <= 512 ? 32 : 16;
#endif

#define JOIN_(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define JOIN_2_(a, b) a##_##b
#define JOIN_2(a, b) JOIN_2_(a, b)
#define EXPANDED(name, threads, params, ...) KERNEL(name, threads, params, __VA_ARGS__)
#ifdef WGMMA
#define NAME_OF(op) JOIN(JOIN(op, ELEMENT, HEAD_DIM), OF_ROWS, JOIN_2(OF_WALKED, wgmma))
#elif defined(OF_ROWS)
#define NAME_OF(op) JOIN(JOIN(op, ELEMENT, HEAD_DIM), OF_ROWS, OF_WALKED)
#else
#define NAME_OF(op) JOIN(op, ELEMENT, HEAD_DIM)
#endif
#define ATTENTION_KERNEL(op, params, ...) EXPANDED(NAME_OF(op), ATTENTION_THREADS, params, __VA_ARGS__)

// Queries and output are [batch, q_len, heads, head_dim], keys and values [batch, kv_capacity, kv_heads, head_dim],
// statistics [batch, heads, q_len]. Query i is at position kv_len - q_len + i. A window of 0 is none.
struct Shape {
  int q_len, kv_len, kv_capacity, heads, kv_heads, head_dim, causal, window;
  // Scores in powers of two are factor q k, or with a cap: cap tanh(factor q k).
  f32 factor, cap;
};
#define SHAPE_PARAMS \
  i32 q_len, i32 kv_len, i32 kv_capacity, i32 heads, i32 kv_heads, i32 head_dim, i32 causal, i32 window, f32 factor, f32 cap
#define SHAPE Shape{q_len, kv_len, kv_capacity, heads, kv_heads, head_dim, causal, window, factor, cap}

const int MANY = 0x7fffffff;

// Some keys, low .. high.
struct Keys {
  int low, high;
};

// Where the document of query i begins, where there are such.
DEVICE int start_of(const Shape& s, const i32* starts, int i) { return starts && i < s.q_len ? starts[i] : 0; }

// Those that query i sees, whose document begins at `start`.
DEVICE Keys visible(const Shape& s, int start, int i) {
  if (i >= s.q_len) return {MANY, 0};
  int own_end = max(s.kv_len - s.q_len + i + 1, 0);
  int low = min(max(start, 0), s.kv_len);
  if (s.window) low = max(low, own_end - s.window);
  return {low, min(s.causal ? own_end : s.kv_len, s.kv_len)};
}

DEVICE int lowest(int v) {
  UNROLL for (int m = 16; m; m >>= 1) v = min(v, (int)shuffle_xor((u32)v, m));
  return v;
}
DEVICE int highest(int v) { return -lowest(-v); }

// The keys that any of the queries first .. first + n sees, and those that all of them see. Rows behind the queries are zeros
// whose results nobody writes: they need no mask. Every warp finds the same.
struct Span {
  Keys any, all;
  DEVICE Span(const Shape& s, const i32* starts, int first, int n) {
    if (!starts) {
      // Later queries see later keys.
      int last = min(first + n, s.q_len) - 1;
      Keys earliest = visible(s, 0, first), latest = visible(s, 0, last);
      any = {earliest.low, latest.high};
      all = {latest.low, earliest.high};
      return;
    }
    any = {MANY, 0};
    all = {0, MANY};
    for (int row = threadIdx.x % 32; row < n; row += 32) {
      int i = first + row;
      if (i >= s.q_len) continue;
      Keys keys = visible(s, starts[i], i);
      if (keys.low < keys.high) {
        any.low = min(any.low, keys.low);
        any.high = max(any.high, keys.high);
      }
      all.low = max(all.low, keys.low);
      all.high = min(all.high, keys.high);
    }
    any = {lowest(any.low), highest(any.high)};
    all = {highest(all.low), lowest(all.high)};
  }
  DEVICE bool sees_all(int from, int to) const { return all.low <= from && to <= all.high; }
};

// Whether a score is its product times a factor above 0. Then the factor waits for the exponential, where it costs nothing.
DEVICE bool is_plain(const Shape& s) { return s.cap == 0.f && s.factor > 0.f; }

// A score in powers of two; `slope` is that of the cap.
DEVICE f32 score(const Shape& s, f32 product, f32& slope) {
  slope = 1.f;
  if (s.cap == 0.f) return product * s.factor;
  f32 t = tanhf(product * s.factor);
  slope = 1.f - t * t;
  return t * s.cap;
}

// Row and column of element e of part j of a product.
DEVICE int row_of(int e) { return threadIdx.x % 32 / 4 + 8 * (e / 2); }
DEVICE int col_of(int j, int e) { return 8 * j + 2 * (threadIdx.x % 4) + e % 2; }

}  // namespace
