// The first elements of rows by their order: the largest or the smallest, equal ones by their place, NaN as the largest.
#include "keys.h"

namespace {

DEVICE u64 warp_least(u64 v) {
  UNROLL for (int m = 16; m; m >>= 1) {
    u64 other = (u64)shuffle_xor((u32)(v >> 32), m) << 32 | shuffle_xor((u32)v, m);
    v = min(v, other);
  }
  return v;
}
template <u32 TEAM> DEVICE u64 team_least(u64 v) {
  v = warp_least(v);
  if (TEAM == 32) return v;
  SHARED(u64, partial, TEAM / 32);
  sync_block();  // Somebody may still read those before.
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  sync_block();
  v = partial[0];
  UNROLL for (u32 w = 1; w < TEAM / 32; w++) v = min(v, partial[w]);
  return v;
}

// Passes over a row, each of which finds the next one: k is small.
template <u32 TEAM, class T>
DEVICE void top_rows(u32 descending, const T* x, T* values, i32* places, u32 rows, u32 n, u32 k) {
  for (u32 row = team_index<TEAM>(); row < rows; row += n_teams<TEAM>()) {
    const T* from = x + (u64)row * n;
    u64 last = 0;
    for (u32 rank = 0; rank < k; rank++) {
      u64 best = ~0ull;
      for (u32 c = team_lane<TEAM>(); c < n; c += TEAM) {
        u32 key = key_of(from[c]);
        // The place below the key keeps equal elements in order.
        u64 slot = (u64)(descending ? ~key : key) << 32 | c;
        if (rank == 0 || slot > last) best = min(best, slot);
      }
      last = team_least<TEAM>(best);
      if (team_lane<TEAM>() == 0) {
        values[(u64)row * k + rank] = from[(u32)last];
        places[(u64)row * k + rank] = (i32)(u32)last;
      }
    }
  }
}

}  // namespace

#define TOP_K(T) \
  KERNEL(top_k_##T, THREADS, (u32 descending, const T* x, T* values, i32* places, u32 rows, u32 n, u32 k), \
         if (n <= WARP_ROW) top_rows<32>(descending, x, values, places, rows, n, k); \
         else top_rows<THREADS>(descending, x, values, places, rows, n, k))

TOP_K(f32)
TOP_K(bf16)
TOP_K(f16)
TOP_K(i32)
