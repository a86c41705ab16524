// The tile of a matrix product with operands of 16 bits: tensor cores, and a ring of tiles in shared memory.
#pragma once
#include "product.h"

namespace {

// Elements of k in a tile, and tiles of each operand in the ring.
const u32 DEPTH = 32, STAGES = 3;
// A warp has 64 x 32 elements of the result.
const u32 WARP_ROWS = 64, WARP_COLS = 32;
// Rows of the sums that a warp passes on at a time, with their padding.
const u32 PASSED = 16, PASSED_STRIDE = WARP_COLS + 4;

// A piece of ROWS x COLS elements of an operand as it lies in memory. Rows in shared memory are 16 bytes longer than they
// have elements, against conflicts of banks.
template <u32 ROWS, u32 COLS> struct Piece {
  static const u32 STRIDE = COLS + 8, ELEMS = ROWS * STRIDE;
  static const u32 PACKS = ROWS * COLS / PACK / THREADS;  // Those that a thread moves.
  DEVICE static u32 row(u32 i) { return (threadIdx.x + i * THREADS) / (COLS / PACK); }
  DEVICE static u32 col(u32 i) { return (threadIdx.x + i * THREADS) % (COLS / PACK) * PACK; }
};

// An operand of plain elements: copied asynchronously where whole packs are aligned.
template <class T> struct Plain {
  const T* from;
  u64 stride;
  u32 rows, cols;
  bool even;
  template <class P> struct Held {};

  // Begins to bring the piece at a row and column.
  template <class P> DEVICE void begin(T* tile, u32 row, u32 col, Held<P>&) const {
    UNROLL for (u32 i = 0; i < P::PACKS; i++) {
      u32 r = row + P::row(i), c = col + P::col(i);
      T* to = tile + P::row(i) * P::STRIDE + P::col(i);
      u32 left = r < rows && c < cols ? cols - c : 0;
      const T* at = from + (u64)r * stride + c;
      if (even && (left == 0 || left >= PACK)) cp_async(to, left ? at : from, left > 0);
      else *(Pack<T>*)to = read8(at, left, false);
    }
  }
  template <class P> DEVICE void finish(T*, u32, u32, const Held<P>&) const {}
};

// 16 rows of op(A), or 16 columns of op(B), by 16 of k, as mma takes them: from a piece whose rows run along k, or not.
template <bool ALONG_K, class P, class T> DEVICE void left_operand(u32 (&r)[4], const T* tile, u32 row, u32 k) {
  u32 lane = threadIdx.x % 32;
  if constexpr (ALONG_K) ldmatrix(r, tile + (row + lane % 16) * P::STRIDE + k + lane / 16 * 8);
  else ldmatrix_trans(r, tile + (k + lane % 8 + lane / 16 * 8) * P::STRIDE + row + lane / 8 % 2 * 8);
}
template <bool ALONG_K, class P, class T> DEVICE void right_operand(u32 (&r)[4], const T* tile, u32 col, u32 k) {
  u32 lane = threadIdx.x % 32;
  if constexpr (ALONG_K) ldmatrix(r, tile + (col + lane % 8 + lane / 16 * 8) * P::STRIDE + k + lane / 8 % 2 * 8);
  else ldmatrix_trans(r, tile + (k + lane % 16) * P::STRIDE + col + lane / 16 * 8);
}

// The tile of this block. A is transposed if it lies as [k, m], B if it lies as [n, k].
template <bool A_TRANSPOSED, bool B_TRANSPOSED, class T, class A, class B, class O>
DEVICE void multiply_tile(const A& a, const B& b, const Result<O>& result) {
  typedef Piece<A_TRANSPOSED ? DEPTH : TILE, A_TRANSPOSED ? TILE : DEPTH> PieceA;
  typedef Piece<B_TRANSPOSED ? TILE : DEPTH, B_TRANSPOSED ? DEPTH : TILE> PieceB;
  DYNAMIC_SHARED(memory);
  T *ring_a = (T*)memory, *ring_b = ring_a + STAGES * PieceA::ELEMS;
  typename A::template Held<PieceA> held_a;
  typename B::template Held<PieceB> held_b;
  Corner corner(result.m, result.n);
  u32 n_tiles = (result.k + DEPTH - 1) / DEPTH;
  auto begin = [&](u32 t) {
    u32 k = t * DEPTH, at = t % STAGES;
    a.template begin<PieceA>(ring_a + at * PieceA::ELEMS, A_TRANSPOSED ? k : corner.row, A_TRANSPOSED ? corner.row : k, held_a);
    b.template begin<PieceB>(ring_b + at * PieceB::ELEMS, B_TRANSPOSED ? corner.col : k, B_TRANSPOSED ? k : corner.col, held_b);
  };
  auto finish_piece = [&](u32 t) {
    u32 k = t * DEPTH, at = t % STAGES;
    a.template finish<PieceA>(ring_a + at * PieceA::ELEMS, A_TRANSPOSED ? k : corner.row, A_TRANSPOSED ? corner.row : k, held_a);
    b.template finish<PieceB>(ring_b + at * PieceB::ELEMS, B_TRANSPOSED ? corner.col : k, B_TRANSPOSED ? k : corner.col, held_b);
  };
  UNROLL for (u32 t = 0; t < STAGES - 1; t++) {
    if (t < n_tiles) {
      begin(t);
      finish_piece(t);
    }
    cp_async_commit();
  }

  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u32 row = warp / (TILE / WARP_COLS) * WARP_ROWS, col = warp % (TILE / WARP_COLS) * WARP_COLS;
  f32 sums[WARP_ROWS / 16][WARP_COLS / 8][4];
  UNROLL for (u32 i = 0; i < WARP_ROWS / 16; i++) UNROLL for (u32 j = 0; j < WARP_COLS / 8; j++)
    UNROLL for (u32 e = 0; e < 4; e++) sums[i][j][e] = 0.f;
  for (u32 t = 0; t < n_tiles; t++) {
    cp_async_wait<STAGES - 2>();
    sync_block();  // Everybody has the tile, and is done with the one whose place is filled next.
    bool more = t + STAGES - 1 < n_tiles;
    if (more) begin(t + STAGES - 1);
    cp_async_commit();
    const T *tile_a = ring_a + t % STAGES * PieceA::ELEMS, *tile_b = ring_b + t % STAGES * PieceB::ELEMS;
    UNROLL for (u32 k = 0; k < DEPTH; k += 16) {
      u32 left[WARP_ROWS / 16][4], right[WARP_COLS / 16][4];
      UNROLL for (u32 i = 0; i < WARP_ROWS / 16; i++)
        left_operand<!A_TRANSPOSED, PieceA>(left[i], tile_a, row + 16 * i, k);
      UNROLL for (u32 j = 0; j < WARP_COLS / 16; j++)
        right_operand<B_TRANSPOSED, PieceB>(right[j], tile_b, col + 16 * j, k);
      UNROLL for (u32 i = 0; i < WARP_ROWS / 16; i++) UNROLL for (u32 j = 0; j < WARP_COLS / 8; j++)
        mma(T(), sums[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    }
    if (more) finish_piece(t + STAGES - 1);
  }
  cp_async_wait<0>();
  sync_block();  // The ring is free.

  // Through shared memory, so that each lane has neighbors of a row.
  f32* passed = (f32*)memory + warp * PASSED * PASSED_STRIDE;
  bool even = moves<PACK>(result);
  UNROLL for (u32 i = 0; i < WARP_ROWS / 16; i++) {
    sync_warp();
    UNROLL for (u32 j = 0; j < WARP_COLS / 8; j++) UNROLL for (u32 e = 0; e < 4; e++)
      passed[(lane / 4 + e / 2 * 8) * PASSED_STRIDE + 8 * j + 2 * (lane % 4) + e % 2] = sums[i][j][e];
    sync_warp();
    UNROLL for (u32 p = lane; p < PASSED * WARP_COLS / PACK; p += 32) {
      u32 r = p / (WARP_COLS / PACK), c = p % (WARP_COLS / PACK) * PACK;
      f32 v[PACK];
      UNROLL for (u32 x = 0; x < PACK; x++) v[x] = passed[r * PASSED_STRIDE + c + x];
      finish<PACK>(result, corner.row + row + 16 * i + r, corner.col + col + c, v, even);
    }
  }
}

}  // namespace
