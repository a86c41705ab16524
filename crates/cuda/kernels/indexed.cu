// Elements and rows by their index: gathering, and joining what meets at one place, in the order of the indices.
//
// What joins takes an order by index, as order.cu makes it: the rows order[starts[k] .. starts[k + 1]] have the index ids[k],
// and are ascending. No index is twice in `ids`; entries without rows may follow.
#include "walk.h"

namespace {

// Moves eight elements, or as many as are left.
template <class T> DEVICE void move8(T* to, const T* from, u32 left, bool packed) {
  if (packed && left >= PACK) *(Pack<T>*)to = *(const Pack<T>*)from;
  else
    UNROLL for (u32 i = 0; i < PACK; i++)
      if (i < left) to[i] = from[i];
}

// Calls f(row, first column) for eight columns of each of some rows.
template <class F> DEVICE void each_part(u64 rows, u32 inner, F f) {
  u32 per_row = (inner + PACK - 1) / PACK;
  each(rows * per_row, [&](u64 i) { f(i / per_row, (u32)(i % per_row) * PACK); });
}

// y[o, j] = x[o, ids[j]], each a row of `inner` elements.
template <class T>
DEVICE void select_rows(const T* x, const i32* ids, T* y, u32 outer, u32 n, u32 n_ids, u32 inner) {
  bool packed = packs(x, inner) && packs(y, inner);
  each_part((u64)outer * n_ids, inner, [&](u64 row, u32 c) {
    u64 from = row / n_ids * n + (u32)ids[row % n_ids];
    move8(y + row * inner + c, x + from * inner + c, inner - c, packed);
  });
}

// y[o, ids[k]] += the rows x[o, order[..]], one after the other.
template <class T>
DEVICE void add_rows(const T* x, const i32* order, const i32* starts, const i32* ids, f32* y, u32 outer, u32 n, u32 n_rows,
                     u32 n_ids, u32 inner) {
  bool packed = packs(x, inner) && packs(y, inner);
  each_part((u64)outer * n_ids, inner, [&](u64 row, u32 c) {
    u32 k = (u32)(row % n_ids);
    if (starts[k] == starts[k + 1]) return;
    f32* to = y + (row / n_ids * n + (u32)ids[k]) * inner + c;
    f32 sum[8], v[8];
    load8(sum, to, inner - c, packed);
    for (i32 at = starts[k]; at < starts[k + 1]; at++) {
      load8(v, x + (row / n_ids * n_rows + (u32)order[at]) * inner + c, inner - c, packed);
      UNROLL for (u32 i = 0; i < 8; i++) sum[i] += v[i];
    }
    store8(to, sum, inner - c, packed, 0);
  });
}

// y[ids[k]] = the last of the rows x[order[..]].
template <class T>
DEVICE void write_rows(const T* x, const i32* order, const i32* starts, const i32* ids, T* y, u32 n_ids, u32 inner) {
  bool packed = packs(x, inner) && packs(y, inner);
  each_part(n_ids, inner, [&](u64 k, u32 c) {
    if (starts[k] == starts[k + 1]) return;
    u64 row = (u32)order[starts[k + 1] - 1];
    move8(y + (u64)(u32)ids[k] * inner + c, x + row * inner + c, inner - c, packed);
  });
}

// The gradient of write_rows with rows of one element: what was written last at a place takes its dx, which becomes 0, and
// what was written over gets 0.
template <class T>
DEVICE void take_rows(T* dx, const i32* order, const i32* starts, const i32* ids, T* d_source, u32 n_ids) {
  each(n_ids, [&](u64 k) {
    for (i32 at = starts[k]; at < starts[k + 1]; at++) {
      T taken = {};
      if (at + 1 == starts[k + 1]) {
        taken = dx[(u32)ids[k]];
        dx[(u32)ids[k]] = {};
      }
      d_source[order[at]] = taken;
    }
  });
}

}  // namespace

