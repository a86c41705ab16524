// How a warp multiplies tiles: rows of shared memory with padding, tensor cores that take their operands from registers.
#pragma once
#include "words.h"

namespace {

// Elements between the rows of a tile: 16 bytes more than a row has, against conflicts of banks.
template <class T, int D> struct Row {
  static const int STRIDE = D + 16 / (int)sizeof(T);
  static const int PER_COPY = 16 / (int)sizeof(T);
};
// Where an element is.
template <int R, int D, class T> DEVICE int place(int row, int col) { return row * Row<T, D>::STRIDE + col; }
// Where the tiles of a block begin.
DEVICE u8* tiles_of(u8* memory) { return memory; }
// Waits for all copies of the block.
DEVICE void await_copies() {
  cp_async_wait<0>();
  sync_block();
}


// The rows of a warp in the block's own tile, as the left operand of a product: read from shared memory each time, or held in
// registers.
template <class T, int D> struct SharedRows {
  const T* rows;
  DEVICE SharedRows(const T* tile) : rows(tile + threadIdx.x / 32 * 16 * Row<T, D>::STRIDE) {}
  DEVICE void get(u32 (&a)[4], int k) const {
    u32 lane = threadIdx.x % 32;
    ldmatrix(a, rows + lane % 16 * Row<T, D>::STRIDE + k * 16 + lane / 16 * 8);
  }
};
template <class T, int D> struct HeldRows {
  u32 of[D / 16][4];
  DEVICE HeldRows(const T* tile) {
    SharedRows<T, D> shared(tile);
    UNROLL for (int k = 0; k < D / 16; k++) shared.get(of[k], k);
  }
  DEVICE void get(u32 (&a)[4], int k) const {
    UNROLL for (int i = 0; i < 4; i++) a[i] = of[k][i];
  }
};
// Those of them that fit: f32 is always read from shared memory.
template <class T, int D, bool HELD> struct OwnRows {
  typedef SharedRows<T, D> Type;
};
template <int D> struct OwnRows<bf16, D, true> {
  typedef HeldRows<bf16, D> Type;
};
template <int D> struct OwnRows<f16, D, true> {
  typedef HeldRows<f16, D> Type;
};

struct alignas(16) Four {
  f32 of[4];
};
// The products of f32, by each lane for its own elements.
template <int N, int K, class Left> DEVICE void plain_transposed(f32 (&c)[N / 8][4], const Left& left, const f32* b) {
  u32 lane = threadIdx.x % 32;
  const f32* a = left.rows + lane / 4 * Row<f32, K>::STRIDE;
  b += 2 * (lane % 4) * Row<f32, K>::STRIDE;
  for (int k = 0; k < K; k += 4) {
    Four low = *(const Four*)(a + k), high = *(const Four*)(a + 8 * Row<f32, K>::STRIDE + k);
    UNROLL for (int j = 0; j < N / 8; j++) UNROLL for (int e = 0; e < 2; e++) {
      Four right = *(const Four*)(b + (8 * j + e) * Row<f32, K>::STRIDE + k);
      UNROLL for (int i = 0; i < 4; i++) {
        c[j][e] += low.of[i] * right.of[i];
        c[j][2 + e] += high.of[i] * right.of[i];
      }
    }
  }
}
template <int N, int K, class Left> DEVICE void plain(f32 (&c)[N / 8][4], const Left& left, const f32* b) {
  u32 lane = threadIdx.x % 32;
  const f32* a = left.rows + lane / 4 * Row<f32, K>::STRIDE;
  b += 2 * (lane % 4);
  for (int k = 0; k < K; k++) {
    f32 low = a[k], high = a[8 * Row<f32, K>::STRIDE + k];
    UNROLL for (int j = 0; j < N / 8; j++) UNROLL for (int e = 0; e < 2; e++) {
      f32 right = b[k * Row<f32, N>::STRIDE + 8 * j + e];
      c[j][e] += low * right;
      c[j][2 + e] += high * right;
    }
  }
}

// c [16, N] = a [16, K] b^T with b [N, K] a tile.
template <int N, int K, class T, class Left>
DEVICE void multiply_transposed(f32 (&c)[N / 8][4], const Left& left, const T* b) {
  zero(c);
  if constexpr (sizeof(T) == 4) plain_transposed<N, K>(c, left, b);
  else {
    u32 lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, col = lane / 8 % 2 * 8;
    UNROLL for (int k = 0; k < K / 16; k++) {
      u32 a[4], r[4];
      left.get(a, k);
      UNROLL for (int n = 0; n < N / 16; n++) {
        ldmatrix(r, b + (n * 16 + row) * Row<T, K>::STRIDE + k * 16 + col);
        mma(T(), c[2 * n], a, r[0], r[1]);
        mma(T(), c[2 * n + 1], a, r[2], r[3]);
      }
    }
  }
}
// c [16, N] += a [16, K] b with b [K, N] a tile.
template <int N, int K, class T, class Left> DEVICE void multiply(f32 (&c)[N / 8][4], const Left& left, const T* b) {
  if constexpr (sizeof(T) == 4) plain<N, K>(c, left, b);
  else {
    u32 lane = threadIdx.x % 32, row = lane % 16, col = lane / 16 * 8;
    UNROLL for (int k = 0; k < K / 16; k++) {
      u32 a[4], r[4];
      left.get(a, k);
      UNROLL for (int n = 0; n < N / 16; n++) {
        ldmatrix_trans(r, b + (k * 16 + row) * Row<T, N>::STRIDE + n * 16 + col);
        mma(T(), c[2 * n], a, r[0], r[1]);
        mma(T(), c[2 * n + 1], a, r[2], r[3]);
      }
    }
  }
}

// Products are done where they are written, so nobody waits for them.
const bool ASYNCHRONOUS = false;
template <class Operand> DEVICE void keep(Operand&) {}
DEVICE void compute_before_wait(f32) {}
template <int N, class... Operands> DEVICE void finish_but(Operands&...) {}
template <class... Operands> DEVICE void finish(Operands&...) {}

}  // namespace
