// Lamb: Adam's direction, its length set by the ratio of the norms of the parameter and of the direction.
#include "optim.h"

namespace {

DEVICE f32 direction(f32 w, f32 m, f32 v, f32 weight_decay, f32 eps, u32 eps_inside) {
  return m / (eps_inside ? sqrtf(v + eps) : sqrtf(v) + eps) + weight_decay * w;
}

template <class T>
DEVICE void apply(f32* weights, const f32* first, const f32* second, T* working, f32 length, f32 weight_decay, f32 eps,
                  u32 eps_inside, u64 n) {
  bool packed = packs(weights) && packs(first) && packs(second) && packs(working);
  each8(n, [&](u64 i, u64 left) {
    f32 w[8], m[8], v[8];
    load8(w, weights + i, left, packed);
    load8(m, first + i, left, packed);
    load8(v, second + i, left, packed);
    UNROLL for (u32 k = 0; k < 8; k++) w[k] -= length * direction(w[k], m[k], v[k], weight_decay, eps, eps_inside);
    store8(weights + i, w, left, packed, 0);
    if (working) store8(working + i, w, left, packed, 0);
  });
}

}  // namespace

// The next moments, and the squared norm of the direction of each block of 4,096 elements.
KERNEL(lamb_moments, THREADS,
       (const f32* weights, f32* first, f32* second, const f32* grad, f64* direction_squares, f32 grad_scale,
        f32 weight_decay, f32 beta1, f32 beta1_rest, f32 beta2, f32 beta2_rest, f32 eps, u32 eps_inside, u64 n),
       bool packed = packs(weights) && packs(first) && packs(second) && packs(grad);
       sum_blocks(n, direction_squares, [&](u64 i, u64 left) {
         f32 w[8], m[8], v[8], g[8], u[8];
         load8(w, weights + i, left, packed);
         load8(m, first + i, left, packed);
         load8(v, second + i, left, packed);
         load8(g, grad + i, left, packed);
         UNROLL for (u32 k = 0; k < 8; k++) {
           g[k] *= grad_scale;
           m[k] = beta1 * m[k] + beta1_rest * g[k];
           v[k] = beta2 * v[k] + beta2_rest * g[k] * g[k];
           u[k] = k < left ? direction(w[k], m[k], v[k], weight_decay, eps, eps_inside) : 0.f;
         }
         store8(first + i, m, left, packed, 0);
         store8(second + i, v, left, packed, 0);
         return squares(u);
       }))

// The length of the step, from the squared norms of blocks of the weights and of the direction. `rate` is the learning rate
// with the corrections for moments that begin at 0. By one block.
KERNEL(lamb_length, THREADS,
       (const f64* weight_squares, const f64* direction_squares, u64 n_blocks, f32 rate, f32 min_coeff, f32 max_coeff,
        f32* length),
       f64 of_weights = sqrt(sum_of(weight_squares, n_blocks)), of_direction = sqrt(sum_of(direction_squares, n_blocks));
       f64 coefficient = 1;
       if (of_weights != 0 && of_direction != 0) {
         coefficient = of_weights / of_direction;
         coefficient = max(min(coefficient, (f64)max_coeff), (f64)min_coeff);
       }
       if (threadIdx.x == 0) *length = (f32)((f64)rate * coefficient))

#define APPLY(T) \
  KERNEL(lamb_apply_##T, THREADS, \
         (f32* weights, const f32* first, const f32* second, T* working, const f32* length, f32 weight_decay, f32 eps, \
          u32 eps_inside, u64 n), \
         apply(weights, first, second, working, *length, weight_decay, eps, eps_inside, n))

APPLY(f32)
APPLY(bf16)
APPLY(f16)
