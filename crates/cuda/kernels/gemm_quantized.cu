// Matrix products with a quantized weight [rows, cols], of which a tile is dequantized on its way into shared memory.
#include "product_mma.h"
#include "product_plain.h"
#include "quantized.h"

namespace {

// Eight elements of a row of a weight of 4 bits, of which the first has an even number: the codes and their scale.
struct FourBits {
  const FourBit weight;
  const f32* values;  // In shared memory.
  u32 rows, cols;
  DEVICE FourBits(const FourBit& weight, const f32* values, u32 rows, u32 cols)
      : weight(weight), values(values), rows(rows), cols(cols) {}
  struct Codes {
    u32 of;
    f32 scale;
  };
  // Whether the codes of eight elements are a word, and their scale is one.
  DEVICE bool even() const { return cols % PACK == 0 && (u64)weight.codes % 4 == 0; }
  DEVICE void fetch(Codes& codes, u32 row, u32 col) const {
    u64 at = (u64)row * cols + col;
    codes.of = *(const u32*)(weight.codes + at / 2);
    codes.scale = weight.scale(at / BLOCK);
  }
  DEVICE f32 element(const Codes& codes, u32 i) const {
    return values[codes.of >> (i / 2 * 8 + (i % 2 ? 0 : 4)) & 15] * codes.scale;
  }
  DEVICE f32 element(u32 row, u32 col) const {
    u64 at = (u64)row * cols + col;
    return values[weight.code(at)] * weight.scale(at / BLOCK);
  }
};

// The same of 8 bits.
struct EightBits {
  const Int8 weight;
  u32 rows, cols;
  DEVICE EightBits(const Int8& weight, u32 rows, u32 cols) : weight(weight), rows(rows), cols(cols) {}
  struct Codes {
    u64 of;
    f32 scale;
  };
  DEVICE bool even() const { return cols % PACK == 0 && (u64)weight.codes % 8 == 0; }
  DEVICE void fetch(Codes& codes, u32 row, u32 col) const {
    codes.of = *(const u64*)(weight.codes + (u64)row * cols + col);
    codes.scale = weight.scale(row);
  }
  DEVICE f32 element(const Codes& codes, u32 i) const { return (f32)(i8)(codes.of >> (8 * i)) * codes.scale; }
  DEVICE f32 element(u32 row, u32 col) const {
    return (f32)weight.codes[(u64)row * cols + col] * weight.scale(row);
  }
};

// A weight as the right operand of a product by tensor cores: its codes are in flight while the tile before is multiplied.
template <class W, class T> struct Dequantized {
  const W& weight;
  bool even;
  DEVICE Dequantized(const W& weight) : weight(weight), even(weight.even()) {}
  template <class P> struct Held {
    typename W::Codes codes[P::PACKS];
  };

  DEVICE bool is_inside(u32 row, u32 col) const { return row < weight.rows && col < weight.cols; }
  template <class P> DEVICE void begin(T*, u32 row, u32 col, Held<P>& held) const {
    UNROLL for (u32 i = 0; i < P::PACKS; i++)
      if (even && is_inside(row + P::row(i), col + P::col(i)))
        weight.fetch(held.codes[i], row + P::row(i), col + P::col(i));
  }
  template <class P> DEVICE void finish(T* tile, u32 row, u32 col, const Held<P>& held) const {
    UNROLL for (u32 i = 0; i < P::PACKS; i++) {
      u32 r = row + P::row(i), c = col + P::col(i);
      Pack<T> pack;
      UNROLL for (u32 x = 0; x < PACK; x++) {
        f32 v = 0;
        if (is_inside(r, c + x)) v = even ? weight.element(held.codes[i], x) : weight.element(r, c + x);
        put(pack.of[x], v);
      }
      *(Pack<T>*)(tile + P::row(i) * P::STRIDE + P::col(i)) = pack;
    }
  }
};

// The same for products of f32.
template <class W> struct DequantizedWords {
  const W& weight;
  DEVICE void read(f32 (&v)[PACK], u32 row, u32 col) const {
    bool even = weight.even() && row < weight.rows && col < weight.cols;
    typename W::Codes codes;
    if (even) weight.fetch(codes, row, col);
    UNROLL for (u32 i = 0; i < PACK; i++) {
      v[i] = 0;
      if (row < weight.rows && col + i < weight.cols)
        v[i] = even ? weight.element(codes, i) : weight.element(row, col + i);
    }
  }
};

// y [m, rows] = x W^T, or backward y [m, cols] = x W; beta y is added.
template <bool FORWARD, class W, class T>
DEVICE void product(const T* x, u64 stride, const W& weight, const T* bias, T* y, u64 y_stride, f32 beta, u32 m) {
  u32 n = FORWARD ? weight.rows : weight.cols, k = FORWARD ? weight.cols : weight.rows;
  Result<T> result = {y, bias, y, {y_stride, 0}, 1.f, beta, m, n, k};
  bool even = is_even(x, {stride, 0});
  if constexpr (sizeof(T) == 4) {
    multiply_plain_tile<false, FORWARD>(PlainWords{x, stride, m, k, even}, DequantizedWords<W>{weight}, result);
  } else {
    multiply_tile<false, FORWARD, T>(Plain<T>{x, stride, m, k, even}, Dequantized<W, T>(weight), result);
  }
}

template <bool FORWARD, class T>
DEVICE void product_4bit(const T* x, u64 stride, const FourBit& weight, const T* bias, T* y, u64 y_stride, f32 beta,
                         u32 m, u32 rows, u32 cols) {
  SHARED(f32, values, 16);
  if (threadIdx.x < 16) values[threadIdx.x] = weight.values[threadIdx.x];
  sync_block();
  product<FORWARD>(x, stride, FourBits(weight, values, rows, cols), bias, y, y_stride, beta, m);
}

}  // namespace

#define FOUR_BIT(name, FORWARD, T) \
  KERNEL(name##_##T, THREADS, \
         (const T* x, u64 x_stride, const u8* codes, const f32* values, const f32* absmax, const u8* nested, \
          const f32* map, const f32* offset, const T* bias, T* y, u64 y_stride, f32 beta, u32 m, u32 rows, u32 cols), \
         product_4bit<FORWARD>(x, x_stride, {codes, values, absmax, nested, map, offset}, bias, y, y_stride, beta, m, \
                               rows, cols))
#define INT8(name, FORWARD, T) \
  KERNEL(name##_##T, THREADS, \
         (const T* x, u64 x_stride, const i8* codes, const f32* absmax, const T* bias, T* y, u64 y_stride, f32 beta, \
          u32 m, u32 rows, u32 cols), \
         product<FORWARD>(x, x_stride, EightBits({codes, absmax}, rows, cols), bias, y, y_stride, beta, m))
#define QUANTIZED(T) \
  FOUR_BIT(product_4bit_forward, true, T) \
  FOUR_BIT(product_4bit_backward, false, T) \
  INT8(product_int8_forward, true, T) \
  INT8(product_int8_backward, false, T)

QUANTIZED(f32)
QUANTIZED(bf16)
QUANTIZED(f16)
