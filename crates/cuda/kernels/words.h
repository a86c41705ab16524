// The words that kernels are written in. Each has two meanings: one on a GPU, under NVRTC, and one in the emulator,
// under g++. Kernels use no header of a toolkit. What a source defines is in a nameless namespace, so that the sources
// can be one library; only its kernels are not.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

struct alignas(2) bf16 {
  u16 bits;
};
struct alignas(2) f16 {
  u16 bits;
};

// The order in which up to two operands are read for a dense output: the sizes of its dims, slowest first, and how far
// each operand moves along them.
struct walk {
  u32 n_dims;
  u32 sizes[6];
  u32 strides[2][6];
};

// Arrays in shared memory begin at multiples of this: ldmatrix, cp_async and packs need it, whatever the elements are.
#define SHARED_ALIGN 16

// Stretches of memory that one launch works on: how many there are, for each the tiles up to its end and its elements, and the
// addresses of its operands. See pieces.h.
struct pieces {
  u32 n, unused;
  u32 ends[64];
  u64 sizes[64];
  u64 at[5][64];
};

#ifdef __CUDACC_RTC__

// A parameter that is only read where it is.
#define IN_PLACE __grid_constant__
#define DEVICE __device__ __forceinline__
// A kernel: its name, the threads of a block, its parameters in parentheses, what it runs.
#define KERNEL(name, threads, params, ...) \
  extern "C" __global__ void __launch_bounds__(threads) name params { __VA_ARGS__; }
