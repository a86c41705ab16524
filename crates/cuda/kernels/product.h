// What matrix products share: a block's tile of the result, pieces of operands, what becomes of a sum.
//
// D = alpha op(A) op(B) + beta C + bias, row after row. Each element is summed over k from the first to the last, in f32,
// by one thread or in the order of the tensor cores: no bits depend on the grid.
#pragma once
#include "words.h"

// Rows and columns of the tile of a block of THREADS threads.
const u32 TILE = 128;

struct Matrix {
  u64 stride, batch;  // Elements from row to row, and from matrix to matrix.
};

// All but the operands.
template <class O> struct Result {
  const O *c, *bias;
  O* d;
  Matrix at;
  f32 alpha, beta;
  u32 m, n, k;
};

// The first row and column of a tile. Tiles are taken in stripes of eight rows of tiles, so that blocks that run at the
// same time share operands.
struct Corner {
  u32 row, col;
  DEVICE Corner(u32 m, u32 n) {
    const u32 STRIPE = 8;
    u32 rows = (m + TILE - 1) / TILE, cols = (n + TILE - 1) / TILE;
    u32 first = blockIdx.x / (STRIPE * cols) * STRIPE, height = min(STRIPE, rows - first);
    u32 within = blockIdx.x % (STRIPE * cols);
    row = (first + within % height) * TILE;
    col = within / height * TILE;
  }
};

// Neighbors in a row that move at once.
template <class T, u32 N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Run {
  T of[N];
};

// Whether all runs of whole 16 bytes of a matrix begin where they can move at once.
template <class T> DEVICE bool is_even(const T* from, Matrix at) {
  const u32 STEP = 16 / sizeof(T);
  return (u64)from % 16 == 0 && at.stride % STEP == 0 && at.batch % STEP == 0;
}

// Eight neighbors of a row, in the type of the operands; zeros behind the end.
template <class T> DEVICE Pack<T> read8(const T* from, u32 left, bool even) {
  if (even && left >= PACK) return *(const Pack<T>*)from;
  Pack<T> pack;
  UNROLL for (u32 i = 0; i < PACK; i++) pack.of[i] = i < left ? from[i] : rounded<T>(0.f);
  return pack;
}

// Sums of N neighbors become elements of D.
template <u32 N, class O> DEVICE void finish(const Result<O>& r, u32 row, u32 col, const f32 (&sums)[N], bool even) {
  if (row >= r.m || col >= r.n) return;
  u64 at = (u64)blockIdx.z * r.at.batch + (u64)row * r.at.stride + col;
  bool whole = even && col + N <= r.n;
  Run<O, N> before, out;
  if (r.beta != 0.f) {
    if (whole) before = *(const Run<O, N>*)(r.c + at);
    else
      UNROLL for (u32 i = 0; i < N; i++)
        if (col + i < r.n) before.of[i] = r.c[at + i];
  }
  UNROLL for (u32 i = 0; i < N; i++) {
    if (col + i >= r.n) continue;
    f32 v = r.alpha * sums[i];
    if (r.beta != 0.f) v += r.beta * to_f32(before.of[i]);
    if (r.bias) v += to_f32(r.bias[col + i]);
    put(out.of[i], v);
  }
  if (whole) *(Run<O, N>*)(r.d + at) = out;
  else
    UNROLL for (u32 i = 0; i < N; i++)
      if (col + i < r.n) r.d[at + i] = out.of[i];
}
// Whether the elements of C and D move as runs of N.
template <u32 N, class O> DEVICE bool moves(const Result<O>& r) {
  const u32 BYTES = sizeof(Run<O, N>) < 16 ? sizeof(Run<O, N>) : 16, STEP = BYTES / sizeof(O);
  u64 together = (u64)r.d | (u64)r.c;
  return together % BYTES == 0 && r.at.stride % STEP == 0 && r.at.batch % STEP == 0;
}
