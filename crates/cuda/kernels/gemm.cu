// Matrix products of plain elements, for machines without cuBLASLt: D = alpha op(A) op(B) + beta C + bias.
#include "product_mma.h"
#include "product_plain.h"

namespace {

// One matrix of the batch of an operand, as it lies in memory.
template <class X, class T> DEVICE X operand(const T* from, u64 stride, u64 batch, u32 rows, u32 cols) {
  return {from + (u64)blockIdx.z * batch, stride, rows, cols, is_even(from, {stride, batch})};
}

template <bool A_TRANSPOSED, bool B_TRANSPOSED, class T, class O>
DEVICE void product(const T* a, Matrix at_a, const T* b, Matrix at_b, const Result<O>& r) {
  u32 m = r.m, n = r.n, k = r.k;
  if constexpr (sizeof(T) == 4) {
    PlainWords left = operand<PlainWords>(a, at_a.stride, at_a.batch, A_TRANSPOSED ? k : m, A_TRANSPOSED ? m : k);
    PlainWords right = operand<PlainWords>(b, at_b.stride, at_b.batch, B_TRANSPOSED ? n : k, B_TRANSPOSED ? k : n);
    multiply_plain_tile<A_TRANSPOSED, B_TRANSPOSED>(left, right, r);
  } else {
    Plain<T> left = operand<Plain<T>>(a, at_a.stride, at_a.batch, A_TRANSPOSED ? k : m, A_TRANSPOSED ? m : k);
    Plain<T> right = operand<Plain<T>>(b, at_b.stride, at_b.batch, B_TRANSPOSED ? n : k, B_TRANSPOSED ? k : n);
    multiply_tile<A_TRANSPOSED, B_TRANSPOSED, T>(left, right, r);
  }
}

}  // namespace

// `name` says which of A and B are transposed: A lies as [k, m] then, and B as [n, k]. A batch is along z of the grid. C may
// be D, and is read where beta is not 0; the bias may be null.
#define PRODUCT(name, A_TRANSPOSED, B_TRANSPOSED, T, O) \
  KERNEL(name##_##T##_##O, THREADS, \
         (const T* a, u64 a_stride, u64 a_batch, const T* b, u64 b_stride, u64 b_batch, const O* c, const O* bias, O* d, \
          u64 d_stride, u64 d_batch, f32 alpha, f32 beta, u32 m, u32 n, u32 k), \
         product<A_TRANSPOSED, B_TRANSPOSED, T, O>( \
             a, {a_stride, a_batch}, b, {b_stride, b_batch}, \
             Result<O>{c, bias, d, {d_stride, d_batch}, alpha, beta, m, n, k}))
#define GEMM(T, O) \
  PRODUCT(gemm_nn, false, false, T, O) \
  PRODUCT(gemm_nt, false, true, T, O) \
  PRODUCT(gemm_tn, true, false, T, O) \
  PRODUCT(gemm_tt, true, true, T, O)

GEMM(f32, f32)
GEMM(bf16, bf16)
GEMM(bf16, f32)
GEMM(f16, f16)
GEMM(f16, f32)
