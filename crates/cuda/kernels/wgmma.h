// Products of a warpgroup (wgmma, sm_90a): the tensor cores take 64 rows of 128 threads, and read tiles where they lie in shared memory.
//
// A product is asynchronous. Its sums and operands may not be touched between the word that begins it and the wait for its
// group, nor may the shared memory that it reads be overwritten.
#pragma once
#include "words.h"

#ifdef __CUDACC_RTC__

// 16-bit elements in rows of 64 or 128 bytes, whose pieces of 16 bytes are swizzled: in groups of eight rows of 128 bytes, piece p
// of row r lies at p ^ r, in rows of 64 bytes at p ^ r / 2. A descriptor as the PTX manual has it for wgmma.
struct TileDescriptor {
  u64 bits;
};
// `stride` is from a group of eight rows to the next. Where rows are walked along for the sum of a product, `leading` has no
// meaning; where they are walked down, it is from one of the columns that a row has to the next as many.
template <int ROW_BYTES> DEVICE TileDescriptor descriptor(const void* at, u32 leading, u32 stride) {
  u64 layout = ROW_BYTES == 128 ? 1 : 2;
  return {(u64)(shared_address(at) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | layout << 62};
}
// The same, so many bytes further on.
DEVICE TileDescriptor ahead(TileDescriptor m, u32 bytes) { return {m.bits + (bytes >> 4)}; }
// A number that is the same in all lanes of a warp, in a register of which there is one for all.
DEVICE u32 uniform(u32 v) { return __shfl_sync(0xffffffffu, v, 0); }

// Before the first product, and after other instructions have written its sums or its operand in registers.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most N groups are under way.
template <int N> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// What this thread has written to shared memory is there for products. A barrier makes it so for those of other threads.
DEVICE void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Sums and operands are not moved across this.
DEVICE void keep_one(f32& v) { asm volatile("" : "+f"(v)::"memory"); }
DEVICE void keep_one(u32& v) { asm volatile("" : "+r"(v)::"memory"); }

// What a number that is not negative is made of comes before the words that follow. Compilers move a wait up otherwise, before what
// is to be done meanwhile.
DEVICE void wait_behind(f32 v) {
  asm volatile("{\n.reg .pred negative;\nsetp.lt.f32 negative, %0, 0f00000000;\n@negative nanosleep.u32 1;\n}" ::"f"(v) : "memory");
}

// c [64, N] (+)= a [64, 16] b [16, N] with c as mma has it, 16 rows for each warp. b is a matrix [N, 16] whose rows are walked
// along, or with TRANS = 1 a matrix [16, N] whose rows are walked down. a is held as mma has it, or a matrix [64, 16].
#define OUT_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define OUT_32 OUT_16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define OUT_64 OUT_32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define OUT_96 OUT_64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define OUT_128 OUT_96 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define OUT_192 OUT_128 \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88" \
  ",%89,%90,%91,%92,%93,%94,%95"
#define OUT_256 OUT_192 \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115" \
  ",%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define ACC4(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define ACC8(i) ACC4(i), ACC4(i + 1)
#define ACC16(i) ACC8(i), ACC8(i + 2)
#define ACC32(i) ACC16(i), ACC16(i + 4)
#define ACC64(i) ACC32(i), ACC32(i + 8)
#define ACC_16 ACC8(0)
#define ACC_32 ACC16(0)
#define ACC_64 ACC32(0)
#define ACC_96 ACC32(0), ACC16(8)
#define ACC_128 ACC64(0)
#define ACC_192 ACC64(0), ACC32(16)
#define ACC_256 ACC64(0), ACC64(16)
#define BEGIN(ADD) "{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n"
#define PRODUCT(T, N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" OUT_##N "}, "
#define WGMMA_OF(T, N, A0, A1, A2, A3, A4, A5, A6)                                                                       \
  template <int TRANS> DEVICE void wgmma(T, f32(&c)[N / 8][4], const u32(&a)[4], TileDescriptor b, bool add) {                \
    asm volatile(BEGIN(A5) PRODUCT(T, N) "{%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #A4 ", add, 1, 1, %" #A6 ";\n}"   \
                 : ACC_##N                                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"((u32)add), "n"(TRANS)                 \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  template <int TRANS> DEVICE void wgmma(T, f32(&c)[N / 8][4], TileDescriptor a, TileDescriptor b, bool add) {                        \
    asm volatile(BEGIN(A2) PRODUCT(T, N) "%" #A0 ", %" #A1 ", add, 1, 1, 0, %" #A3 ";\n}"                             \
                 : ACC_##N                                                                                            \
                 : "l"(a.bits), "l"(b.bits), "r"((u32)add), "n"(TRANS)                                                \
                 : "memory");                                                                                         \
  }
WGMMA_OF(bf16, 16, 8, 9, 10, 11, 12, 13, 14)
WGMMA_OF(bf16, 32, 16, 17, 18, 19, 20, 21, 22)
WGMMA_OF(bf16, 64, 32, 33, 34, 35, 36, 37, 38)
WGMMA_OF(bf16, 96, 48, 49, 50, 51, 52, 53, 54)
WGMMA_OF(bf16, 128, 64, 65, 66, 67, 68, 69, 70)
WGMMA_OF(bf16, 192, 96, 97, 98, 99, 100, 101, 102)
WGMMA_OF(bf16, 256, 128, 129, 130, 131, 132, 133, 134)
WGMMA_OF(f16, 16, 8, 9, 10, 11, 12, 13, 14)
WGMMA_OF(f16, 32, 16, 17, 18, 19, 20, 21, 22)
WGMMA_OF(f16, 64, 32, 33, 34, 35, 36, 37, 38)
WGMMA_OF(f16, 96, 48, 49, 50, 51, 52, 53, 54)
WGMMA_OF(f16, 128, 64, 65, 66, 67, 68, 69, 70)
WGMMA_OF(f16, 192, 96, 97, 98, 99, 100, 101, 102)
WGMMA_OF(f16, 256, 128, 129, 130, 131, 132, 133, 134)
#undef WGMMA_OF
#undef PRODUCT
#undef BEGIN

#endif
