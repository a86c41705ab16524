// Quantized weights to elements: 4 bits in blocks of 64 with a scale each, and 8 bits in rows with a scale each.
#include "words.h"

namespace {

const u32 BLOCK = 64, NESTED_BLOCK = 256;

// Elements first .. first + n of a weight. Two codes are in a byte, the first in its upper half: indices into `values`.
// Scales are `absmax` of the block, or with `nested` codes map[code] * absmax of 256 blocks + offset.
template <class T>
DEVICE void dequantize_4bit(const u8* codes, const f32* values, const f32* absmax, const u8* nested, const f32* map,
                            f32 offset, T* out, u64 first, u64 n) {
  each(n, [&](u64 i) {
    u64 at = first + i, block = at / BLOCK;
    f32 scale = nested ? map[nested[block]] * absmax[block / NESTED_BLOCK] + offset : absmax[block];
    u32 byte = codes[at / 2];
    put(out[i], values[at % 2 ? byte & 15 : byte >> 4] * scale);
  });
}

// Rows first_row .. first_row + rows of a weight.
template <class T>
DEVICE void dequantize_int8(const i8* codes, const f32* absmax, T* out, u32 first_row, u32 rows, u32 cols) {
  each((u64)rows * cols, [&](u64 i) {
    u64 row = first_row + i / cols;
    // In the order in which bitsandbytes multiplies on a CPU.
    f32 scale = absmax[row] * (1.f / 127.f);
    put(out[i], (f32)codes[(u64)first_row * cols + i] * scale);
  });
}

}  // namespace

#define QUANTIZED(T) \
  KERNEL(dequantize_4bit_##T, THREADS, \
         (const u8* codes, const f32* values, const f32* absmax, const u8* nested, const f32* map, f32 offset, T* out, \
          u64 first, u64 n), \
         dequantize_4bit<T>(codes, values, absmax, nested, map, offset, out, first, n)) \
  KERNEL(dequantize_int8_##T, THREADS, \
         (const i8* codes, const f32* absmax, T* out, u32 first_row, u32 rows, u32 cols), \
         dequantize_int8<T>(codes, absmax, out, first_row, rows, cols))

QUANTIZED(f32)
QUANTIZED(bf16)
QUANTIZED(f16)