#define MOVE(T) \
  KERNEL(select_rows_##T, THREADS, \
         (const T* x, const i32* ids, T* y, u32 outer, u32 n, u32 n_ids, u32 inner), \
         select_rows(x, ids, y, outer, n, n_ids, inner)) \
  /* y[p] = x[place of index p]: where the walk is, and so many steps further. */ \
  KERNEL(gather_##T, THREADS, (walk order, const i32* ids, const T* x, T* y, u32 step, u64 n), \
         each(n, [&](u64 i) { y[i] = x[offset(order, i, 0) + (u64)(u32)ids[i] * step]; })) \
  /* y[place of index p] = x[p], or the only x with an x_step of 0, for places that are all different. */ \
  KERNEL(write_places_##T, THREADS, (walk order, const i32* ids, const T* x, u32 x_step, T* y, u32 step, u64 n), \
         each(n, [&](u64 i) { y[offset(order, i, 0) + (u64)(u32)ids[i] * step] = x[i * x_step]; })) \
  KERNEL(write_rows_##T, THREADS, \
         (const T* x, const i32* order, const i32* starts, const i32* ids, T* y, u32 n_ids, u32 inner), \
         write_rows(x, order, starts, ids, y, n_ids, inner)) \
  KERNEL(take_rows_##T, THREADS, \
         (T* dx, const i32* order, const i32* starts, const i32* ids, T* d_source, u32 n_ids), \
         take_rows(dx, order, starts, ids, d_source, n_ids))
#define ADD(T) \
  KERNEL(add_rows_##T, THREADS, \
         (const T* x, const i32* order, const i32* starts, const i32* ids, f32* y, u32 outer, u32 n, u32 n_rows, \
          u32 n_ids, u32 inner), \
         add_rows(x, order, starts, ids, y, outer, n, n_rows, n_ids, inner))

MOVE(f32)
MOVE(bf16)
MOVE(f16)
MOVE(i32)
ADD(f32)
ADD(bf16)
ADD(f16)

// The places that gather reads, as indices of rows of one element: with their order, elements are scattered.
KERNEL(places, THREADS, (walk order, const i32* ids, i32* out, u32 step, u64 n),
       each(n, [&](u64 i) { out[i] = (i32)(offset(order, i, 0) + (u64)(u32)ids[i] * step); }))
// y[o, ids[k]] += the rows x[o, order[..]], of integers that wrap around.
KERNEL(add_rows_ints, THREADS,
       (const i32* x, const i32* order, const i32* starts, const i32* ids, i32* y, u32 outer, u32 n, u32 n_rows, u32 n_ids,
        u32 inner),
       each((u64)outer * n_ids * inner, [&](u64 i) {
         u32 k = (u32)(i / inner % n_ids);
         u64 o = i / inner / n_ids;
         if (starts[k] == starts[k + 1]) return;
         i32& to = y[(o * n + (u32)ids[k]) * inner + i % inner];
         u32 sum = (u32)to;
         for (i32 at = starts[k]; at < starts[k + 1]; at++) sum += (u32)x[(o * n_rows + (u32)order[at]) * inner + i % inner];
         to = (i32)sum;
       }))
// positions [blocks]: the first position that a block finds whose index is not in 0 .. bound, or n.
KERNEL(first_outside, THREADS, (const i32* ids, u32 bound, u32* positions, u32 n),
       u32 at = n;
       each(n, [&](u64 i) {
         if ((u32)ids[i] >= bound) at = min(at, (u32)i);
       });
       at = block_least(at);
       if (threadIdx.x == 0) positions[blockIdx.x] = at)
// The labels, with `mark` in the place of those that are `ignored`; positions as first_outside finds them among the others.
KERNEL(targets, THREADS, (const i32* labels, i32 ignored, i32 mark, u32 bound, i32* out, u32* positions, u32 n),
       u32 at = n;
       each(n, [&](u64 i) {
         i32 label = labels[i];
         if (label != ignored && (u32)label >= bound) at = min(at, (u32)i);
         out[i] = label == ignored ? mark : label;
       });
       at = block_least(at);
       if (threadIdx.x == 0) positions[blockIdx.x] = at)
