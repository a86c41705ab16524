// Sums over what comes before a lane or a thread.
#pragma once
#include "words.h"

// The sum over the lanes before this one, and over all: where the sums of the neighboring halves meet, that of the lower one
// is before the upper one.
template <class V> DEVICE V warp_before(V v, V& all) {
  V before = 0;
  all = v;
  UNROLL for (int m = 1; m < 32; m *= 2) {
    V other = shuffle_xor(all, m);
    if (threadIdx.x & m) before += other;
    all += other;
  }
  return before;
}

// The same over a block of THREADS.
template <class V> DEVICE V block_before(V v, V& all) {
  SHARED(V, partial, THREADS / 32);
  V of_warp, before = warp_before(v, of_warp);
  sync_block();  // Somebody may still read the sums before.
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = of_warp;
  sync_block();
  V skipped = 0;
  all = 0;
  UNROLL for (u32 w = 0; w < THREADS / 32; w++) {
    if (w == threadIdx.x / 32) skipped = all;
    all += partial[w];
  }
  return skipped + before;
}
