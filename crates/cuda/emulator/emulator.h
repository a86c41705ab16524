// What kernels see of the emulator: CUDA's names for threads, and the operations of words.h as calls.
//
// CUDA's execution model on a CPU: the threads of a block are fibers in a ring on one OS thread, and an operation of a
// warp is a meeting of its 32 fibers. The emulator itself is built without sanitizers, so that a sanitizer sees the
// accesses of kernels alone: two CUDA threads that touch one byte without a barrier between them are a data race.
#pragma once
#include <stddef.h>
#include <string.h>
// The header of C: that of C++ takes longer to read than a kernel takes to compile.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

namespace emulator {

struct Dim {
  u32 x, y, z;
};
// Where a thread is.
struct Ids {
  Dim thread, block, threads, grid;
};
extern thread_local const Ids* ids;

void sync_block(const char* file, int line);
void sync_warp(const char* file, int line);
u32 shuffle_xor(u32 v, int mask);
void mma(f32* c, const u32* a, u32 b0, u32 b1, f32 (*to_f32)(u16));
void ldmatrix(u32* r, const void* row, bool trans);
void check_words(const void* to);
void cp_async(void* to, const void* from, bool valid);
void cp_async_commit();
void cp_async_wait(int n);

// What a descriptor of wgmma says: where a matrix of 16-bit elements begins in shared memory, and how it goes on.
struct TileDescriptor {
  const void* at;
  u32 row_bytes, leading, stride;
};
// c [64, n] (+)= a [64, 16] b [16, n] of a warpgroup, with a [4] held as by mma, or in shared memory where that is null.
void wgmma(f32* c, u32 n, const u32* a, const TileDescriptor* of_a, const TileDescriptor& b, bool down, bool add, f32 (*to_f32)(u16));
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int n);
void fence_for_wgmma();

// An array in shared memory: the same for all threads of a block, told apart by the place in the source. Its address is a
// multiple of `align`, and of nothing larger.
void* shared_array(const void* site, const char* name, size_t bytes, size_t align);
void* dynamic_shared();
[[noreturn]] void out_of_bounds(const char* name, u64 index, u64 n);
void tell_tile(bool masked);

template <class T> class Shared {
 public:
  Shared(const void* site, const char* name, u64 n, size_t align)
      : data((T*)shared_array(site, name, n * sizeof(T), align)), name(name), n(n) {}
  T& operator[](u64 i) const {
    if (i >= n) out_of_bounds(name, i, n);
    return data[i];
  }
  operator T*() const { return data; }

 private:
  T* data;
  const char* name;
  u64 n;
};

// The types of parameters, for signatures.
struct Type {
  const char* name;
  bool pointer, constant;
};
template <class T> struct TypeOf;
#define OARLOCK_TYPE(T) \
  template <> struct TypeOf<T> { \
    static constexpr Type type = {#T, false, false}; \
  };
OARLOCK_TYPE(f32)
OARLOCK_TYPE(f64)
OARLOCK_TYPE(bf16)
OARLOCK_TYPE(f16)
OARLOCK_TYPE(i8)
OARLOCK_TYPE(u8)
OARLOCK_TYPE(i32)
OARLOCK_TYPE(u32)
OARLOCK_TYPE(u64)
OARLOCK_TYPE(walk)
OARLOCK_TYPE(pieces)
#undef OARLOCK_TYPE
template <class T> struct TypeOf<T*> {
  static constexpr Type type = {TypeOf<T>::type.name, true, false};
};
template <class T> struct TypeOf<const T*> {
  static constexpr Type type = {TypeOf<T>::type.name, true, true};
};

typedef void (*Function)();
struct Kernel {
  Function function;
  void (*call)(Function, void* const* args);
  u32 threads;
  size_t n_args;
  const Type* types;
  const size_t* sizes;
  const char* file;
  // The most bytes of its arrays in shared memory that a block has used so far.
  mutable size_t static_bytes = 0;
};
void enter(const char* name, const Kernel& kernel);

// Puts a kernel into the table of its library.
struct Registered {
  template <class... A> Registered(const char* name, u32 threads, const char* file, void (*function)(A...)) {
    static constexpr Type types[] = {TypeOf<A>::type...};
    static constexpr size_t sizes[] = {sizeof(A)...};
    enter(name, {(Function)function, &call<A...>, threads, sizeof...(A), types, sizes, file});
  }
  template <class... A> struct Call {
    Call(Function function, A... args) { ((void (*)(A...))function)(args...); }
  };
  template <class... A> static void call(Function function, void* const* args) {
    // Arguments in braces are read in their order, in parentheses in any.
    Call<A...>{function, next<A>(args)...};
  }
  template <class T> static T next(void* const*& args) { return *(T*)*args++; }
};

}  // namespace emulator

#define DEVICE inline
#define KERNEL(name, threads, params, ...) \
  static void name params { __VA_ARGS__; } \
  static const emulator::Registered registered_##name(#name, threads, __FILE__, name);
