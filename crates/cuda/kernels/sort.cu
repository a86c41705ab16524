// Sorting along a dim of [outer, n, inner]: keys and rows, by which order.cu orders all elements, and the places that come out.
#include "keys.h"

#define SORT(T) \
  KERNEL(sort_keys_##T, THREADS, (u32 descending, const T* x, i32* keys, u64 n), \
         each(n, [&](u64 i) { keys[i] = (i32)(descending ? ~key_of(x[i]) : key_of(x[i])); }))

SORT(f32)
SORT(bf16)
SORT(f16)
SORT(i32)

// The number of the row that each element is in.
KERNEL(sort_rows, THREADS, (i32* rows, u32 n, u32 inner, u64 n_elems),
       each(n_elems, [&](u64 i) { rows[i] = (i32)(i / inner / n * inner + i % inner); }))
// places [outer, k, inner]: where the first k elements of each row are in their dim. `order` has row after row.
KERNEL(sort_places, THREADS, (const i32* order, i32* places, u32 n, u32 k, u32 inner, u64 n_places),
       each(n_places, [&](u64 i) {
         u64 row = i / inner / k * inner + i % inner;
         places[i] = (i32)((u32)order[row * n + i / inner % k] / inner % n);
       }))
