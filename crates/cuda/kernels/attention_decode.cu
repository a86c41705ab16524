// Attention for few queries against a cache of keys, as in generation: the keys of a sequence are split over blocks, each
// with a softmax of its own, and a second kernel joins the splits in their order.
//
// A row is a query of one of the heads of a group; a block has up to 16 of them, so that keys are read once for all.
#include "attention.h"

namespace {

const int ROWS = 16, N_KEYS = WALKED, COLS = (D + ATTENTION_THREADS - 1) / ATTENTION_THREADS;

// parts [batch, kv_heads, rows, splits, head_dim], maxima and sums [batch, kv_heads, rows, splits].
DEVICE void decode_split(const T* q, const T* k, const T* v, const i32* starts, f32* parts, f32* maxima, f32* sums,
                         int n_splits, const Shape& s) {
  DYNAMIC_SHARED(memory);
  T *tile_k = (T*)memory, *tile_v = tile_k + N_KEYS * LD;
  f32 *queries = (f32*)(tile_v + N_KEYS * LD), *scores = queries + ROWS * D, *top = scores + ROWS * N_KEYS;
  f32 *total = top + ROWS, *back = total + ROWS;
  Keys* seen = (Keys*)(back + ROWS);
  int group = s.heads / s.kv_heads, n_rows = group * s.q_len, n_chunks = (n_rows + ROWS - 1) / ROWS;
  int split = blockIdx.x, kv_head = blockIdx.y / n_chunks, b = blockIdx.z, first_row = blockIdx.y % n_chunks * ROWS;
  int rows = min(ROWS, n_rows - first_row);
  u64 kv_stride = (u64)s.kv_heads * s.head_dim, kv_start = (u64)b * s.kv_capacity * kv_stride + (u64)kv_head * s.head_dim;
  for (int i = threadIdx.x; i < ROWS * D; i += ATTENTION_THREADS) {
    int row = first_row + i / D, col = i % D;
    bool valid = i / D < rows && col < s.head_dim;
    u64 at = (((u64)b * s.q_len + row % s.q_len) * s.heads + kv_head * group + row / s.q_len) * s.head_dim + col;
    queries[i] = valid ? to_f32(q[at]) : 0.f;
  }
  if (threadIdx.x < ROWS) {
    int row = first_row + threadIdx.x;
    bool valid = (int)threadIdx.x < rows;
    int i = row % s.q_len, start = start_of(s, starts ? starts + (u64)b * s.q_len : nullptr, i);
    seen[threadIdx.x] = valid ? visible(s, start, i) : Keys{MANY, 0};
    top[threadIdx.x] = -1e30f;
    total[threadIdx.x] = 0.f;
  }
  f32 out[ROWS][COLS];
  UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int c = 0; c < COLS; c++) out[r][c] = 0.f;
  sync_block();
  // Splits are whole tiles of the keys that a row of the block sees, shared out evenly.
  int low = s.kv_len, high = 0;
  for (int r = 0; r < rows; r++) {
    low = min(low, seen[r].low);
    high = max(high, seen[r].high);
  }
  int first = low / N_KEYS, end = (high + N_KEYS - 1) / N_KEYS, per_split = (max(end - first, 0) + n_splits - 1) / n_splits;
  for (int t = first + split * per_split; t < min(end, first + (split + 1) * per_split); t++) {
    sync_block();
    fetch<N_KEYS, D>(tile_k, k + kv_start, kv_stride, t * N_KEYS, s.kv_len, s.head_dim);
    fetch<N_KEYS, D>(tile_v, v + kv_start, kv_stride, t * N_KEYS, s.kv_len, s.head_dim);
    cp_async_commit();
    cp_async_wait<0>();
    sync_block();
    for (int i = threadIdx.x; i < rows * N_KEYS; i += ATTENTION_THREADS) {
      int row = i / N_KEYS, key = i % N_KEYS;
      f32 product = 0, slope;
      for (int c = 0; c < D; c++) product += queries[row * D + c] * to_f32(tile_k[key * LD + c]);
      bool sees = seen[row].low <= t * N_KEYS + key && t * N_KEYS + key < seen[row].high;
      scores[i] = sees ? score(s, product, slope) : minus_infinity();
    }
    sync_block();
    for (int row = threadIdx.x / 32; row < rows; row += WARPS) {
      f32 before = top[row], most = before, sum = 0;
      for (int key = threadIdx.x % 32; key < N_KEYS; key += 32) most = max(most, scores[row * N_KEYS + key]);
      most = warp_max(most);
      for (int key = threadIdx.x % 32; key < N_KEYS; key += 32) {
        f32 p = exp2_fast(scores[row * N_KEYS + key] - most);
        scores[row * N_KEYS + key] = p;
        sum += p;
      }
      sum = warp_sum(sum);
      sync_warp();
      if (threadIdx.x % 32 == 0) {
        back[row] = exp2_fast(before - most);
        total[row] = total[row] * back[row] + sum;
        top[row] = most;
      }
    }
    sync_block();
    UNROLL for (int r = 0; r < ROWS; r++) if (r < rows) {
      UNROLL for (int c = 0; c < COLS; c++) {
        int col = threadIdx.x + c * ATTENTION_THREADS;
        if (col >= D) continue;
        f32 sum = out[r][c] * back[r];
        for (int key = 0; key < N_KEYS; key++) sum += scores[r * N_KEYS + key] * to_f32(tile_v[key * LD + col]);
        out[r][c] = sum;
      }
    }
  }
  sync_block();
  u64 to = ((((u64)b * s.kv_heads + kv_head) * n_rows + first_row) * n_splits + split);
  UNROLL for (int r = 0; r < ROWS; r++) if (r < rows) {
    UNROLL for (int c = 0; c < COLS; c++) {
      int col = threadIdx.x + c * ATTENTION_THREADS;
      if (col < s.head_dim) parts[(to + (u64)r * n_splits) * s.head_dim + col] = out[r][c];
    }
  }
  if ((int)threadIdx.x < rows) {
    maxima[to + (u64)threadIdx.x * n_splits] = top[threadIdx.x];
    sums[to + (u64)threadIdx.x * n_splits] = total[threadIdx.x];
  }
}

