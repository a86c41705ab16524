// Tiles of matrices: rows in shared memory, products of 16 rows of each warp with a tile.
//
// A product c [16, N] is spread over a warp as mma.m16n8k16 spreads it: with g = lane / 4 and t = lane % 4, c[j][e] is at
// row g + 8 (e / 2) and column 8 j + 2 t + e % 2. Elements of 16 bits are multiplied by tensor cores, f32 by plain
// arithmetic in the same layout, so that kernels are the same for all types.
#pragma once
#include "words.h"

namespace {

// Rows of a block's own tile: 16 for each warp.
#ifdef OF_ROWS
const int TILE_ROWS = OF_ROWS;
#else
const int TILE_ROWS = 64;
#endif
const int WARPS = TILE_ROWS / 16, ATTENTION_THREADS = 32 * WARPS;

template <int N> DEVICE void zero(f32 (&c)[N][4]) {
  UNROLL for (int j = 0; j < N; j++) UNROLL for (int e = 0; e < 4; e++) c[j][e] = 0.f;
}

}  // namespace

// Where elements lie in a tile, and its products.
#ifdef WGMMA
#include "tile_warpgroup.h"
#else
#include "tile_warp.h"
#endif

namespace {

// Begins to copy rows first .. first + R of a matrix into a tile; zeros behind row `end` and column `dim`.
template <int R, int D, class T> DEVICE void fetch(T* tile, const T* from, u32 stride, int first, int end, int dim) {
  const int PER_ROW = D / Row<T, D>::PER_COPY, COPIES = R * PER_ROW, ROUNDS = (COPIES + ATTENTION_THREADS - 1) / ATTENTION_THREADS;
  // Where a thread stays in its column, one address follows from the other.
  const int DOWN = ATTENTION_THREADS % PER_ROW == 0 ? ATTENTION_THREADS / PER_ROW : 0;
  int row = threadIdx.x / PER_ROW, col = threadIdx.x % PER_ROW * Row<T, D>::PER_COPY;
  const T* own = from + (u64)(u32)(first + row) * stride + col;
  UNROLL for (int k = 0; k < ROUNDS; k++) {
    int i = threadIdx.x + k * ATTENTION_THREADS;
    if (COPIES % ATTENTION_THREADS && i >= COPIES) break;
    if (DOWN == 0 && k > 0) {
      row = i / PER_ROW;
      col = i % PER_ROW * Row<T, D>::PER_COPY;
      own = from + (u64)(u32)(first + row) * stride + col;
    }
    bool valid = (first + row < end) & (col < dim);
    // Where it is not valid, nothing is read.
    cp_async(tile + place<R, D, T>(row, col), own, valid);
    row += DOWN;
    own += (u64)(DOWN * stride);
  }
}

// A product that becomes the left operand of the next one. Tensor cores hold both in the same layout; f32 goes through
// rows of shared memory that belong to the warp.
template <class T, int N> struct Rounded {
  u32 of[N / 16][4];
  DEVICE Rounded(const f32 (&c)[N / 8][4], T*) {
    UNROLL for (int k = 0; k < N / 16; k++) {
      of[k][0] = pair<T>(c[2 * k][0], c[2 * k][1]);
      of[k][1] = pair<T>(c[2 * k][2], c[2 * k][3]);
      of[k][2] = pair<T>(c[2 * k + 1][0], c[2 * k + 1][1]);
      of[k][3] = pair<T>(c[2 * k + 1][2], c[2 * k + 1][3]);
    }
  }
  DEVICE void get(u32 (&a)[4], int k) const {
    UNROLL for (int i = 0; i < 4; i++) a[i] = of[k][i];
  }
};
template <int N> struct Rounded<f32, N> {
  const f32* rows;
  DEVICE Rounded(const f32 (&c)[N / 8][4], f32* scratch) : rows(scratch) {
    u32 lane = threadIdx.x % 32;
    sync_warp();  // Others may still read the product before.
    UNROLL for (int j = 0; j < N / 8; j++) UNROLL for (int e = 0; e < 4; e++)
      scratch[(lane / 4 + 8 * (e / 2)) * Row<f32, N>::STRIDE + 8 * j + 2 * (lane % 4) + e % 2] = c[j][e];
    sync_warp();
  }
};
// Elements of scratch that a warp needs for it.
template <class T, int N> struct Scratch {
  static const int ELEMS = sizeof(T) == 4 ? 16 * Row<T, N>::STRIDE : 0;
};

// Two neighbors of a row.
template <class T> DEVICE void put2(T* to, f32 low, f32 high) { *(u32*)to = pair<T>(low, high); }
template <> DEVICE void put2<f32>(f32* to, f32 low, f32 high) {
  to[0] = low;
  to[1] = high;
}

}  // namespace
