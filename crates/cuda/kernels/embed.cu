// Token embedding: gathers rows of a table, and adds their gradients back into it.
#include "words.h"

namespace {

// y[row] = table[ids[row]]
template <class T, class U> DEVICE void embed_forward(const T* table, const i32* ids, U* y, u32 rows, u32 dim) {
  bool packed = packs(table, dim) && packs(y, dim);
  u32 per_row = (dim + 7) / 8;
  each((u64)rows * per_row, [&](u64 i) {
    u64 row = i / per_row;
    u32 c = (u32)(i % per_row) * 8;
    f32 v[8];
    load8(v, table + (u64)ids[row] * dim + c, dim - c, packed);
    store8(y + row * dim + c, v, dim - c, packed, 0);
  });
}

// Rows of a token that are summed by themselves where it has more of them: otherwise the rows of a frequent token would be the
// work of one thread, one after the other.
const u32 RUN = 32;
// Rows that are in flight at one time.
const u32 AHEAD = 4;

// sum += the rows of dy that order[at .. end] names, one after the other.
template <class T>
DEVICE void add_in_order(f32 (&sum)[8], const T* dy, const i32* order, u32 at, u32 end, u32 dim, u32 c, bool packed) {
  f32 v[AHEAD][8];
  for (; at + AHEAD <= end; at += AHEAD) {
    UNROLL for (u32 k = 0; k < AHEAD; k++) load8(v[k], dy + (u64)(u32)order[at + k] * dim + c, dim - c, packed);
    UNROLL for (u32 k = 0; k < AHEAD; k++) {
      UNROLL for (u32 j = 0; j < 8; j++) sum[j] += v[k][j];
    }
  }
  for (; at < end; at++) {
    load8(v[0], dy + (u64)(u32)order[at] * dim + c, dim - c, packed);
    UNROLL for (u32 j = 0; j < 8; j++) sum[j] += v[0][j];
  }
}

// runs [n / 32, dim]: the sums of whole runs of 32 rows of ids that have more than 32. The rows of an id are cut into runs from
// its first one on, and the sum of a run is in the row of `runs` in whose 32 places of the order the run begins: no other one
// begins there. Rows of `runs` in which none begins are not written.
template <class T>
DEVICE void embed_runs(const T* dy, const i32* order, const i32* starts, f32* runs, u32 n, u32 dim) {
  bool packed = packs(dy, dim) && packs(runs, dim);
  u32 per_row = (dim + 7) / 8;
  each((u64)(n / RUN) * per_row, [&](u64 i) {
    u32 first = (u32)(i / per_row) * RUN, c = (u32)(i % per_row) * 8;
    // The id that has the last of the 32 places: a run that begins in them goes on there.
    u32 id = 0, most = n - 1;
    while (id < most) {
      u32 middle = (id + most + 1) / 2;
      if ((u32)starts[middle] <= first + RUN - 1) id = middle;
      else most = middle - 1;
    }
    u32 start = (u32)starts[id], end = (u32)starts[id + 1];
    u32 at = start >= first ? start : first + (RUN - (first - start) % RUN) % RUN;
    if (end - start <= RUN || at + RUN > end) return;
    f32 sum[8] = {};
    add_in_order(sum, dy, order, at, at + RUN, dim, c, packed);
    store8(runs + (u64)(first / RUN) * dim + c, sum, dim - c, packed, 0);
  });
}

// d_table[ids[k]] += dy[row], for the rows order[starts[k] .. starts[k + 1]], one after the other, or whole runs of them first.
// All ids are different, and the rows of an id are ascending, so every sum has the order of the batch. Entries without rows may
// follow, as order.cu leaves them.
template <class T>
DEVICE void embed_backward(const T* dy, const i32* order, const i32* starts, const i32* ids, const f32* runs, f32* d_table,
                           u32 n_ids, u32 dim) {
  bool packed = packs(dy, dim) && packs(d_table, dim), runs_packed = packs(runs, dim);
  u32 per_row = (dim + 7) / 8;
  each((u64)n_ids * per_row, [&](u64 i) {
    u64 k = i / per_row;
    u32 c = (u32)(i % per_row) * 8;
    if (starts[k] == starts[k + 1]) return;
    f32* to = d_table + (u64)(u32)ids[k] * dim + c;
    u32 at = (u32)starts[k], end = (u32)starts[k + 1];
    f32 sum[8], v[AHEAD][8];
    load8(sum, to, dim - c, packed);
    u32 n_runs = end - at > RUN ? (end - at) / RUN : 0;
    for (u32 run = 0; run < n_runs; run += AHEAD) {
      const f32* from = runs + (u64)(at / RUN + run) * dim + c;
      UNROLL for (u32 i = 0; i < AHEAD; i++)
        if (run + i < n_runs) load8(v[i], from + (u64)i * dim, dim - c, runs_packed);
      UNROLL for (u32 i = 0; i < AHEAD; i++) {
        UNROLL for (u32 j = 0; j < 8; j++) sum[j] += run + i < n_runs ? v[i][j] : 0.f;
      }
    }
    add_in_order(sum, dy, order, at + n_runs * RUN, end, dim, c, packed);
    store8(to, sum, dim - c, packed, 0);
  });
}

// y[ids[row]] = x[row], rounded, for different ids.
template <class U> DEVICE void place_rows(const f32* x, const i32* ids, U* y, u32 rows, u32 dim) {
  bool packed = packs(x, dim) && packs(y, dim);
  u32 per_row = (dim + 7) / 8;
  each((u64)rows * per_row, [&](u64 i) {
    u64 row = i / per_row;
    u32 c = (u32)(i % per_row) * 8;
    f32 v[8];
    load8(v, x + row * dim + c, dim - c, packed);
    store8(y + (u64)ids[row] * dim + c, v, dim - c, packed, 0);
  });
}

}  // namespace

#define FORWARD(T, U) \
  KERNEL(embed_forward_##T##_##U, THREADS, (const T* table, const i32* ids, U* y, u32 rows, u32 dim), \
         embed_forward<T, U>(table, ids, y, rows, dim))
#define BACKWARD(T) \
  KERNEL(embed_backward_##T, THREADS, \
         (const T* dy, const i32* order, const i32* starts, const i32* ids, const f32* runs, f32* d_table, u32 n_ids, \
          u32 dim), \
         embed_backward<T>(dy, order, starts, ids, runs, d_table, n_ids, dim)) \
  KERNEL(embed_runs_##T, THREADS, (const T* dy, const i32* order, const i32* starts, f32* runs, u32 n, u32 dim), \
         embed_runs<T>(dy, order, starts, runs, n, dim))

#define PLACE(U) \
  KERNEL(place_rows_##U, THREADS, (const f32* x, const i32* ids, U* y, u32 rows, u32 dim), \
         place_rows<U>(x, ids, y, rows, dim))

PLACE(f32)
PLACE(bf16)
PLACE(f16)
FORWARD(f32, f32)
FORWARD(bf16, bf16)
FORWARD(bf16, f32)
FORWARD(f16, f16)
FORWARD(f16, f32)
BACKWARD(f32)
BACKWARD(bf16)
BACKWARD(f16)
