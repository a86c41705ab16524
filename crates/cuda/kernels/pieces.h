// Work on many stretches of memory by one launch, whose table is a parameter: tile by tile.
#pragma once
#include "words.h"

// Elements of a tile, which is the work of a block.
const u32 PIECE_TILE = 4096;

// Calls f(piece, task of the piece) for each task: a tile, or what else the work of a block is.
template <class F> DEVICE void each_task(const pieces& all, F f) {
  for (u32 task = blockIdx.x; task < all.ends[all.n - 1]; task += gridDim.x) {
    u32 piece = 0, last = all.n - 1;
    while (piece < last) {
      u32 middle = (piece + last) / 2;
      if (all.ends[middle] <= task) piece = middle + 1;
      else last = middle;
    }
    f(piece, task - (piece ? all.ends[piece - 1] : 0));
  }
}
// Calls f(piece, first element, the one behind the last) for each tile.
template <class F> DEVICE void each_tile(const pieces& all, F f) {
  each_task(all, [&](u32 piece, u32 tile) {
    u64 first = (u64)tile * PIECE_TILE;
    f(piece, first, min(all.sizes[piece], first + PIECE_TILE));
  });
}
DEVICE u64 tiles_of(const pieces& all, u32 piece) { return (all.sizes[piece] + PIECE_TILE - 1) / PIECE_TILE; }
template <class T> DEVICE T* operand(const pieces& all, u32 which, u32 piece) { return (T*)all.at[which][piece]; }
// The rows and columns of a piece whose last operand is no address.
struct Sides {
  u32 rows, cols;
};
DEVICE Sides sides_of(const pieces& all, u32 piece) {
  u64 word = all.at[4][piece];
  return {(u32)word, (u32)(word >> 32)};
}
