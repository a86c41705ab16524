// The steps of optimizers over flat slices, many in one launch: master weights, state and gradient in f32, and the working
// copy of the weights rounded on the way. Scalars that depend on the step are computed by the host, in f64, and rounded once.
#include "optim.h"

#define OPTIM(T) \
  /* Adam; with `decoupled` weight decay AdamW. */ \
  KERNEL(adam_##T, THREADS, \
         (const IN_PLACE pieces all, u32 decoupled, f32 grad_scale, f32 weight_decay, f32 keep, f32 beta1_rest, f32 beta2, \
          f32 beta2_rest, f32 root_correction2, f32 eps, f32 step_size), \
         step_pieces<T>(all, [&](f32& w, f32& m, f32& v, f32 g) { \
           g *= grad_scale; \
           f32 kept = decoupled ? w * keep : w; \
           if (!decoupled) g += weight_decay * w; \
           m = interpolate(m, g, beta1_rest); \
           v = v * beta2 + beta2_rest * g * g; \
           w = kept - step_size * m / (sqrtf(v) / root_correction2 + eps); \
         })) \
  /* Gradient descent; the momentum buffer may be absent. */ \
  KERNEL(sgd_##T, THREADS, \
         (const IN_PLACE pieces all, f32 grad_scale, f32 weight_decay, f32 lr, f32 momentum, f32 keep, f32 take, \
          u32 nesterov), \
         bool has_momentum = operand<f32>(all, 1, 0) != nullptr; \
         step_pieces<T>(all, [&](f32& w, f32& m, f32&, f32 g) { \
           g = g * grad_scale + weight_decay * w; \
           f32 direction = g; \
           if (has_momentum) { \
             m = m * keep + take * g; \
             direction = nesterov ? g + momentum * m : m; \
           } \
           w -= lr * direction; \
         })) \
  KERNEL(lion_##T, THREADS, \
         (const IN_PLACE pieces all, f32 grad_scale, f32 keep, f32 lr, f32 beta1, f32 beta1_rest, f32 beta2, \
          f32 beta2_rest), \
         step_pieces<T>(all, [&](f32& w, f32& m, f32&, f32 g) { \
           g *= grad_scale; \
           f32 blend = beta1 * m + beta1_rest * g; \
           /* A blend of zero moves nothing, as in the paper. */ \
           w = w * keep - (blend == 0.f ? 0.f : copysignf(lr, blend)); \
           m = beta2 * m + beta2_rest * g; \
         })) \
  /* Adagrad; `start` is the first value of the sum in the first step, and 0 later. */ \
  KERNEL(adagrad_##T, THREADS, \
         (const IN_PLACE pieces all, f32 grad_scale, f32 weight_decay, f32 lr, f32 start, f32 eps), \
         step_pieces<T>(all, [&](f32& w, f32& m, f32&, f32 g) { \
           g = g * grad_scale + weight_decay * w; \
           m = (m + start) + g * g; \
           w -= lr * (g / (sqrtf(m) + eps)); \
         })) \
  /* x keep + step y: the last step of Muon, and what its polynomial is put together by. */ \
  KERNEL(muon_blend_##T, THREADS, (f32* x, const f32* y, T* working, f32 keep, f32 step_size, u64 n), \
         step(x, y, working, n, [&](f32& w, f32&, f32&, f32 g) { w = w * keep + step_size * g; }))

OPTIM(f32)
OPTIM(bf16)
OPTIM(f16)

// The next momentum, and the direction that Muon makes orthogonal.
KERNEL(muon_momentum, THREADS,
       (f32* direction, f32* buffer, const f32* grad, f32 grad_scale, f32 momentum, f32 take, u32 nesterov, u64 n),
       bool packed = packs(direction) && packs(buffer) && packs(grad);
       each8(n, [&](u64 i, u64 left) {
         f32 m[8], g[8], u[8];
         load8(m, buffer + i, left, packed);
         load8(g, grad + i, left, packed);
         UNROLL for (u32 k = 0; k < 8; k++) {
           g[k] *= grad_scale;
           m[k] = interpolate(m[k], g[k], take);
           u[k] = nesterov ? interpolate(g[k], m[k], momentum) : m[k];
         }
         store8(buffer + i, m, left, packed, 0);
         store8(direction + i, u, left, packed, 0);
       }))
// x divided by its norm, the root of `squares`, or by eps where that is larger.
KERNEL(muon_divide, THREADS, (f32* x, const f64* squares, f32 eps, u64 n),
       f32 by = (f32)max(sqrt(*squares), (f64)eps);
       each(n, [&](u64 i) { x[i] /= by; }))
