// Addressed random numbers, with the bits of the CPU's: each is a pure function of (seed, stream, index), by Philox4x32-10.
//
// Elements come in groups of 64: lane l of 16 Philox blocks gives word w to element 16 w + l. A thread computes a block.
#include "words.h"

namespace {

const u32 BLOCKS = 16, GROUP = 4 * BLOCKS;

struct Sequence {
  u64 seed, stream;
};
struct Bits {
  u32 of[4];
};
struct Numbers {
  f32 of[4];
};

// Ten rounds of Philox4x32 (Salmon et al. 2011).
DEVICE Bits philox(Sequence s, u64 counter) {
  u32 a = (u32)counter, b = (u32)(counter >> 32), c = (u32)s.stream, d = (u32)(s.stream >> 32);
  u32 key0 = (u32)s.seed, key1 = (u32)(s.seed >> 32);
  UNROLL for (u32 round = 0; round < 10; round++) {
    u64 p = 0xd2511f53ull * a, q = 0xcd9e8d57ull * c;
    a = (u32)(q >> 32) ^ b ^ key0;
    b = (u32)q;
    c = (u32)(p >> 32) ^ d ^ key1;
    d = (u32)p;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return {{a, b, c, d}};
}

// Calls f(place, number) for elements first .. first + n, whose places begin at 0.
template <class M, class F> DEVICE void each_number(Sequence s, u64 first, u64 n, M make, F f) {
  u64 skipped = first % GROUP;
  each((skipped + n + GROUP - 1) / GROUP * BLOCKS, [&](u64 i) {
    u64 group = i / BLOCKS * GROUP, lane = i % BLOCKS;
    // Elements count up to 2^64, and begin again.
    auto numbers = make(philox(s, (first - skipped + group) / GROUP * BLOCKS + lane));
    UNROLL for (u32 w = 0; w < 4; w++) {
      u64 at = group + w * BLOCKS + lane;
      if (at >= skipped && at - skipped < n) f(at - skipped, numbers.of[w]);
    }
  });
}

struct AsBits {
  DEVICE Bits operator()(Bits bits) const { return bits; }
};

// The upper 24 bits as a fraction of one.
DEVICE f32 unit(u32 bits) { return (f32)(i32)(bits >> 8) * (1.f / 16777216.f); }

// a0 + x (a1 + x (a2 + ..)), each step rounded twice, as on a CPU.
template <u32 N> DEVICE f32 polynomial(f32 x, const f32 (&a)[N]) {
  f32 value = a[N - 1];
  UNROLL for (u32 i = N - 1; i-- > 0;) value = mul_rn(value, x) + a[i];
  return value;
}

// The natural logarithm of a positive normal number.
DEVICE f32 log_of(f32 x) {
  // x = m 2^e with m between the roots of 1/2 and 2.
  i32 bits = (i32)as_u32(x), e = (bits - 0x3f3504f3) >> 23;
  f32 f = as_f32((u32)bits - ((u32)e << 23)) - 1.f;
  const f32 a[] = {0.3333333f, -0.25000823f, 0.20001236f, -0.166233f, 0.14201508f, -0.13160514f, 0.12763634f, -0.07636254f};
  f32 q = polynomial(f, a), square = mul_rn(f, f), exponent = (f32)e;
  f32 rest = mul_rn(mul_rn(f, square), q) - mul_rn(0.5f, square) + mul_rn(exponent, -2.1219444e-4f);
  return mul_rn(exponent, 0.6933594f) + (f + rest);
}

// Sine and cosine of bits / 2^32 of a full turn.
DEVICE void sin_cos_turn(u32 bits, f32& sin, f32& cos) {
  // The nearest quarter turn, and what remains: at most an eighth of a turn.
  u32 quarter = (bits + (1u << 29)) >> 30;
  f32 u = (f32)(i32)(bits - (quarter << 30)) * (1.f / 4294967296.f), square = mul_rn(u, u);
  const f32 of_sin[] = {6.2831855f, -41.341663f, 81.59255f, -75.40207f};
  const f32 of_cos[] = {1.f, -19.739152f, 64.92125f, -83.59261f};
  f32 s = mul_rn(u, polynomial(square, of_sin)), c = polynomial(square, of_cos);
  sin = as_f32(as_u32(quarter & 1 ? c : s) ^ (quarter >> 1 & 1) << 31);
  cos = as_f32(as_u32(quarter & 1 ? s : c) ^ ((quarter + 1) >> 1 & 1) << 31);
}

// Two and two independent standard normal numbers (Box-Muller).
struct AsNormal {
  DEVICE Numbers operator()(Bits bits) const {
    Numbers z;
    UNROLL for (u32 i = 0; i < 4; i += 2) {
      // In (0, 1], with 31 bits, so that the tails reach 6.6 standard deviations.
      f32 within = (f32)(i32)(bits.of[i] >> 1) + 0.5f, sin, cos;
      f32 radius = sqrtf(mul_rn(-2.f, log_of(within * (1.f / 2147483648.f))));
      sin_cos_turn(bits.of[i + 1], sin, cos);
      z.of[i] = mul_rn(radius, cos);
      z.of[i + 1] = mul_rn(radius, sin);
    }
    return z;
  }
};

}  // namespace

KERNEL(random_bits, THREADS, (u64 seed, u64 stream, u64 first, u32* out, u64 n),
       each_number({seed, stream}, first, n, AsBits(), [&](u64 i, u32 bits) { out[i] = bits; }))

#define RANDOM(T) \
  /* Uniform between low and high. */ \
  KERNEL(fill_uniform_##T, THREADS, (u64 seed, u64 stream, u64 first, f32 low, f32 high, T* out, u64 n), \
         each_number({seed, stream}, first, n, AsBits(), \
                     [&](u64 i, u32 bits) { put(out[i], low + mul_rn(high - low, unit(bits))); })) \
  /* Uniform multiples of 1 / n_steps from 0 up to, but without, 1. */ \
  KERNEL(fill_steps_##T, THREADS, (u64 seed, u64 stream, u64 first, f32 n_steps, T* out, u64 n), \
         each_number({seed, stream}, first, n, AsBits(), \
                     [&](u64 i, u32 bits) { put(out[i], floorf(mul_rn(unit(bits), n_steps)) / n_steps); })) \
  KERNEL(fill_normal_##T, THREADS, (u64 seed, u64 stream, u64 first, f32 mean, f32 std, T* out, u64 n), \
         each_number({seed, stream}, first, n, AsNormal(), \
                     [&](u64 i, f32 z) { put(out[i], mean + mul_rn(std, z)); })) \
  /* x += std times normal noise. */ \
  KERNEL(add_normal_##T, THREADS, (u64 seed, u64 stream, u64 first, f32 std, T* x, u64 n), \
         each_number({seed, stream}, first, n, AsNormal(), \
                     [&](u64 i, f32 z) { store(x[i], mul_rn(std, z), 1); })) \
  /* y = scale x where the random bits are below the threshold, of up to 2^32, else 0. The gradient is the same call. */ \
  KERNEL(dropout_##T, THREADS, \
         (u64 seed, u64 stream, u64 first, u64 threshold, f32 scale, const T* x, T* y, u64 n), \
         each_number({seed, stream}, first, n, AsBits(), \
                     [&](u64 i, u32 bits) { put(y[i], bits < threshold ? to_f32(x[i]) * scale : 0.f); }))

RANDOM(f32)
RANDOM(bf16)
RANDOM(f16)