#define SHARED(type, name, n)  \
  static const char site_##name = 0; \
  const emulator::Shared<type> name(&site_##name, #name, n, SHARED_ALIGN)
#define DYNAMIC_SHARED(name) u8* const name = (u8*)emulator::dynamic_shared()
#define UNROLL
#define TELL_TILE(masked) emulator::tell_tile(masked)
#define threadIdx emulator::ids->thread
#define blockIdx emulator::ids->block
#define blockDim emulator::ids->threads
#define gridDim emulator::ids->grid
#define sync_block() emulator::sync_block(__FILE__, __LINE__)
#define sync_warp() emulator::sync_warp(__FILE__, __LINE__)

template <class V> inline V min(V a, V b) { return b < a ? b : a; }
template <class V> inline V max(V a, V b) { return a < b ? b : a; }

inline u32 shuffle_xor(u32 v, int mask) { return emulator::shuffle_xor(v, mask); }
inline f32 as_f32(u32 bits) {
  f32 v;
  memcpy(&v, &bits, 4);
  return v;
}
inline u32 as_u32(f32 v) {
  u32 bits;
  memcpy(&bits, &v, 4);
  return bits;
}
inline f32 shuffle_xor(f32 v, int mask) { return as_f32(shuffle_xor(as_u32(v), mask)); }
inline f64 shuffle_xor(f64 v, int mask) {
  u32 half[2];
  memcpy(half, &v, 8);
  for (u32& bits : half) bits = shuffle_xor(bits, mask);
  memcpy(&v, half, 8);
  return v;
}

inline f32 to_f32(bf16 v) { return as_f32((u32)v.bits << 16); }
inline f32 to_f32(f16 v) {
  u32 sign = (v.bits & 0x8000u) << 16, rest = v.bits & 0x7fffu;
  if (rest >= 0x7c00) return as_f32(sign | 0x7f800000u | (rest & 0x3ff) << 13);
  if (rest < 0x400) return as_f32(sign) + (sign ? -1.f : 1.f) * (f32)rest * 0x1p-24f;
  return as_f32(sign | ((rest << 13) + (112u << 23)));
}
inline void put(bf16& to, f32 v) {
  u32 bits = as_u32(v);
  to.bits = v != v ? 0x7fff : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void put(f16& to, f32 v) {
  u32 sign = as_u32(v) >> 16 & 0x8000u;
  f32 size = fabsf(v);
  if (v != v) to.bits = 0x7fff;
  else if (size >= 65520.f) to.bits = (u16)(sign | 0x7c00);
  else if (size < 0x1p-14f) to.bits = (u16)(sign | (u32)nearbyintf(size * 0x1p24f));
  else {
    u32 bits = as_u32(size) - (112u << 23);
    to.bits = (u16)(sign | ((bits + 0xfff + (bits >> 13 & 1)) >> 13));
  }
}
template <class T> inline u32 pair(f32 low, f32 high) {
  T a, b;
  put(a, low);
  put(b, high);
  return a.bits | (u32)b.bits << 16;
}

inline f32 exp2_fast(f32 x) {
  f32 r = exp2f(x);
  return r < 0x1p-126f ? 0.f : r;
}
inline f32 mul_rn(f32 a, f32 b) { return a * b; }
inline f32 rsqrtf(f32 x) { return 1.f / sqrtf(x); }

template <class T> inline f32 half_to_f32(u16 bits) { return to_f32(T{bits}); }
template <class T> inline void mma(T, f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulator::mma(c, a, b0, b1, &half_to_f32<T>);
}
inline void ldmatrix(u32 (&r)[4], const void* row) { emulator::ldmatrix(r, row, false); }
inline void ldmatrix_trans(u32 (&r)[4], const void* row) { emulator::ldmatrix(r, row, true); }
inline void cp_async(void* to, const void* from, bool valid) { emulator::cp_async(to, from, valid); }
inline void store_words(void* to, u32 a, u32 b, u32 c, u32 d) {
  u32 words[4] = {a, b, c, d};
  emulator::check_words(to);
  memcpy(to, words, 16);
}
inline void cp_async_commit() { emulator::cp_async_commit(); }
template <int N> inline void cp_async_wait() { emulator::cp_async_wait(N); }

using emulator::TileDescriptor;
template <int ROW_BYTES> inline TileDescriptor descriptor(const void* at, u32 leading, u32 stride) {
  return {at, (u32)ROW_BYTES, leading, stride};
}
inline TileDescriptor ahead(TileDescriptor m, u32 bytes) { return {(const char*)m.at + bytes, m.row_bytes, m.leading, m.stride}; }
inline u32 uniform(u32 v) { return v; }
inline void wgmma_fence() { emulator::wgmma_fence(); }
inline void wgmma_commit() { emulator::wgmma_commit(); }
template <int N> inline void wgmma_wait() { emulator::wgmma_wait(N); }
inline void fence_for_wgmma() { emulator::fence_for_wgmma(); }
inline void wait_behind(f32) {}
inline void keep_one(f32&) {}
inline void keep_one(u32&) {}
template <int TRANS, class T, int N8> inline void wgmma(T, f32 (&c)[N8][4], const u32 (&a)[4], TileDescriptor b, bool add) {
  emulator::wgmma(c[0], 8 * N8, a, nullptr, b, TRANS, add, &half_to_f32<T>);
}
template <int TRANS, class T, int N8> inline void wgmma(T, f32 (&c)[N8][4], TileDescriptor a, TileDescriptor b, bool add) {
  emulator::wgmma(c[0], 8 * N8, nullptr, &a, b, TRANS, add, &half_to_f32<T>);
}