// An array in shared memory, and the part of it whose size the launch decides.
#define SHARED(type, name, n) __shared__ __align__(SHARED_ALIGN) type name[n]
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]
#define UNROLL _Pragma("unroll")
// Tells the emulator, which counts them, of a tile of scores and whether its masks are looked at.
#define TELL_TILE(masked)

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE u32 shuffle_xor(u32 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEVICE f32 shuffle_xor(f32 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEVICE f64 shuffle_xor(f64 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }

DEVICE f32 as_f32(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 as_u32(f32 v) { return __float_as_uint(v); }
DEVICE f32 to_f32(bf16 v) { return as_f32((u32)v.bits << 16); }
DEVICE f32 to_f32(f16 v) {
  f32 r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));
  return r;
}
DEVICE void put(bf16& to, f32 v) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(v)); }
DEVICE void put(f16& to, f32 v) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(v)); }
// Two elements in a word, the first in its lower half.
template <class T> DEVICE u32 pair(f32 low, f32 high);
template <> DEVICE u32 pair<bf16>(f32 low, f32 high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <> DEVICE u32 pair<f16>(f32 low, f32 high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// 2^x with an error of 2 units in the last place; results that are not normal become 0.
DEVICE f32 exp2_fast(f32 x) {
  f32 r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// a b, rounded before anything is added to it: for formulas whose bits are those of a CPU.
DEVICE f32 mul_rn(f32 a, f32 b) { return __fmul_rn(a, b); }

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// c [16, 8] += a [16, 16] b [16, 8], held by the lanes of a warp as the PTX manual says for mma.m16n8k16.
#define MMA(T)                                                                                                    \
  DEVICE void mma(T, f32(&c)[4], const u32(&a)[4], u32 b0, u32 b1) {                                              \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T                                               \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                     \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                 \
  }
MMA(bf16)
MMA(f16)
#undef MMA

// Four 8 x 8 matrices of 16-bit elements; lane 8 i + j has the address of row j of matrix i.
DEVICE void ldmatrix(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
DEVICE void ldmatrix_trans(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 bytes from global to shared memory, or 16 zeros; they are there after a wait for their group.
DEVICE void cp_async(void* to, const void* from, bool valid) {
  int n = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(n)
               : "memory");
}
// 16 bytes to global memory in one store: compilers do not always join those of single elements.
DEVICE void store_words(void* to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N groups are under way.
template <int N> DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

#else
#define IN_PLACE
#include "emulator.h"
#endif

DEVICE f32 minus_infinity() { return as_f32(0xff800000u); }

DEVICE f32 to_f32(f32 v) { return v; }
DEVICE void put(f32& to, f32 v) { to = v; }
template <class T> DEVICE T rounded(f32 v) {
  T r;
  put(r, v);
  return r;
}
// Overwrites a slot, or adds to it.
template <class T> DEVICE void store(T& to, f32 v, u32 add) { put(to, add ? to_f32(to) + v : v); }

// Eight elements that move at once: 16 bytes where they have 16 bits.
template <class T> struct alignas(16) Pack {
  T of[8];
};
const u32 PACK = 8;

// Whether packs may begin here, and whether whole rows of `dim` elements are packs.
template <class T> DEVICE bool packs(const T* p) { return (u64)p % 16 == 0; }
template <class T> DEVICE bool packs(const T* p, u32 dim) { return packs(p) && dim % PACK == 0; }

// Up to eight elements; zeros where fewer are left. With `packed` the memory is that of whole packs.
template <class T> DEVICE void load8(f32 (&v)[8], const T* from, u64 left, bool packed) {
  if (packed && left >= PACK) {
    Pack<T> pack = *(const Pack<T>*)from;
    UNROLL for (u32 i = 0; i < 8; i++) v[i] = to_f32(pack.of[i]);
  } else {
    UNROLL for (u32 i = 0; i < 8; i++) v[i] = i < left ? to_f32(from[i]) : 0.f;
  }
}
// Eight elements to the memory of a pack, by stores of 16 bytes; those of 16 bits are rounded in pairs.
template <class T> DEVICE void put8(T* to, const f32 (&v)[8]) {
  store_words(to, pair<T>(v[0], v[1]), pair<T>(v[2], v[3]), pair<T>(v[4], v[5]), pair<T>(v[6], v[7]));
}
template <> DEVICE void put8<f32>(f32* to, const f32 (&v)[8]) {
  store_words(to, as_u32(v[0]), as_u32(v[1]), as_u32(v[2]), as_u32(v[3]));
  store_words(to + 4, as_u32(v[4]), as_u32(v[5]), as_u32(v[6]), as_u32(v[7]));
}
template <class T> DEVICE void store8(T* to, const f32 (&v)[8], u64 left, bool packed, u32 add) {
  if (packed && left >= PACK) {
    f32 sums[8] = {};
    if (add) load8(sums, to, PACK, true);
    UNROLL for (u32 i = 0; i < 8; i++) sums[i] = add ? sums[i] + v[i] : v[i];
    put8(to, sums);
  } else {
    UNROLL for (u32 i = 0; i < 8; i++)
      if (i < left) store(to[i], v[i], add);
  }
}

// Sums and maxima of all lanes, in a butterfly: every lane gets bitwise identical results.
template <class V> DEVICE V warp_sum(V v) {
  UNROLL for (int m = 16; m; m >>= 1) v += shuffle_xor(v, m);
  return v;
}
DEVICE f32 warp_max(f32 v) {
  UNROLL for (int m = 16; m; m >>= 1) v = max(v, shuffle_xor(v, m));
  return v;
}

// A team works on a row: a warp, or a block of THREADS.
const u32 THREADS = 256;
const u32 WARP_ROW = 1024;  // Rows of up to this many elements are the work of a warp.

template <u32 TEAM> DEVICE u32 team_lane() { return threadIdx.x % TEAM; }
template <u32 TEAM> DEVICE u32 team_index() { return blockIdx.x * (blockDim.x / TEAM) + threadIdx.x / TEAM; }
template <u32 TEAM> DEVICE u32 n_teams() { return gridDim.x * (blockDim.x / TEAM); }

// The sum over a team: a butterfly in each warp, then warp after warp. All threads get it.
template <u32 TEAM, class V> DEVICE V team_sum(V v) {
  v = warp_sum(v);
  if (TEAM == 32) return v;
  SHARED(V, partial, TEAM / 32);
  sync_block();  // Somebody may still read the sum before.
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  sync_block();
  v = partial[0];
  UNROLL for (u32 w = 1; w < TEAM / 32; w++) v += partial[w];
  return v;
}
template <u32 TEAM> DEVICE f32 team_max(f32 v) {
  v = warp_max(v);
  if (TEAM == 32) return v;
  SHARED(f32, partial, TEAM / 32);
  sync_block();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  sync_block();
  v = partial[0];
  UNROLL for (u32 w = 1; w < TEAM / 32; w++) v = max(v, partial[w]);
  return v;
}

// The least number of a block of THREADS. All threads get it.
DEVICE u32 block_least(u32 v) {
  SHARED(u32, least, THREADS);
  sync_block();  // Somebody may still read the one before.
  least[threadIdx.x] = v;
  for (u32 half = THREADS / 2; half; half /= 2) {
    sync_block();
    if (threadIdx.x < half) least[threadIdx.x] = min(least[threadIdx.x], least[threadIdx.x + half]);
  }
  sync_block();
  return least[0];
}

// All threads of the grid share out `n` elements, one or eight at a time.
template <class F> DEVICE void each(u64 n, F f) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) f(i);
}
template <class F> DEVICE void each8(u64 n, F f) {
  each((n + 7) / 8, [&](u64 i) { f(8 * i, n - 8 * i); });
}
