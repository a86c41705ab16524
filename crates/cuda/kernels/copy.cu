// Moving elements: permutations and expansions by strides, windows of a dim, choices by
// a mask, dims the other way round, triangles.
#include "walk.h"

namespace {

// The element of a whole [blocks, full] that element i of a window [blocks, len] from `first` on is.
DEVICE u64 in_window(u64 i, u32 full, u32 first, u32 len) { return i / len * full + first + i % len; }

}  // namespace

#define COPY(T) \
  /* y = x in the order of the walk. */ \
  KERNEL(strided_##T, THREADS, (walk order, const T* x, T* y, u64 n), \
         each(n, [&](u64 i) { y[i] = x[offset(order, i, 0)]; })) \
  /* The elements of y at the places of the walk, which are all different, become those of x. */ \
  KERNEL(write_strided_##T, THREADS, (walk order, const T* x, T* y, u64 n), \
         each(n, [&](u64 i) { y[offset(order, i, 0)] = x[i]; })) \
  KERNEL(read_window_##T, THREADS, (u32 full, u32 first, u32 len, const T* whole, T* part, u64 n), \
         each(n, [&](u64 i) { part[i] = whole[in_window(i, full, first, len)]; })) \
  KERNEL(write_window_##T, THREADS, (u32 full, u32 first, u32 len, const T* part, T* whole, u64 n), \
         each(n, [&](u64 i) { whole[in_window(i, full, first, len)] = part[i]; })) \
  /* y[.., k, i] = x[.., n - 1 - k, i] */ \
  KERNEL(reversed_##T, THREADS, (const T* x, T* y, u32 n, u32 inner, u64 n_elems), \
         each(n_elems, [&](u64 i) { \
           u64 row = i / inner, k = row % n; \
           y[i] = x[(row - k + (n - 1 - k)) * inner + i % inner]; \
         })) \
  /* The elements of matrices on a diagonal and on one side of it, and 0 elsewhere. */ \
  KERNEL(triangle_##T, THREADS, (u32 upper, i32 diagonal, const T* x, T* y, u32 rows, u32 cols, u64 n), \
         each(n, [&](u64 i) { \
           i32 right = (i32)(i % cols) - (i32)(i / cols % rows); \
           y[i] = (upper ? right >= diagonal : right <= diagonal) ? x[i] : T(); \
         })) \
  /* out = mask != 0 ? x : y; an absent operand is `value`. */ \
  KERNEL(select_##T, THREADS, (const i32* mask, const T* x, const T* y, T value, T* out, u64 n), \
         each(n, [&](u64 i) { \
           const T* from = mask[i] ? x : y; \
           out[i] = from ? from[i] : value; \
         }))

#define ADD(T) \
  KERNEL(add_strided_##T, THREADS, (walk order, const T* x, T* y, u64 n), \
         each(n, [&](u64 i) { store(y[offset(order, i, 0)], to_f32(x[i]), 1); })) \
  KERNEL(add_window_##T, THREADS, (u32 full, u32 first, u32 len, const T* part, T* whole, u64 n), \
         each(n, [&](u64 i) { store(whole[in_window(i, full, first, len)], to_f32(part[i]), 1); }))

COPY(f32)
COPY(bf16)
COPY(f16)
COPY(i32)
ADD(f32)
ADD(bf16)
ADD(f16)
