// Quantized weights to elements: 4 bits in blocks of 64 with a scale each, and 8 bits in rows with a scale each.
#include "quantized.h"

namespace {

// Elements first .. first + n of a weight.
template <class T> DEVICE void dequantize_4bit(const FourBit& weight, T* out, u64 first, u64 n) {
  each(n, [&](u64 i) { put(out[i], weight.values[weight.code(first + i)] * weight.scale((first + i) / BLOCK)); });
}

// Rows first_row .. first_row + rows of a weight.
template <class T> DEVICE void dequantize_int8(const Int8& weight, T* out, u32 first_row, u32 rows, u32 cols) {
  each((u64)rows * cols, [&](u64 i) {
    put(out[i], (f32)weight.codes[(u64)first_row * cols + i] * weight.scale(first_row + i / cols));
  });
}

}  // namespace

#define QUANTIZED(T) \
  KERNEL(dequantize_4bit_##T, THREADS, \
         (const u8* codes, const f32* values, const f32* absmax, const u8* nested, const f32* map, const f32* offset, T* out, \
          u64 first, u64 n), \
         dequantize_4bit<T>({codes, values, absmax, nested, map, offset}, out, first, n)) \
  KERNEL(dequantize_int8_##T, THREADS, \
         (const i8* codes, const f32* absmax, T* out, u32 first_row, u32 rows, u32 cols), \
         dequantize_int8<T>({codes, absmax}, out, first_row, rows, cols))

QUANTIZED(f32)
QUANTIZED(bf16)
QUANTIZED(f16)
