// Gated linear units, forward and backward.
#include "functions.h"

namespace {

// Where element i of gates and ups lies, in rows of `width` elements of which each begins `stride` elements behind the one
// before: gates and ups of one product lie side by side. Both are multiples of PACK, so that no pack is in two rows.
// Without a width the elements follow each other, as those of outputs always do.
DEVICE u64 place(u64 i, u32 width, u32 stride) {
  return width ? i + (u64)((u32)(i / PACK) / (width / PACK)) * (stride - width) : i;
}

template <class T>
DEVICE void gated_forward(u32 act, const T* gate, const T* up, T* y, u64 n, u32 width, u32 stride) {
  bool packed = packs(gate) && packs(up) && packs(y);
  with_activation(act, [&](auto constant) {
    each8(n, [&](u64 i, u64 left) {
      f32 g[8], u[8];
      u64 at = place(i, width, stride);
      load8(g, gate + at, left, packed);
      load8(u, up + at, left, packed);
      UNROLL for (u32 k = 0; k < 8; k++) g[k] = activation<decltype(constant)::value>(g[k]) * u[k];
      store8(y + i, g, left, packed, 0);
    });
  });
}

// With `y`, the output once more: it costs a store here, and three loads and stores in a launch of its own.
template <class T>
DEVICE void gated_backward(u32 act, const T* gate, const T* up, const T* dy, T* d_gate, T* d_up, T* y, u64 n, u32 width,
                           u32 stride) {
  bool packed = packs(gate) && packs(up) && packs(dy) && packs(d_gate) && packs(d_up) && packs(y);
  with_activation(act, [&](auto constant) {
    const u32 ACT = decltype(constant)::value;
    each8(n, [&](u64 i, u64 left) {
      f32 g[8], u[8], d[8], out[8];
      u64 at = place(i, width, stride);
      load8(g, gate + at, left, packed);
      load8(u, up + at, left, packed);
      load8(d, dy + i, left, packed);
      UNROLL for (u32 k = 0; k < 8; k++) {
        f32 active = activation<ACT>(g[k]);
        out[k] = active * u[k];
        u[k] = d[k] * u[k] * activation_slope<ACT>(g[k]);
        d[k] = d[k] * active;
      }
      if (y) store8(y + i, out, left, packed, 0);
      store8(d_gate + at, u, left, packed, 0);
      store8(d_up + at, d, left, packed, 0);
    });
  });
}

}  // namespace

#define GLU(T) \
  KERNEL(gated_forward_##T, THREADS, \
         (u32 act, const T* gate, const T* up, T* y, u64 n, u32 width, u32 stride), \
         gated_forward<T>(act, gate, up, y, n, width, stride)) \
  KERNEL(gated_backward_##T, THREADS, \
         (u32 act, const T* gate, const T* up, const T* dy, T* d_gate, T* d_up, T* y, u64 n, u32 width, u32 stride), \
         gated_backward<T>(act, gate, up, dy, d_gate, d_up, y, n, width, stride))

GLU(f32)
GLU(bf16)
GLU(f16)
