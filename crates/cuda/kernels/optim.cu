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
  KERNEL(muon_blend_##T, THREADS, (const IN_PLACE pieces all, f32 keep, f32 step_size), \
         step_pieces<T>(all, [&](f32& w, f32&, f32&, f32 g) { w = w * keep + step_size * g; }))

OPTIM(f32)
OPTIM(bf16)
OPTIM(f16)

// The next momentum, and the direction that Muon makes orthogonal: the operands are the direction, the momentum and the gradient.
KERNEL(muon_momentum, THREADS, (const IN_PLACE pieces all, f32 grad_scale, f32 momentum, f32 take, u32 nesterov),
       each_tile(all, [&](u32 piece, u64 start, u64 end) {
         f32 *direction = operand<f32>(all, 0, piece), *buffer = operand<f32>(all, 1, piece);
         const f32* grad = operand<f32>(all, 2, piece);
         bool packed = packs(direction) && packs(buffer) && packs(grad);
         for (u64 i = start + threadIdx.x * 8; i < end; i += THREADS * 8) {
           f32 m[8], g[8], u[8];
           load8(m, buffer + i, end - i, packed);
           load8(g, grad + i, end - i, packed);
           UNROLL for (u32 k = 0; k < 8; k++) {
             g[k] *= grad_scale;
             m[k] = interpolate(m[k], g[k], take);
             u[k] = nesterov ? interpolate(g[k], m[k], momentum) : m[k];
           }
           store8(buffer + i, m, end - i, packed, 0);
           store8(direction + i, u, end - i, packed, 0);
         }
       }))
// The norm of each direction, or eps where that is larger, by a block: the squared norms of its tiles, and the norm.
KERNEL(muon_norm, THREADS, (const IN_PLACE pieces all, f32 eps),
       each_task(all, [&](u32 piece, u32) {
         f64 sum = sum_of(operand<f64>(all, 0, piece), tiles_of(all, piece));
         if (threadIdx.x == 0) *operand<f32>(all, 1, piece) = (f32)max(sqrt(sum), (f64)eps);
       }))
// Directions divided by their norms.
KERNEL(muon_divide, THREADS, (const IN_PLACE pieces all),
       each_tile(all, [&](u32 piece, u64 start, u64 end) {
         f32 *x = operand<f32>(all, 0, piece), by = *operand<f32>(all, 1, piece);
         for (u64 i = start + threadIdx.x; i < end; i += THREADS) x[i] /= by;
       }))
