// Functions of one element, and their slopes.
#pragma once
#include "words.h"

const f32 LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

DEVICE f32 sigmoid(f32 x) { return 1.f / (1.f + expf(-x)); }
// The normal distribution function.
DEVICE f32 normal_cdf(f32 x) { return 0.5f * erfcf(-0.70710678118654752f * x); }
// The sigmoid by which the tanh form of GELU multiplies.
const f32 GELU_CUBIC = 0.044715f, GELU_FACTOR = 1.5957691216057308f;
DEVICE f32 gelu_tanh_gate(f32 x) { return sigmoid(GELU_FACTOR * (x + GELU_CUBIC * x * x * x)); }

enum Activation : u32 { SILU, GELU, GELU_TANH, RELU, TANH, SIGMOID };

template <u32 ACT> DEVICE f32 activation(f32 x) {
  if (ACT == SILU) return x * sigmoid(x);
  if (ACT == GELU) return x * normal_cdf(x);
  if (ACT == GELU_TANH) return x * gelu_tanh_gate(x);
  // Not max: NaN must stay NaN.
  if (ACT == RELU) return x < 0.f ? 0.f : x;
  if (ACT == TANH) return tanhf(x);
  return sigmoid(x);
}

template <u32 ACT> DEVICE f32 activation_slope(f32 x) {
  if (ACT == SILU) {
    f32 s = sigmoid(x);
    return s * (1.f + x * (1.f - s));
  }
  if (ACT == GELU) return normal_cdf(x) + x * 0.3989422804014327f * expf(-0.5f * x * x);
  if (ACT == GELU_TANH) {
    f32 s = gelu_tanh_gate(x), inner = GELU_FACTOR * (1.f + 3.f * GELU_CUBIC * x * x);
    return s + x * s * (1.f - s) * inner;
  }
  if (ACT == RELU) return x > 0.f ? 1.f : 0.f;
  if (ACT == TANH) {
    f32 t = tanhf(x);
    return 1.f - t * t;
  }
  f32 s = sigmoid(x);
  return s * (1.f - s);
}

// Runs `f` with the activation as a constant, so that each has a loop of its own.
template <u32 ACT> struct Constant {
  static const u32 value = ACT;
};
template <class F> DEVICE void with_activation(u32 act, F f) {
  switch (act) {
    case SILU: f(Constant<SILU>()); break;
    case GELU: f(Constant<GELU>()); break;
    case GELU_TANH: f(Constant<GELU_TANH>()); break;
    case RELU: f(Constant<RELU>()); break;
    case TANH: f(Constant<TANH>()); break;
    default: f(Constant<SIGMOID>());
  }
}
