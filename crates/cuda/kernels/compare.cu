// Comparisons of two elements, with broadcasting: 1 where they hold, 0 elsewhere.
#include "walk.h"

namespace {

enum Compare : u32 { EQ, NE, LT, LE, GT, GE, AND, OR, XOR };

DEVICE i32 value(i32 v) { return v; }
template <class T> DEVICE f32 value(T v) { return to_f32(v); }

// Logical functions take every number but 0 as true.
template <class V> DEVICE bool holds(u32 f, V a, V b) {
  switch (f) {
    case EQ: return a == b;
    case NE: return a != b;
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case AND: return (a != 0) & (b != 0);
    case OR: return (a != 0) | (b != 0);
    default: return (a != 0) ^ (b != 0);
  }
}

}  // namespace

#define COMPARE(T) \
  KERNEL(compare_##T, THREADS, (u32 f, walk order, const T* x, const T* y, i32* out, u64 n), \
         each(n, [&](u64 i) { out[i] = holds(f, value(x[offset(order, i, 0)]), value(y[offset(order, i, 1)])); }))

COMPARE(f32)
COMPARE(bf16)
COMPARE(f16)
COMPARE(i32)
