// The steps of optimizers over flat slices: master weights, state and gradient in f32, and the working copy of the
// weights rounded on the way. Scalars that depend on the step are computed by the host, in f64, and rounded once.
#include "words.h"

namespace {

// from + weight (to - from), in the one of two forms that torch's lerp takes for this weight.
DEVICE f32 interpolate(f32 from, f32 to, f32 weight) {
  return weight < 0.5f ? from + weight * (to - from) : to - (to - from) * (1.f - weight);
}

// Updates eight elements at a time; absent states are null.
template <class T, class F>
DEVICE void step(f32* weights, f32* first, f32* second, const f32* grad, T* working, u64 n, F rule) {
  bool packed = packs(weights) && packs(first) && packs(second) && packs(grad) && packs(working);
  each8(n, [&](u64 i, u64 left) {
    f32 w[8], m[8] = {}, v[8] = {}, g[8];
    load8(w, weights + i, left, packed);
    load8(g, grad + i, left, packed);
    if (first) load8(m, first + i, left, packed);
    if (second) load8(v, second + i, left, packed);
    UNROLL for (u32 k = 0; k < 8; k++) rule(w[k], m[k], v[k], g[k]);
    store8(weights + i, w, left, packed, 0);
    if (first) store8(first + i, m, left, packed, 0);
    if (second) store8(second + i, v, left, packed, 0);
    if (working) store8(working + i, w, left, packed, 0);
  });
}

}  // namespace

#define OPTIM(T) \
  /* Adam; with `decoupled` weight decay AdamW. */ \
  KERNEL(adam_##T, THREADS, \
         (f32* weights, f32* first, f32* second, const f32* grad, T* working, u32 decoupled, f32 grad_scale, \
          f32 weight_decay, f32 keep, f32 beta1_rest, f32 beta2, f32 beta2_rest, f32 root_correction2, f32 eps, \
          f32 step_size, u64 n), \
         step(weights, first, second, grad, working, n, [&](f32& w, f32& m, f32& v, f32 g) { \
           g *= grad_scale; \
           f32 kept = decoupled ? w * keep : w; \
           if (!decoupled) g += weight_decay * w; \
           m = interpolate(m, g, beta1_rest); \
           v = v * beta2 + beta2_rest * g * g; \
           w = kept - step_size * m / (sqrtf(v) / root_correction2 + eps); \
         })) \
  /* Gradient descent; the momentum buffer may be absent. */ \
  KERNEL(sgd_##T, THREADS, \
         (f32* weights, f32* buffer, const f32* grad, T* working, f32 grad_scale, f32 weight_decay, f32 lr, \
          f32 momentum, f32 keep, f32 take, u32 nesterov, u64 n), \
         step(weights, buffer, (f32*)nullptr, grad, working, n, [&](f32& w, f32& m, f32&, f32 g) { \
           g = g * grad_scale + weight_decay * w; \
           f32 direction = g; \
           if (buffer) { \
             m = m * keep + take * g; \
             direction = nesterov ? g + momentum * m : m; \
           } \
           w -= lr * direction; \
         })) \
  KERNEL(lion_##T, THREADS, \
         (f32* weights, f32* momentum, const f32* grad, T* working, f32 grad_scale, f32 keep, f32 lr, f32 beta1, \
          f32 beta1_rest, f32 beta2, f32 beta2_rest, u64 n), \
         step(weights, momentum, (f32*)nullptr, grad, working, n, [&](f32& w, f32& m, f32&, f32 g) { \
           g *= grad_scale; \
           f32 blend = beta1 * m + beta1_rest * g; \
           /* A blend of zero moves nothing, as in the paper. */ \
           w = w * keep - (blend == 0.f ? 0.f : copysignf(lr, blend)); \
           m = beta2 * m + beta2_rest * g; \
         }))

OPTIM(f32)
OPTIM(bf16)
OPTIM(f16)
