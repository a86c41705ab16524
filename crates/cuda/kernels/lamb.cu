// Lamb: Adam's direction, its length set by the ratio of the norms of the parameter and of the direction. Each launch works on
// many parameters.
#include "optim.h"

namespace {

DEVICE f32 direction(f32 w, f32 m, f32 v, f32 weight_decay, f32 eps, u32 eps_inside) {
  return m / (eps_inside ? sqrtf(v + eps) : sqrtf(v) + eps) + weight_decay * w;
}

// What the launches of a step leave each other for a parameter, in its last operand: the length of the step, and the squared
// norms of the tiles of the weights and of the direction.
struct Scratch {
  f32* length;
  f64 *of_weights, *of_direction;
};
DEVICE Scratch scratch_of(const pieces& all, u32 piece) {
  f64* at = operand<f64>(all, 4, piece);
  return {(f32*)at, at + 1, at + 1 + tiles_of(all, piece)};
}

template <class T> DEVICE void apply(const pieces& all, f32 weight_decay, f32 eps, u32 eps_inside) {
  each_tile(all, [&](u32 piece, u64 start, u64 end) {
    f32* weights = operand<f32>(all, 0, piece);
    const f32 *first = operand<f32>(all, 1, piece), *second = operand<f32>(all, 2, piece);
    T* working = operand<T>(all, 3, piece);
    f32 length = *scratch_of(all, piece).length;
    bool packed = packs(weights) && packs(first) && packs(second) && packs(working);
    for (u64 i = start + threadIdx.x * 8; i < end; i += THREADS * 8) {
      f32 w[8], m[8], v[8];
      load8(w, weights + i, end - i, packed);
      load8(m, first + i, end - i, packed);
      load8(v, second + i, end - i, packed);
      UNROLL for (u32 k = 0; k < 8; k++) w[k] -= length * direction(w[k], m[k], v[k], weight_decay, eps, eps_inside);
      store8(weights + i, w, end - i, packed, 0);
      if (working) store8(working + i, w, end - i, packed, 0);
    }
  });
}

}  // namespace

// The next moments, and the squared norms of each tile. The operands are the weights, both moments, the gradient and the scratch.
KERNEL(lamb_moments, THREADS,
       (const IN_PLACE pieces all, f32 grad_scale, f32 weight_decay, f32 beta1, f32 beta1_rest, f32 beta2, f32 beta2_rest,
        f32 eps, u32 eps_inside),
       each_tile(all, [&](u32 piece, u64 start, u64 end) {
         const f32 *weights = operand<f32>(all, 0, piece), *grad = operand<f32>(all, 3, piece);
         f32 *first = operand<f32>(all, 1, piece), *second = operand<f32>(all, 2, piece);
         bool packed = packs(weights) && packs(first) && packs(second) && packs(grad);
         f64 of_weights = 0, of_direction = 0;
         for (u64 i = start + threadIdx.x * 8; i < end; i += THREADS * 8) {
           u64 left = end - i;
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
           of_weights += squares(w);
           of_direction += squares(u);
         }
         of_weights = team_sum<THREADS>(of_weights);
         of_direction = team_sum<THREADS>(of_direction);
         Scratch scratch = scratch_of(all, piece);
         if (threadIdx.x == 0) {
           scratch.of_weights[start / PIECE_TILE] = of_weights;
           scratch.of_direction[start / PIECE_TILE] = of_direction;
         }
       }))

// The length of the step of each parameter, by a block: `rate` is the learning rate with the corrections for moments that begin
// at 0.
KERNEL(lamb_length, THREADS, (const IN_PLACE pieces all, f32 rate, f32 min_coeff, f32 max_coeff),
       each_task(all, [&](u32 piece, u32) {
         Scratch scratch = scratch_of(all, piece);
         f64 of_weights = sqrt(sum_of(scratch.of_weights, tiles_of(all, piece)));
         f64 of_direction = sqrt(sum_of(scratch.of_direction, tiles_of(all, piece)));
         f64 coefficient = 1;
         if (of_weights != 0 && of_direction != 0) {
           coefficient = of_weights / of_direction;
           coefficient = max(min(coefficient, (f64)max_coeff), (f64)min_coeff);
         }
         if (threadIdx.x == 0) *scratch.length = (f32)((f64)rate * coefficient);
       }))

// The operands are the weights, both moments, the working copy and the scratch.
#define APPLY(T) \
  KERNEL(lamb_apply_##T, THREADS, (const IN_PLACE pieces all, f32 weight_decay, f32 eps, u32 eps_inside), \
         apply<T>(all, weight_decay, eps, eps_inside))

APPLY(f32)
APPLY(bf16)
APPLY(f16)
