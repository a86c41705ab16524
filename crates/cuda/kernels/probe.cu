// Each word of words.h by itself: what a new GPU, or a new version of the emulator, is asked first.
#include "words.h"

namespace {

// c [16, 8] = a [16, 16] b [16, 8] by one mma, with operands as ldmatrix loads them from shared memory.
template <class T> DEVICE void probe_mma(const T* a, const T* b, f32* c) {
  SHARED(T, tile_a, 256);
  SHARED(T, tile_b, 256);
  u32 lane = threadIdx.x;
  for (u32 i = lane; i < 256; i += 32) {
    tile_a[i] = a[i];
    // Columns from 8 on are not used: ldmatrix loads four matrices, and two are needed.
    tile_b[i] = b[i / 16 * 8 + i % 8];
  }
  sync_block();
  u32 left[4], right[4];
  ldmatrix(left, &tile_a[lane % 16 * 16 + lane / 16 * 8]);
  ldmatrix_trans(right, &tile_b[lane % 16 * 16 + lane / 16 * 8]);
  f32 sums[4] = {};
  mma(T(), sums, left, right[0], right[1]);
  for (u32 i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + 2 * (lane % 4) + i % 2] = sums[i];
}

// What a lane gets of the rows of x [32, 8], four matrices below each other, and of the transposed matrices.
template <class T> DEVICE void probe_load(const T* x, u32* rows, u32* columns) {
  SHARED(T, tile, 256);
  u32 lane = threadIdx.x, loaded[4];
  for (u32 i = lane; i < 256; i += 32) tile[i] = x[i];
  sync_block();
  ldmatrix(loaded, &tile[lane * 8]);
  for (u32 i = 0; i < 4; i++) rows[4 * lane + i] = loaded[i];
  ldmatrix_trans(loaded, &tile[lane * 8]);
  for (u32 i = 0; i < 4; i++) columns[4 * lane + i] = loaded[i];
}

// Numbers rounded to elements, and those elements as numbers again.
template <class T> DEVICE void probe_round(const f32* x, T* y, f32* back) {
  put(y[threadIdx.x], x[threadIdx.x]);
  back[threadIdx.x] = to_f32(y[threadIdx.x]);
}

// y = x reversed in blocks of eight, by asynchronous copies in two groups; the block behind the last one is zeros.
template <class T> DEVICE void probe_copy(const T* x, T* y) {
  SHARED(T, blocks, 33 * 8);
  u32 lane = threadIdx.x;
  cp_async(&blocks[(31 - lane) * 8], x + lane * 8, true);
  cp_async_commit();
  if (lane == 0) cp_async(&blocks[32 * 8], x, false);
  cp_async_commit();
  cp_async_wait<1>();
  sync_block();
  for (u32 i = lane; i < 32 * 8; i += 32) y[i] = blocks[i];
  cp_async_wait<0>();
  sync_block();
  if (lane < 8) y[32 * 8 + lane] = blocks[32 * 8 + lane];
}

// Two numbers in a word, the first in its lower half, and 2^x.
template <class T> DEVICE void probe_numbers(const f32* x, u32* pairs, f32* powers) {
  u32 lane = threadIdx.x;
  pairs[lane] = pair<T>(x[2 * lane], x[2 * lane + 1]);
  powers[lane] = exp2_fast(x[lane]);
}

// Rounded twice, where one instruction would round once.
DEVICE void probe_mul_of(const f32* x, const f32* y, const f32* z, f32* sum) {
  u32 lane = threadIdx.x;
  sum[lane] = mul_rn(x[lane], y[lane]) + z[lane];
}

// The lane that a shuffle takes from, sums and maxima of a warp, and of a block of 256 threads.
DEVICE void probe_sums_of(const f32* x, f32* shuffled, f32* of_warps, f32* of_block) {
  f32 v = x[threadIdx.x];
  shuffled[threadIdx.x] = shuffle_xor(v, 5);
  f32 sum = warp_sum(v), most = warp_max(v);
  if (threadIdx.x % 32 == 0) {
    of_warps[threadIdx.x / 32] = sum;
    of_warps[8 + threadIdx.x / 32] = most;
  }
  f64 all = team_sum<THREADS>((f64)v);
  most = team_max<THREADS>(v);
  if (threadIdx.x == 0) {
    of_block[0] = (f32)all;
    of_block[1] = most;
  }
}

}  // namespace

#define PROBE(T) \
  KERNEL(probe_mma_##T, 32, (const T* a, const T* b, f32* c), probe_mma<T>(a, b, c)) \
  KERNEL(probe_load_##T, 32, (const T* x, u32* rows, u32* columns), probe_load<T>(x, rows, columns)) \
  KERNEL(probe_round_##T, 32, (const f32* x, T* y, f32* back), probe_round<T>(x, y, back)) \
  KERNEL(probe_copy_##T, 32, (const T* x, T* y), probe_copy<T>(x, y)) \
  KERNEL(probe_numbers_##T, 32, (const f32* x, u32* pairs, f32* powers), probe_numbers<T>(x, pairs, powers))

PROBE(bf16)
PROBE(f16)
KERNEL(probe_mul, 32, (const f32* x, const f32* y, const f32* z, f32* sum), probe_mul_of(x, y, z, sum))
KERNEL(probe_sums, 256, (const f32* x, f32* shuffled, f32* of_warps, f32* of_block),
       probe_sums_of(x, shuffled, of_warps, of_block))
