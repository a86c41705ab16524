// Losses that compare two tensors element by element: errors, binary cross-entropy, Kullback-Leibler divergence.
#include "sums.h"

namespace {

enum PairLoss : u32 { SQUARED, ABSOLUTE, SMOOTH, BINARY, KL_PROBS, KL_LOG_PROBS };

struct Loss {
  u32 kind;
  f32 beta, factor;  // Of SMOOTH.
};

// What an element costs, in f64.
DEVICE f64 cost(const Loss& loss, f64 x, f64 t) {
  switch (loss.kind) {
    case SQUARED: return (x - t) * (x - t);
    case ABSOLUTE: return fabs(x - t);
    case SMOOTH: {
      f64 beta = loss.beta, distance = fabs(x - t);
      return loss.factor * (distance < beta ? 0.5 * distance * distance / beta : distance - 0.5 * beta);
    }
    case BINARY: return -t * max(log(x), -100.) - (1 - t) * max(log(1 - x), -100.);
    case KL_PROBS: return t == 0 ? 0. : t * (log(t) - x);
    default: return t == (f64)minus_infinity() ? 0. : exp(t) * (t - x);
  }
}

DEVICE f32 sign(f32 x) { return x == 0.f ? 0.f : copysignf(1.f, x); }
DEVICE f32 smooth_slope(const Loss& loss, f32 difference) {
  return loss.factor * (fabsf(difference) < loss.beta ? difference / loss.beta : sign(difference));
}

// The gradient of the sum counts for that of each element; without it that is 1.
DEVICE f32 times(f32 scale, const f32* upstream) { return upstream ? scale * *upstream : scale; }

// The gradient for the input, times `scale`.
DEVICE f32 input_grad(const Loss& loss, f32 scale, f32 x, f32 t) {
  switch (loss.kind) {
    case SQUARED: return 2.f * scale * (x - t);
    case ABSOLUTE: return scale * sign(x - t);
    case SMOOTH: return scale * smooth_slope(loss, x - t);
    // As torch bounds it where a probability is 0 or 1.
    case BINARY: return scale * (x - t) / max((1.f - x) * x, 1e-12f);
    case KL_PROBS: return -scale * t;
    default: return -scale * expf(t);
  }
}
// The same for the target.
DEVICE f32 target_grad(const Loss& loss, f32 scale, f32 x, f32 t) {
  switch (loss.kind) {
    case SQUARED: return 2.f * scale * (t - x);
    case ABSOLUTE: return scale * sign(t - x);
    case SMOOTH: return scale * smooth_slope(loss, t - x);
    case BINARY: return scale * (max(logf(1.f - x), -100.f) - max(logf(x), -100.f));
    case KL_PROBS: return scale * (logf(t) + 1.f - x);
    default: return scale * expf(t) * (t + 1.f - x);
  }
}

}  // namespace

#define PAIR_LOSS(T) \
  /* The sum of each block of 4,096 elements. */ \
  KERNEL(pair_loss_sum_##T, THREADS, (u32 kind, f32 beta, f32 factor, const T* x, const T* target, f64* blocks, u64 n), \
         bool packed = packs(x) && packs(target); \
         sum_blocks(n, blocks, [&](u64 i, u64 left) { \
           f32 a[8], t[8]; \
           f64 sum = 0; \
           load8(a, x + i, left, packed); \
           load8(t, target + i, left, packed); \
           UNROLL for (u32 k = 0; k < 8; k++) \
             if (k < left) sum += cost({kind, beta, factor}, a[k], t[k]); \
           return sum; \
         })) \
  KERNEL(pair_loss_each_##T, THREADS, (u32 kind, f32 beta, f32 factor, const T* x, const T* target, T* y, u64 n), \
         each(n, [&](u64 i) { put(y[i], (f32)cost({kind, beta, factor}, to_f32(x[i]), to_f32(target[i]))); })) \
  KERNEL(pair_loss_input_grad_##T, THREADS, \
         (u32 kind, f32 beta, f32 factor, f32 scale, const f32* upstream, const T* x, const T* target, T* dx, u64 n), \
         scale = times(scale, upstream); \
         each(n, [&](u64 i) { put(dx[i], input_grad({kind, beta, factor}, scale, to_f32(x[i]), to_f32(target[i]))); })) \
  KERNEL(pair_loss_target_grad_##T, THREADS, \
         (u32 kind, f32 beta, f32 factor, f32 scale, const f32* upstream, const T* x, const T* target, T* dt, u64 n), \
         scale = times(scale, upstream); \
         each(n, [&](u64 i) { put(dt[i], target_grad({kind, beta, factor}, scale, to_f32(x[i]), to_f32(target[i]))); }))

PAIR_LOSS(f32)
PAIR_LOSS(bf16)
PAIR_LOSS(f16)
