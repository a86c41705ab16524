// Work on many stretches of memory by one launch, whose table is a parameter: tile by tile.
#pragma once
#include "words.h"

// Elements of a tile, which is the work of a block.
const u32 PIECE_TILE = 4096;

// Calls f(piece, first element, the one behind the last) for each tile.
template <class F> DEVICE void each_tile(const pieces& all, F f) {
  for (u32 tile = blockIdx.x; tile < all.ends[all.n - 1]; tile += gridDim.x) {
    u32 piece = 0, last = all.n - 1;
    while (piece < last) {
      u32 middle = (piece + last) / 2;
      if (all.ends[middle] <= tile) piece = middle + 1;
      else last = middle;
    }
    u64 first = (u64)(tile - (piece ? all.ends[piece - 1] : 0)) * PIECE_TILE;
    f(piece, first, min(all.sizes[piece], first + PIECE_TILE));
  }
}
template <class T> DEVICE T* operand(const pieces& all, u32 which, u32 piece) { return (T*)all.at[which][piece]; }
