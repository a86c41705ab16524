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

// d_table[ids[k]] += dy[row], for the rows order[starts[k] .. starts[k + 1]], one after the other. All ids are
// different, and the rows of an id are ascending, so every sum has the order of the batch. Entries without rows may follow, as
// order.cu leaves them.
template <class T>
DEVICE void embed_backward(const T* dy, const i32* order, const i32* starts, const i32* ids, f32* d_table,
                           u32 n_ids, u32 dim) {
  bool packed = packs(dy, dim) && packs(d_table, dim);
  u32 per_row = (dim + 7) / 8;
  each((u64)n_ids * per_row, [&](u64 i) {
    u64 k = i / per_row;
    u32 c = (u32)(i % per_row) * 8;
    if (starts[k] == starts[k + 1]) return;
    f32* to = d_table + (u64)(u32)ids[k] * dim + c;
    f32 sum[8], v[8];
    load8(sum, to, dim - c, packed);
    for (i32 at = starts[k]; at < starts[k + 1]; at++) {
      load8(v, dy + (u64)order[at] * dim + c, dim - c, packed);
      UNROLL for (u32 j = 0; j < 8; j++) sum[j] += v[j];
    }
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
         (const T* dy, const i32* order, const i32* starts, const i32* ids, f32* d_table, u32 n_ids, u32 dim), \
         embed_backward<T>(dy, order, starts, ids, d_table, n_ids, dim))

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
