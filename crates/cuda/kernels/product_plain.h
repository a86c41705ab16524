// The tile of a matrix product of f32: plain arithmetic, with the next tiles in flight in registers.
#pragma once
#include "product.h"

namespace {

// Elements of k in a tile. In shared memory a tile lies as [k, rows or columns].
const u32 PLAIN_DEPTH = 16, PLAIN_STRIDE = TILE + 4, PLAIN_ELEMS = PLAIN_DEPTH * PLAIN_STRIDE;

// Eight neighbors of an operand, for each thread: along k or across it.
template <bool ALONG_K> struct Place {
  DEVICE static u32 across() { return ALONG_K ? threadIdx.x % TILE : threadIdx.x % (TILE / PACK) * PACK; }
  DEVICE static u32 k() { return ALONG_K ? threadIdx.x / TILE * PACK : threadIdx.x / (TILE / PACK); }
};

// An operand of plain elements.
struct PlainWords {
  const f32* from;
  u64 stride;
  u32 rows, cols;
  bool even;
  DEVICE void read(f32 (&v)[PACK], u32 row, u32 col) const {
    u32 left = row < rows && col < cols ? cols - col : 0;
    Pack<f32> pack = read8(from + (u64)row * stride + col, left, even);
    UNROLL for (u32 i = 0; i < PACK; i++) v[i] = pack.of[i];
  }
};

template <bool ALONG_K, class X> DEVICE void take(f32 (&v)[PACK], const X& x, u32 across, u32 k) {
  across += Place<ALONG_K>::across();
  k += Place<ALONG_K>::k();
  if (ALONG_K) x.read(v, across, k);
  else x.read(v, k, across);
}
template <bool ALONG_K> DEVICE void lay(f32* tile, const f32 (&v)[PACK]) {
  f32* to = tile + Place<ALONG_K>::k() * PLAIN_STRIDE + Place<ALONG_K>::across();
  UNROLL for (u32 i = 0; i < PACK; i++) to[ALONG_K ? i * PLAIN_STRIDE : i] = v[i];
}

// The tile of this block. A is transposed if it lies as [k, m], B if it lies as [n, k]. A thread has four rows in each half
// of the tile, and as many columns.
template <bool A_TRANSPOSED, bool B_TRANSPOSED, class A, class B>
DEVICE void multiply_plain_tile(const A& a, const B& b, const Result<f32>& result) {
  DYNAMIC_SHARED(memory);
  f32 *tiles_a = (f32*)memory, *tiles_b = tiles_a + 2 * PLAIN_ELEMS;
  Corner corner(result.m, result.n);
  u32 row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4;
  u32 n_tiles = (result.k + PLAIN_DEPTH - 1) / PLAIN_DEPTH;
  f32 sums[8][8] = {}, next_a[PACK], next_b[PACK];
  take<!A_TRANSPOSED>(next_a, a, corner.row, 0);
  take<B_TRANSPOSED>(next_b, b, corner.col, 0);
  for (u32 t = 0; t < n_tiles; t++) {
    f32 *tile_a = tiles_a + t % 2 * PLAIN_ELEMS, *tile_b = tiles_b + t % 2 * PLAIN_ELEMS;
    lay<!A_TRANSPOSED>(tile_a, next_a);
    lay<B_TRANSPOSED>(tile_b, next_b);
    sync_block();  // One for each tile: whoever lays the tile after the next one has passed it, and read this place before.
    if (t + 1 < n_tiles) {
      take<!A_TRANSPOSED>(next_a, a, corner.row, (t + 1) * PLAIN_DEPTH);
      take<B_TRANSPOSED>(next_b, b, corner.col, (t + 1) * PLAIN_DEPTH);
    }
    // Not unrolled as a whole, which would need more registers than there are.
    for (u32 k0 = 0; k0 < PLAIN_DEPTH; k0 += 4) UNROLL for (u32 k = k0; k < k0 + 4; k++) {
      f32 left[8], right[8];
      UNROLL for (u32 half = 0; half < 2; half++) {
        Run<f32, 4> l = *(const Run<f32, 4>*)(tile_a + k * PLAIN_STRIDE + row + half * TILE / 2);
        Run<f32, 4> r = *(const Run<f32, 4>*)(tile_b + k * PLAIN_STRIDE + col + half * TILE / 2);
        UNROLL for (u32 i = 0; i < 4; i++) {
          left[4 * half + i] = l.of[i];
          right[4 * half + i] = r.of[i];
        }
      }
      UNROLL for (u32 i = 0; i < 8; i++) UNROLL for (u32 j = 0; j < 8; j++) sums[i][j] += left[i] * right[j];
    }
  }
  bool even = moves<4>(result);
  UNROLL for (u32 i = 0; i < 8; i++) UNROLL for (u32 half = 0; half < 2; half++) {
    f32 v[4];
    UNROLL for (u32 j = 0; j < 4; j++) v[j] = sums[i][4 * half + j];
    finish<4>(result, corner.row + row + i / 4 * (TILE / 2) + i % 4, corner.col + col + half * (TILE / 2), v, even);
  }
}

}  // namespace
