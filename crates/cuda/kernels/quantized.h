// Quantized weights: where the codes and scales of their elements are.
#pragma once
#include "words.h"

// Elements of 4 bits that share a scale, and scales that do.
const u32 BLOCK = 64, NESTED_BLOCK = 256;

// Two codes are in a byte, the first in its upper half: indices into `values`. The scale of a block is its `absmax`, or with
// `nested` codes map[code] * absmax of 256 blocks + *offset.
struct FourBit {
  const u8* codes;
  const f32 *values, *absmax;
  const u8* nested;
  const f32 *map, *offset;
  DEVICE u32 code(u64 at) const {
    u32 byte = codes[at / 2];
    return at % 2 ? byte & 15 : byte >> 4;
  }
  DEVICE f32 scale(u64 block) const {
    if (!nested) return absmax[block];
    return mul_rn(map[nested[block]], absmax[block / NESTED_BLOCK]) + *offset;
  }
};

// A scale for each row.
struct Int8 {
  const i8* codes;
  const f32* absmax;
  // In the order in which bitsandbytes multiplies on a CPU.
  DEVICE f32 scale(u64 row) const { return absmax[row] * (1.f / 127.f); }
};