// The output and the log-sum-exp of each row: a warp for each.
DEVICE void decode_join(const f32* parts, const f32* maxima, const f32* sums, T* o, f32* lse, int n_splits, int batch,
                        int q_len, int heads, int kv_heads, int head_dim) {
  int group = heads / kv_heads, n_rows = group * q_len, at = blockIdx.x * WARPS + threadIdx.x / 32;
  if (at >= batch * kv_heads * n_rows) return;
  int row = at % n_rows, kv_head = at / n_rows % kv_heads, b = at / n_rows / kv_heads;
  int head = kv_head * group + row / q_len, i = row % q_len;
  const f32 *most = maxima + (u64)at * n_splits, *sum = sums + (u64)at * n_splits, *from = parts + (u64)at * n_splits * head_dim;
  f32 top = -1e30f, total = 0;
  for (int split = 0; split < n_splits; split++) top = max(top, most[split]);
  for (int split = 0; split < n_splits; split++) total += sum[split] * exp2_fast(most[split] - top);
  // A query that sees no key gets zeros.
  f32 factor = total != 0.f ? 1.f / total : 0.f;
  T* to = o + (((u64)b * q_len + i) * heads + head) * head_dim;
  for (int c = threadIdx.x % 32; c < head_dim; c += 32) {
    f32 value = 0;
    for (int split = 0; split < n_splits; split++)
      value += from[(u64)split * head_dim + c] * exp2_fast(most[split] - top);
    put(to[c], value * factor);
  }
  if (threadIdx.x % 32 == 0)
    lse[((u64)b * heads + head) * q_len + i] = total != 0.f ? top * LN_2 + logf(total) : minus_infinity();
}

}  // namespace

ATTENTION_KERNEL(attention_decode,
                 (const T* q, const T* k, const T* v, const i32* doc_start, f32* parts, f32* maxima, f32* sums,
                  i32 n_splits, SHAPE_PARAMS),
                 decode_split(q, k, v, doc_start, parts, maxima, sums, n_splits, SHAPE))
ATTENTION_KERNEL(attention_decode_join,
                 (const f32* parts, const f32* maxima, const f32* sums, T* o, f32* lse, i32 n_splits, i32 batch,
                  i32 q_len, i32 heads, i32 kv_heads, i32 head_dim),
                 decode_join(parts, maxima, sums, o, lse, n_splits, batch, q_len, heads, kv_heads, head_dim))
