// How a warpgroup multiplies tiles (sm_90a): four warps together, by tensor cores that take tiles from shared memory as they lie.
//
// A tile [R, D] is one or more columns of 64 elements, or of 32 where D is no multiple of 64, one column behind the other. The
// pieces of 16 bytes of a row are swizzled as wgmma.h says, so that neither copies nor products meet in a bank.
#pragma once
#include "wgmma.h"

namespace {

template <class T, int D> struct Row {
  static const int STRIDE = D;
  static const int PER_COPY = 8;
  // Elements and bytes of a row of a column, and bytes of eight of them.
  static const int COLUMN = D % 64 == 0 ? 64 : 32, BYTES = 2 * COLUMN, EIGHT = 8 * BYTES;
};
// Where the first of eight elements is.
template <int R, int D, class T> DEVICE int place(int row, int col) {
  const int COLUMN = Row<T, D>::COLUMN;
  int swizzle = COLUMN == 64 ? row % 8 : row / 2 % 4;
  return col / COLUMN * R * COLUMN + row * COLUMN + (col % COLUMN / 8 ^ swizzle) * 8;
}
// Where the tiles of a block begin. Swizzles depend on the address; a launch has room for it, as it reckons with padded rows.
DEVICE u8* tiles_of(u8* memory) { return memory + (1024 - (u64)memory % 1024) % 1024; }
// Waits for all copies of the block.
DEVICE void await_copies() {
  cp_async_wait<0>();
  fence_for_wgmma();
  sync_block();
}

// The rows of a warpgroup in the block's own tile, as the left operand of a product.
template <class T, int D> struct SharedRows {
  TileDescriptor rows;
  DEVICE SharedRows(const T* tile)
      : rows(descriptor<Row<T, D>::BYTES>(tile + uniform(threadIdx.x / 128) * 64 * Row<T, D>::COLUMN, 16, Row<T, D>::EIGHT)) {}
  DEVICE TileDescriptor get(int k) const {
    const int COLUMN = Row<T, D>::COLUMN;
    return ahead(rows, 16 * k / COLUMN * TILE_ROWS * Row<T, D>::BYTES + 16 * k % COLUMN * 2);
  }
};
template <class T, int D, bool> struct OwnRows {
  typedef SharedRows<T, D> Type;
};

template <int TRANS, class T, int N8, int D>
DEVICE void multiply_step(f32 (&c)[N8][4], const SharedRows<T, D>& left, int k, TileDescriptor b, bool add) {
  wgmma<TRANS>(T(), c, left.get(k), b, add);
}
template <int TRANS, class T, int N8, class Held>
DEVICE void multiply_step(f32 (&c)[N8][4], const Held& left, int k, TileDescriptor b, bool add) {
  wgmma<TRANS>(T(), c, left.of[k], b, add);
}

// Begins c [64, N] = a [64, K] b^T with b [N, K] a tile.
template <int N, int K, class T, class Left>
DEVICE void multiply_transposed(f32 (&c)[N / 8][4], const Left& left, const T* tile) {
  const int COLUMN = Row<T, K>::COLUMN;
  TileDescriptor b = descriptor<Row<T, K>::BYTES>(tile, 16, Row<T, K>::EIGHT);
  wgmma_fence();
  UNROLL for (int k = 0; k < K / 16; k++)
    multiply_step<0, T>(c, left, k, ahead(b, 16 * k / COLUMN * N * Row<T, K>::BYTES + 16 * k % COLUMN * 2), k > 0);
  wgmma_commit();
}
// Begins c [64, N] += a [64, K] b with b [K, N] a tile.
template <int N, int K, class T, class Left> DEVICE void multiply(f32 (&c)[N / 8][4], const Left& left, const T* tile) {
  TileDescriptor b = descriptor<Row<T, N>::BYTES>(tile, K * Row<T, N>::BYTES, Row<T, N>::EIGHT);
  wgmma_fence();
  UNROLL for (int k = 0; k < K / 16; k++) multiply_step<1, T>(c, left, k, ahead(b, 2 * k * Row<T, N>::EIGHT), true);
  wgmma_commit();
}

template <int N> DEVICE void keep(f32 (&c)[N][4]) {
  UNROLL for (int j = 0; j < N; j++) UNROLL for (int e = 0; e < 4; e++) keep_one(c[j][e]);
}
template <class Held> DEVICE void keep(Held& held) {
  for (auto& four : held.of) UNROLL for (int i = 0; i < 4; i++) keep_one(four[i]);
}
const bool ASYNCHRONOUS = true;
// What a number that is not negative is made of is computed before the next wait, while products are under way.
DEVICE void compute_before_wait(f32 v) { wait_behind(v); }
// Waits for all products but the last N. Given are their sums, and the operands that they have in registers.
template <int N, class... Operands> DEVICE void finish_but(Operands&... operands) {
  wgmma_wait<N>();
  (keep(operands), ...);
}
template <class... Operands> DEVICE void finish(Operands&... operands) { finish_but<0>(operands...); }

}  // namespace
