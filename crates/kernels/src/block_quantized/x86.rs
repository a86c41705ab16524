//! Products of blocks with AVX2, and with AVX-512 and the dot products of bytes of VNNI.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::form::LANES;
use super::machine::Machine;
use crate::isa::vector_methods;

/// AVX2: a vector in two halves, and a dot product in two steps. The first saturates at 16 bits, which the products of two
/// bytes do not reach as they are given to it.
pub(super) struct Avx2;

impl Machine for Avx2 {
    type Bytes = [__m256i; 2];
    type Ints = [__m256i; 2];
    type Floats = [__m256; 2];
    const ROWS: usize = 4;
    const ZERO_OF_EIGHT: i32 = 0;

    vector_methods! {
        fn bytes(p: *const u8) -> [__m256i; 2] {
            let p: *const __m256i = p.cast();
            [_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))]
        }
        fn and(x: [__m256i; 2], mask: u8) -> [__m256i; 2] {
            let mask = _mm256_set1_epi8(mask.cast_signed());
            [_mm256_and_si256(x[0], mask), _mm256_and_si256(x[1], mask)]
        }
        fn or(x: [__m256i; 2], y: [__m256i; 2]) -> [__m256i; 2] {
            [_mm256_or_si256(x[0], y[0]), _mm256_or_si256(x[1], y[1])]
        }
        fn left(x: [__m256i; 2], n: u32) -> [__m256i; 2] {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_sll_epi16(x[0], n), _mm256_sll_epi16(x[1], n)]
        }
        fn right(x: [__m256i; 2], n: u32) -> [__m256i; 2] {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_srl_epi16(x[0], n), _mm256_srl_epi16(x[1], n)]
        }
        // To signed bytes.
        fn eight(x: [__m256i; 2]) -> [__m256i; 2] {
            let top = _mm256_set1_epi8(i8::MIN);
            [_mm256_xor_si256(x[0], top), _mm256_xor_si256(x[1], top)]
        }

        fn ints(x: i32) -> [__m256i; 2] { [_mm256_set1_epi32(x); 2] }
        fn small_ints(p: *const u8) -> [__m256i; 2] {
            let x = _mm_loadu_si128(p.cast());
            [_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(x))]
        }
        fn multiply_add(x: [__m256i; 2], y: [__m256i; 2], sum: [__m256i; 2]) -> [__m256i; 2] {
            let add = |i: usize| _mm256_add_epi32(_mm256_mullo_epi32(x[i], y[i]), sum[i]);
            [add(0), add(1)]
        }
        fn dot(sum: [__m256i; 2], codes: [__m256i; 2], x: i32) -> [__m256i; 2] {
            let (x, ones) = (_mm256_set1_epi32(x), _mm256_set1_epi16(1));
            let add = |i: usize| _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(codes[i], x), ones));
            [add(0), add(1)]
        }
        // The sign of a code goes to the other factor.
        fn dot_eight(sum: [__m256i; 2], codes: [__m256i; 2], x: i32) -> [__m256i; 2] {
            let (x, ones) = (_mm256_set1_epi32(x), _mm256_set1_epi16(1));
            let add = |i: usize| {
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[i]), _mm256_sign_epi8(x, codes[i]));
                _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, ones))
            };
            [add(0), add(1)]
        }

        fn floats(x: f32) -> [__m256; 2] { [_mm256_set1_ps(x); 2] }
        fn halves(p: *const u8) -> [__m256; 2] {
            let p: *const __m128i = p.cast();
            [_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))]
        }
        fn to_floats(x: [__m256i; 2]) -> [__m256; 2] { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
        fn multiply(x: [__m256; 2], y: [__m256; 2]) -> [__m256; 2] {
            [_mm256_mul_ps(x[0], y[0]), _mm256_mul_ps(x[1], y[1])]
        }
        fn add(x: [__m256; 2], y: [__m256; 2]) -> [__m256; 2] {
            [_mm256_add_ps(x[0], y[0]), _mm256_add_ps(x[1], y[1])]
        }
        fn subtract(x: [__m256; 2], y: [__m256; 2]) -> [__m256; 2] {
            [_mm256_sub_ps(x[0], y[0]), _mm256_sub_ps(x[1], y[1])]
        }
        fn array(x: [__m256; 2]) -> [f32; LANES] { transmute::<[__m256; 2], [f32; LANES]>(x) }
    }
}

/// AVX-512 with VNNI.
pub(super) struct Vnni;

impl Machine for Vnni {
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    const ROWS: usize = 8;
    const ZERO_OF_EIGHT: i32 = 128;

    vector_methods! {
        fn bytes(p: *const u8) -> __m512i { _mm512_loadu_si512(p.cast()) }
        fn and(x: __m512i, mask: u8) -> __m512i { _mm512_and_si512(x, _mm512_set1_epi8(mask.cast_signed())) }
        fn or(x: __m512i, y: __m512i) -> __m512i { _mm512_or_si512(x, y) }
        fn left(x: __m512i, n: u32) -> __m512i { _mm512_sll_epi16(x, _mm_cvtsi32_si128(n as i32)) }
        fn right(x: __m512i, n: u32) -> __m512i { _mm512_srl_epi16(x, _mm_cvtsi32_si128(n as i32)) }
        fn eight(x: __m512i) -> __m512i { x }

        fn ints(x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn small_ints(p: *const u8) -> __m512i { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
        fn multiply_add(x: __m512i, y: __m512i, sum: __m512i) -> __m512i {
            _mm512_add_epi32(_mm512_mullo_epi32(x, y), sum)
        }
        fn dot(sum: __m512i, codes: __m512i, x: i32) -> __m512i {
            _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(x))
        }
        fn dot_eight(sum: __m512i, codes: __m512i, x: i32) -> __m512i { Vnni::dot(sum, codes, x) }

        fn floats(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn halves(p: *const u8) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        fn to_floats(x: __m512i) -> __m512 { _mm512_cvtepi32_ps(x) }
        fn multiply(x: __m512, y: __m512) -> __m512 { _mm512_mul_ps(x, y) }
        fn add(x: __m512, y: __m512) -> __m512 { _mm512_add_ps(x, y) }
        fn subtract(x: __m512, y: __m512) -> __m512 { _mm512_sub_ps(x, y) }
        fn array(x: __m512) -> [f32; LANES] { transmute::<__m512, [f32; LANES]>(x) }
    }
}
