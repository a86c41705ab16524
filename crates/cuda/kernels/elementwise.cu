// Sums and conversions of elements, and the bias of a linear layer.
#include "words.h"

namespace {

// y = x in another type, rounded to nearest.
template <class T, class U> DEVICE void cast(const T* x, U* y, u64 n) {
  bool packed = packs(x) && packs(y);
  each8(n, [&](u64 i, u64 left) {
    f32 v[8];
    load8(v, x + i, left, packed);
    store8(y + i, v, left, packed, 0);
  });
}

// out = x + y with y of another type.
template <class T> DEVICE void add_mixed(const f32* x, const T* y, f32* out, u64 n) {
  bool packed = packs(x) && packs(y) && packs(out);
  each8(n, [&](u64 i, u64 left) {
    f32 a[8], b[8];
    load8(a, x + i, left, packed);
    load8(b, y + i, left, packed);
    UNROLL for (u32 k = 0; k < 8; k++) a[k] += b[k];
    store8(out + i, a, left, packed, 0);
  });
}

// y += alpha x
template <class T, class U> DEVICE void axpy(f32 alpha, const U* x, T* y, u64 n) {
  bool packed = packs(x) && packs(y);
  each8(n, [&](u64 i, u64 left) {
    f32 v[8];
    load8(v, x + i, left, packed);
    UNROLL for (u32 k = 0; k < 8; k++) v[k] *= alpha;
    store8(y + i, v, left, packed, 1);
  });
}

// x [rows, dim] += bias in each row.
template <class T> DEVICE void bias_add(T* x, const T* bias, u32 rows, u32 dim) {
  bool packed = packs(x, dim) && packs(bias, dim);
  u32 per_row = (dim + 7) / 8;
  each((u64)rows * per_row, [&](u64 i) {
    u32 c = (u32)(i % per_row) * 8;
    f32 v[8];
    load8(v, bias + c, dim - c, packed);
    store8(x + i / per_row * dim + c, v, dim - c, packed, 1);
  });
}

}  // namespace

KERNEL(scale_clamp, THREADS, (f32* x, f32 alpha, f32 bound, u64 n), each(n, [&](u64 i) {
         f32 v = x[i] * alpha;
         // Comparisons written so that NaN stays.
         x[i] = v < -bound ? -bound : v > bound ? bound : v;
       }))
KERNEL(soft_cap, THREADS, (f32* x, f32 cap, u64 n), each(n, [&](u64 i) { x[i] = cap * tanhf(x[i] / cap); }))

#define CAST(T, U) KERNEL(cast_##T##_##U, THREADS, (const T* x, U* y, u64 n), cast<T, U>(x, y, n))
#define AXPY(T, U) KERNEL(axpy_##T##_##U, THREADS, (f32 alpha, const U* x, T* y, u64 n), axpy<T, U>(alpha, x, y, n))
#define ELEMENTWISE(T) \
  KERNEL(add_mixed_##T, THREADS, (const f32* x, const T* y, f32* out, u64 n), add_mixed<T>(x, y, out, n)) \
  KERNEL(bias_add_##T, THREADS, (T* x, const T* bias, u32 rows, u32 dim), bias_add<T>(x, bias, rows, dim)) \
  KERNEL(from_integers_##T, THREADS, (const i32* x, T* y, u64 n), each(n, [&](u64 i) { put(y[i], (f32)x[i]); })) \
  KERNEL(to_integers_##T, THREADS, (const T* x, i32* y, u64 n), \
         each(n, [&](u64 i) { \
           /* Toward zero, kept inside the range; NaN becomes 0. */ \
           f32 v = to_f32(x[i]); \
           y[i] = v != v ? 0 : v >= 2147483648.f ? 2147483647 : v < -2147483648.f ? -2147483647 - 1 : (i32)v; \
         }))
#define FILL(T) \
  KERNEL(fill_##T, THREADS, (T* x, T value, u64 n), each(n, [&](u64 i) { x[i] = value; }))

CAST(f32, bf16)
CAST(f32, f16)
CAST(bf16, f32)
CAST(bf16, f16)
CAST(f16, f32)
CAST(f16, bf16)
AXPY(f32, f32)
AXPY(f32, bf16)
AXPY(f32, f16)
AXPY(bf16, bf16)
AXPY(f16, f16)
ELEMENTWISE(f32)
ELEMENTWISE(bf16)
ELEMENTWISE(f16)
FILL(f32)
FILL(bf16)
FILL(f16)
FILL(i32)
