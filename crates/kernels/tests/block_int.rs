//! Integers in blocks against a plain reference, on every variant: codes, scales, what they stand for, and elements that are
//! not finite.

use oarlock_kernels::compressed::block_int::{Bits, dequantize, quantize};
use oarlock_kernels::difference::largest_magnitude;
use oarlock_kernels::{Store, bf16, f16};

use crate::everywhere::{Element, same_everywhere, values};

const LENGTHS: [usize; 9] = [0, 1, 2, 7, 511, 513, 4096, 4099, 40_001];

/// The codes of all elements and the scales of all blocks.
fn reference<T: Element>(bits: Bits, x: &[T]) -> (Vec<i32>, Vec<f32>) {
    let limit = if bits == Bits::Eight { 128.0 } else { 8.0 };
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in x.chunks(bits.block()) {
        let m = largest_magnitude(block.iter().map(|x| x.to_f32())).unwrap() as f32;
        let inverse = if m == 0.0 { 1.0 } else { limit / m };
        codes.extend(block.iter().map(|x| {
            let scaled = x.to_f32() * inverse;
            (scaled.round_ties_even() as i32).clamp(-(limit as i32), limit as i32 - 1)
        }));
        scales.push(1.0 / inverse);
    }
    (codes, scales)
}

/// The codes and the scales in words.
fn apart(bits: Bits, words: &[i32], n: usize) -> (Vec<i32>, Vec<f32>) {
    let n_scales = n.div_ceil(bits.block());
    let (codes, scales) = words.split_at(words.len() - n_scales);
    let bytes: Vec<u8> = codes.iter().flat_map(|word| word.to_le_bytes()).collect();
    let code = |i: usize| match bits {
        Bits::Eight => i32::from(bytes[i] as i8),
        Bits::Four => i32::from((bytes[i / 2] << (4 * (i % 2))) as i8 >> 4),
    };
    (0..8 * codes.len() / if bits == Bits::Eight { 2 } else { 1 }).for_each(|i| {
        assert!(i < n || code(i) == 0, "the last word is filled up with zeros");
    });
    ((0..n).map(code).collect(), scales.iter().map(|word| f32::from_bits(*word as u32)).collect())
}

fn encoded<T: Element>(bits: Bits, x: &[T]) -> Vec<i32> {
    same_everywhere(|cpu| {
        let mut words = vec![-1; bits.n_words(x.len())];
        quantize(cpu, bits, x, &mut words);
        words
    })
}

fn check<T: Element>(bits: Bits) {
    for n in LENGTHS {
        let mut x = values::<T>(11 + n as u64, n);
        if n > 4096 {
            // A block of zeros, and one whose largest magnitude is positive.
            x[..bits.block()].fill(T::from_f32(0.0));
            x[bits.block()] = T::from_f32(3.0);
        }
        let (codes, scales) = reference(bits, &x);
        let words = encoded(bits, &x);
        assert_eq!(apart(bits, &words, n), (codes.clone(), scales.clone()), "{n} {bits:?}");
        let bytes = if bits == Bits::Eight { n } else { n.div_ceil(2) };
        assert_eq!(4 * words.len(), bytes.next_multiple_of(4) + 4 * n.div_ceil(bits.block()));

        let number = |i: usize| codes[i] as f32 * scales[i / bits.block()];
        let before = values::<T>(5, n);
        for store in [Store::Overwrite, Store::Add] {
            let out = same_everywhere(|cpu| {
                let mut out = before.clone();
                dequantize(cpu, bits, &words, store, &mut out);
                out.iter().map(|x| x.to_f32()).collect::<Vec<_>>()
            });
            for (i, out) in out.into_iter().enumerate() {
                let expected = match store {
                    Store::Overwrite => T::from_f32(number(i)),
                    Store::Add => T::from_f32(before[i].to_f32() + number(i)),
                };
                assert_eq!(out, expected.to_f32(), "element {i} of {n}, {bits:?}, {store:?}");
            }
        }
        // No element is further from its number than half a step, but where codes end before the largest magnitude.
        let greatest = if bits == Bits::Eight { 127 } else { 7 };
        for (i, x) in x.iter().enumerate() {
            let off = (x.to_f32() - number(i)).abs() / scales[i / bits.block()];
            let most = if codes[i] == greatest { 1.0 } else { 0.5 };
            assert!(off <= most + 1e-4, "element {i} of {n}, {bits:?}: {off} steps");
        }
    }
}

#[test]
fn codes_and_scales_are_those_of_deepspeeds_formula() {
    for bits in [Bits::Eight, Bits::Four] {
        check::<f32>(bits);
        check::<bf16>(bits);
        check::<f16>(bits);
    }
}

#[test]
fn what_is_not_finite_makes_its_block_so_and_no_other() {
    for bits in [Bits::Eight, Bits::Four] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let n = 2 * bits.block();
            let mut x = values::<f32>(3, n);
            x[5] = bad;
            let words = encoded(bits, &x);
            let out = same_everywhere(|cpu| {
                let mut out = vec![0.0f32; n];
                dequantize(cpu, bits, &words, Store::Overwrite, &mut out);
                out.iter().map(|x| x.is_nan()).collect::<Vec<_>>()
            });
            assert!((0..n).all(|i| out[i] == (i < bits.block())), "{bits:?}, {bad}");
        }
        // So small that the inverse of the scale is infinite.
        let mut out = vec![1.0f32; 3];
        let words = encoded(bits, &[1e-44f32, 0.0, -1e-44]);
        dequantize(&crate::everywhere::cpus()[0], bits, &words, Store::Overwrite, &mut out);
        assert!(out.iter().all(|x| *x == 0.0), "{out:?}");
    }
}
