// Functions of one element, with their slopes. Which one is a number: the same in all threads, so no warp diverges.
#include "functions.h"

namespace {

enum Unary : u32 {
  AFFINE, EXP, LOG, SQRT, SQUARE, POW, ABS, CLAMP, DIVIDED_BY, OVER, RSQRT, ROOT, EXP2, EXPM1, LOG2, LOG1P, SIN, COS,
  ERF, FLOOR, CEIL, ROUND, TRUNC, SIGN, LEAKY_RELU, ELU, SOFTPLUS, HARDTANH, SELU, MISH, HARDSIGMOID, HARDSWISH,
  LOG_SIGMOID, SOFTSIGN, ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_RELU, ACT_TANH, ACT_SIGMOID,
};

const f32 SELU_SCALE = 1.0507010f, SELU_ALPHA = 1.6732632f;

// tanh(log(1 + e^x)): 1 from 20 on.
DEVICE f32 mish_gate(f32 x) {
  f32 e = expf(x > 20.f ? 20.f : x), n = e * (e + 2.f);
  return n / (n + 2.f);
}
DEVICE f32 six(f32 x) { return x < 0.f ? 0.f : x > 6.f ? 6.f : x; }
DEVICE f32 one_signed(f32 x) { return x > 0.f ? 1.f : x < 0.f ? -1.f : 0.f; }

DEVICE f32 unary_value(u32 f, f32 a, f32 b, f32 x) {
  switch (f) {
    case AFFINE: return a * x + b;
    case EXP: return expf(x);
    case LOG: return logf(x);
    case SQRT: case ROOT: return sqrtf(x);
    case SQUARE: return x * x;
    case POW: return powf(x, a);
    case ABS: return fabsf(x);
    // Comparisons written so that NaN passes.
    case CLAMP: case HARDTANH: return x < a ? a : x > b ? b : x;
    case DIVIDED_BY: return x / a;
    case OVER: return a / x;
    case RSQRT: return 1.f / sqrtf(x);
    case EXP2: return exp2f(x);
    case EXPM1: return expm1f(x);
    case LOG2: return log2f(x);
    case LOG1P: return log1pf(x);
    case SIN: return sinf(x);
    case COS: return cosf(x);
    case ERF: return erff(x);
    case FLOOR: return floorf(x);
    case CEIL: return ceilf(x);
    case ROUND: return rintf(x);
    case TRUNC: return truncf(x);
    case SIGN: return one_signed(x);
    case LEAKY_RELU: return x > 0.f ? x : a * x;
    case ELU: return x > 0.f ? x : a * expm1f(x);
    case SOFTPLUS: return a * x > b ? x : log1pf(expf(a * x)) / a;
    case SELU: return SELU_SCALE * (x > 0.f ? x : SELU_ALPHA * expm1f(x));
    case MISH: return x * mish_gate(x);
    case HARDSIGMOID: return six(x + 3.f) / 6.f;
    case HARDSWISH: return x * six(x + 3.f) / 6.f;
    case LOG_SIGMOID: return (x < 0.f ? x : 0.f) - log1pf(expf(-fabsf(x)));
    case SOFTSIGN: return x / (1.f + fabsf(x));
    case ACT_SILU: return activation<SILU>(x);
    case ACT_GELU: return activation<GELU>(x);
    case ACT_GELU_TANH: return activation<GELU_TANH>(x);
    case ACT_RELU: return activation<RELU>(x);
    case ACT_TANH: return activation<TANH>(x);
    default: return activation<SIGMOID>(x);
  }
}

DEVICE f32 unary_slope(u32 f, f32 a, f32 b, f32 x) {
  switch (f) {
    case AFFINE: return a;
    case EXP: case EXPM1: return expf(x);
    case LOG: return 1.f / x;
    case SQRT: return 0.5f / sqrtf(x);
    case SQUARE: return 2.f * x;
    case POW: return a == 0.f ? 0.f : a * powf(x, a - 1.f);
    case ABS: return x == 0.f ? 0.f : copysignf(1.f, x);
    case CLAMP: return x < a || x > b ? 0.f : 1.f;
    case DIVIDED_BY: return 1.f / a;
    case OVER: return -a / (x * x);
    case RSQRT: return -0.5f / (x * sqrtf(x));
    case ROOT: return x == 0.f ? 0.f : 0.5f / sqrtf(x);
    case EXP2: return LN_2 * exp2f(x);
    case LOG2: return 1.f / (x * LN_2);
    case LOG1P: return 1.f / (1.f + x);
    case SIN: return cosf(x);
    case COS: return -sinf(x);
    case ERF: return 1.1283791670955126f * expf(-x * x);
    case FLOOR: case CEIL: case ROUND: case TRUNC: case SIGN: return 0.f;
    case LEAKY_RELU: return x > 0.f ? 1.f : a;
    case ELU: return x > 0.f ? 1.f : a * expf(x);
    case SOFTPLUS: return a * x > b ? 1.f : sigmoid(a * x);
    case HARDTANH: return x <= a || x >= b ? 0.f : 1.f;
    case SELU: return SELU_SCALE * (x > 0.f ? 1.f : SELU_ALPHA * expf(x));
    case MISH: {
      f32 gate = mish_gate(x);
      return gate + x * (1.f - gate * gate) * sigmoid(x);
    }
    case HARDSIGMOID: return x <= -3.f || x >= 3.f ? 0.f : 1.f / 6.f;
    case HARDSWISH: return x <= -3.f ? 0.f : x >= 3.f ? 1.f : x / 3.f + 0.5f;
    case LOG_SIGMOID: return sigmoid(-x);
    case SOFTSIGN: return 1.f / ((1.f + fabsf(x)) * (1.f + fabsf(x)));
    case ACT_SILU: return activation_slope<SILU>(x);
    case ACT_GELU: return activation_slope<GELU>(x);
    case ACT_GELU_TANH: return activation_slope<GELU_TANH>(x);
    case ACT_RELU: return activation_slope<RELU>(x);
    case ACT_TANH: return activation_slope<TANH>(x);
    default: return activation_slope<SIGMOID>(x);
  }
}

}  // namespace

#define UNARY(T) \
  KERNEL(unary_forward_##T, THREADS, (u32 f, f32 a, f32 b, const T* x, T* y, u64 n), \
         each(n, [&](u64 i) { put(y[i], unary_value(f, a, b, to_f32(x[i]))); })) \
  KERNEL(unary_backward_##T, THREADS, (u32 f, f32 a, f32 b, const T* x, const T* dy, T* dx, u32 add, u64 n), \
         each(n, [&](u64 i) { store(dx[i], to_f32(dy[i]) * unary_slope(f, a, b, to_f32(x[i])), add); }))

UNARY(f32)
UNARY(bf16)
UNARY(f16)
