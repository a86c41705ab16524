// The stable order of rows by an id that each has, and where the rows of each id begin in it.
//
// A pass orders by four bits: order_count, order_scan, order_place, from the lowest bits to the highest. Then group_count,
// order_scan and group_place find where ids begin. A block has a tile of TILE_KEYS rows, a thread KEYS neighbors.
#include "scan.h"

namespace {

const u32 DIGITS = 16, KEYS = 8, TILE_KEYS = KEYS * THREADS;

DEVICE u32 row_at(const i32* order, u32 i) { return order ? (u32)order[i] : i; }
DEVICE u32 digit_of(const i32* ids, u32 row, u32 shift) { return (u32)ids[row] >> shift & (DIGITS - 1); }
DEVICE u32 first_key() { return blockIdx.x * TILE_KEYS + threadIdx.x * KEYS; }

// How often each thread has each digit, at [digit, thread].
template <class C> DEVICE void count_digits(C& counts, const i32* ids, const i32* order, u32 shift, u32 n) {
  UNROLL for (u32 d = 0; d < DIGITS; d++) counts[d * THREADS + threadIdx.x] = 0;
  for (u32 i = first_key(); i < min(n, first_key() + KEYS); i++)
    counts[digit_of(ids, row_at(order, i), shift) * THREADS + threadIdx.x]++;
}

// Replaces numbers by the sums before them; a warp works on a row of THREADS of them. Returns the sum of its row.
template <class C> DEVICE u32 scan_row(C& counts, u32 row) {
  u32 own[KEYS], sum = 0, all, at = row * THREADS + threadIdx.x % 32 * KEYS;
  UNROLL for (u32 i = 0; i < KEYS; i++) sum += own[i] = counts[at + i];
  u32 before = warp_before(sum, all);
  UNROLL for (u32 i = 0; i < KEYS; i++) {
    counts[at + i] = before;
    before += own[i];
  }
  return all;
}

// Whether a place of the order is the first of its id.
DEVICE bool begins(const i32* ids, const i32* order, u32 i) { return i == 0 || ids[order[i]] != ids[order[i - 1]]; }

}  // namespace

// counts [16, blocks]: how often each block has each digit.
KERNEL(order_count, THREADS, (const i32* ids, const i32* order, u32* counts, u32 shift, u32 n),
       SHARED(u32, own, DIGITS * THREADS);
       count_digits(own, ids, order, shift, n);
       sync_block();
       for (u32 d = threadIdx.x / 32; d < DIGITS; d += THREADS / 32) {
         u32 all = scan_row(own, d);
         if (threadIdx.x % 32 == 0) counts[d * gridDim.x + blockIdx.x] = all;
       })

// Numbers become the sums before them. By one block.
KERNEL(order_scan, THREADS, (u32* counts, u32 n),
       u32 carry = 0;
       for (u32 first = 0; first < n; first += THREADS) {
         u32 i = first + threadIdx.x;
         u32 all;
         u32 before = block_before(i < n ? counts[i] : 0, all);
         if (i < n) counts[i] = carry + before;
         carry += all;
       })

// The order by this digit too. Without `order` the rows are in their own.
KERNEL(order_place, THREADS, (const i32* ids, const i32* order, const u32* counts, i32* to, u32 shift, u32 n),
       SHARED(u32, own, DIGITS * THREADS);
       count_digits(own, ids, order, shift, n);
       sync_block();
       for (u32 d = threadIdx.x / 32; d < DIGITS; d += THREADS / 32) scan_row(own, d);
       sync_block();
       for (u32 i = first_key(); i < min(n, first_key() + KEYS); i++) {
         u32 row = row_at(order, i);
         u32 d = digit_of(ids, row, shift);
         to[counts[d * gridDim.x + blockIdx.x] + own[d * THREADS + threadIdx.x]++] = (i32)row;
       })

// counts [blocks + 1]: how many ids begin in each block, and 0.
KERNEL(group_count, THREADS, (const i32* ids, const i32* order, u32* counts, u32 n),
       u32 own = 0;
       for (u32 i = first_key(); i < min(n, first_key() + KEYS); i++) own += begins(ids, order, i);
       u32 all;
       block_before(own, all);
       if (threadIdx.x == 0) {
         counts[blockIdx.x] = all;
         if (blockIdx.x == 0) counts[gridDim.x] = 0;
       })

// starts [n + 1], unique [n]: where each id begins, and the ids. Entries without rows follow, with id -1.
KERNEL(group_place, THREADS, (const i32* ids, const i32* order, const u32* counts, i32* starts, i32* unique, u32 n),
       u32 own = 0;
       for (u32 i = first_key(); i < min(n, first_key() + KEYS); i++) own += begins(ids, order, i);
       u32 all;
       u32 at = counts[blockIdx.x] + block_before(own, all);
       u32 n_unique = counts[gridDim.x];
       for (u32 i = first_key(); i < min(n, first_key() + KEYS); i++) {
         if (begins(ids, order, i)) {
           starts[at] = (i32)i;
           unique[at++] = ids[order[i]];
         }
         if (i >= n_unique) {
           starts[i] = (i32)n;
           unique[i] = -1;
         }
         if (i == n - 1) starts[n] = (i32)n;
       })
