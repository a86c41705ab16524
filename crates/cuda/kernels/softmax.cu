// Softmax and its logarithm over rows, forward and backward.
#include "rows.h"

namespace {

template <u32 TEAM, bool LOG, class T> DEVICE void forward_rows(const T* x, T* y, u32 rows, u32 dim) {
  bool packed = packs(x, dim) && packs(y, dim);
  for (u32 row = team_index<TEAM>(); row < rows; row += n_teams<TEAM>()) {
    const T* xr = x + (u64)row * dim;
    RowStatistics s = row_statistics<TEAM>(xr, dim, packed);
    f32 factor = 1.f / s.sum, log_sum = (f32)log((f64)s.sum), v[8];
    for (u32 c = team_lane<TEAM>() * 8; c < dim; c += TEAM * 8) {
      load8(v, xr + c, dim - c, packed);
      UNROLL for (u32 i = 0; i < 8; i++) v[i] = LOG ? v[i] - s.max - log_sum : expf(v[i] - s.max) * factor;
      store8(y + (u64)row * dim + c, v, dim - c, packed, 0);
    }
  }
}

template <u32 TEAM, bool LOG, class T>
DEVICE void backward_rows(const T* y, const T* dy, T* dx, u32 add, u32 rows, u32 dim) {
  bool packed = packs(y, dim) && packs(dy, dim) && packs(dx, dim);
  for (u32 row = team_index<TEAM>(); row < rows; row += n_teams<TEAM>()) {
    u64 at = (u64)row * dim;
    f32 v[8], d[8], sum = 0;
    for (u32 c = team_lane<TEAM>() * 8; c < dim; c += TEAM * 8) {
      load8(v, y + at + c, dim - c, packed);
      load8(d, dy + at + c, dim - c, packed);
      UNROLL for (u32 i = 0; i < 8; i++) sum += LOG ? d[i] : v[i] * d[i];
    }
    sum = team_sum<TEAM>(sum);
    for (u32 c = team_lane<TEAM>() * 8; c < dim; c += TEAM * 8) {
      load8(v, y + at + c, dim - c, packed);
      load8(d, dy + at + c, dim - c, packed);
      UNROLL for (u32 i = 0; i < 8; i++) v[i] = LOG ? d[i] - expf(v[i]) * sum : v[i] * (d[i] - sum);
      store8(dx + at + c, v, dim - c, packed, add);
    }
  }
}

template <bool LOG, class T> DEVICE void forward(const T* x, T* y, u32 rows, u32 dim) {
  if (dim <= WARP_ROW) forward_rows<32, LOG>(x, y, rows, dim);
  else forward_rows<THREADS, LOG>(x, y, rows, dim);
}
template <bool LOG, class T> DEVICE void backward(const T* y, const T* dy, T* dx, u32 add, u32 rows, u32 dim) {
  if (dim <= WARP_ROW) backward_rows<32, LOG>(y, dy, dx, add, rows, dim);
  else backward_rows<THREADS, LOG>(y, dy, dx, add, rows, dim);
}

}  // namespace

#define SOFTMAX(T) \
  KERNEL(softmax_forward_##T, THREADS, (const T* x, T* y, u32 rows, u32 dim), forward<false>(x, y, rows, dim)) \
  KERNEL(log_softmax_forward_##T, THREADS, (const T* x, T* y, u32 rows, u32 dim), forward<true>(x, y, rows, dim)) \
  KERNEL(softmax_backward_##T, THREADS, (const T* y, const T* dy, T* dx, u32 add, u32 rows, u32 dim), \
         backward<false>(y, dy, dx, add, rows, dim)) \
  KERNEL(log_softmax_backward_##T, THREADS, (const T* y, const T* dy, T* dx, u32 add, u32 rows, u32 dim), \
         backward<true>(y, dy, dx, add, rows, dim))

SOFTMAX(f32)
SOFTMAX(bf16)
SOFTMAX(f16)
