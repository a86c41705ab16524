//! Each word of the kernels by itself.

use half::{bf16, f16};
use oarlock_cuda::geometry::{self, Geometry};

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, values};

const WARP: Geometry = Geometry { grid: [1, 1, 1], threads: 32, shared_bytes: 0 };

fn words<T: Float>(library: &Library, bits: fn(T) -> u16) {
    let (a, b, x) = (values::<T>(1, 256), values::<T>(2, 128), values::<T>(3, 256));
    let numbers: Vec<f32> = values::<f32>(4, 64).iter().map(|x| 40.0 * x).collect();
    let (rows, columns, halves, back) = in_every_order(library, |gpu| {
        let (x, rows, columns) = (gpu.buffer(&x), gpu.fresh::<u32>(128), gpu.fresh::<u32>(128));
        gpu.run("probe_load", &[T::ELEMENT], WARP, args![x, rows, columns]);
        let (numbers, halves) = (gpu.buffer(&numbers[..32]), gpu.fresh::<T>(32));
        let back = gpu.fresh::<f32>(32);
        gpu.run("probe_round", &[T::ELEMENT], WARP, args![numbers, halves, back]);
        (rows.read(), columns.read(), halves.read(), back.read())
    });
    // Word i of a lane is of matrix i, whose rows are x[64 i ..].
    let word = |at: [usize; 2]| u32::from(bits(x[at[0]])) | u32::from(bits(x[at[1]])) << 16;
    let want = |at: fn(usize, usize) -> [usize; 2]| -> Vec<u32> {
        (0..128).map(|i| word(at(i / 16 % 8, i / 4 % 4).map(|at| 64 * (i % 4) + at))).collect()
    };
    assert_eq!(rows, want(|group, lane| [8 * group + 2 * lane, 8 * group + 2 * lane + 1]));
    assert_eq!(columns, want(|group, lane| [16 * lane + group, 16 * lane + 8 + group]));
    let want: Vec<T> = numbers[..32].iter().map(|x| T::of(f64::from(*x))).collect();
    assert_eq!(halves, want);
    assert_eq!(back.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), f64s(&want));
    let (c, y, pairs, powers) = in_every_order(library, |gpu| {
        let (a, b, c) = (gpu.buffer(&a), gpu.buffer(&b), gpu.fresh::<f32>(128));
        gpu.run("probe_mma", &[T::ELEMENT], WARP, args![a, b, c]);
        let (x, y) = (gpu.buffer(&x), gpu.fresh::<T>(264));
        gpu.run("probe_copy", &[T::ELEMENT], WARP, args![x, y]);
        let (numbers, pairs, powers) = (gpu.buffer(&numbers), gpu.fresh::<u32>(32), gpu.fresh::<f32>(32));
        gpu.run("probe_numbers", &[T::ELEMENT], WARP, args![numbers, pairs, powers]);
        (c.read(), y.read(), pairs.read(), powers.read())
    });
    let (a, b) = (f64s(&a), f64s(&b));
    let product = |i: usize| (0..16).map(|k| a[i / 8 * 16 + k] * b[k * 8 + i % 8]).sum();
    assert_close("mma", &c, &(0..128).map(product).collect::<Vec<f64>>(), 1e-5);
    let turned = x.chunks(8).rev().flatten().copied().chain([T::of(0.0); 8]);
    assert_eq!(y, turned.collect::<Vec<_>>());
    let rounded = |x: f32| u32::from(bits(T::of(f64::from(x))));
    assert_eq!(pairs, numbers.chunks(2).map(|x| rounded(x[0]) | rounded(x[1]) << 16).collect::<Vec<_>>());
    for (power, x) in powers.iter().zip(&numbers) {
        let want = f64::from(*x).exp2();
        assert!((f64::from(*power) - want).abs() <= 4e-7 * want, "2^{x} is not {power}");
    }
}

fn sums(library: &Library) {
    let x = values::<f32>(1, 256);
    let (shuffled, of_warps, of_block) = in_every_order(library, |gpu| {
        let (x, shuffled) = (gpu.buffer(&x), gpu.fresh::<f32>(256));
        let (of_warps, of_block) = (gpu.fresh::<f32>(16), gpu.fresh::<f32>(2));
        gpu.run("probe_sums", &[], geometry::one_block(), args![x, shuffled, of_warps, of_block]);
        (shuffled.read(), of_warps.read(), of_block.read())
    });
    assert_eq!(shuffled, (0..256).map(|i| x[i ^ 5]).collect::<Vec<_>>());
    let sum = |x: &[f32]| x.iter().map(|x| f64::from(*x)).sum::<f64>();
    let most = |x: &[f32]| f64::from(x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let of_each = |f: &dyn Fn(&[f32]) -> f64| x.chunks(32).map(f).collect::<Vec<_>>();
    assert_close("warps", &of_warps, &[of_each(&sum), of_each(&most)].concat(), 1e-6);
    assert_close("block", &of_block, &[sum(&x), most(&x)], 1e-7);
}

/// Without the rounding between them, the products would leave their last bits.
fn rounded_products(library: &Library) {
    let x = vec![1.0 + f32::EPSILON; 32];
    let z = vec![-1.0f32; 32];
    let sums = in_every_order(library, |gpu| {
        let (x, z, sums) = (gpu.buffer(&x), gpu.buffer(&z), gpu.fresh::<f32>(32));
        gpu.run("probe_mul", &[], WARP, args![x, x, z, sums]);
        sums.read()
    });
    assert_eq!(sums, vec![2.0 * f32::EPSILON; 32]);
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    sums(library);
    rounded_products(library);
    words::<bf16>(library, bf16::to_bits);
    words::<f16>(library, f16::to_bits);
}

#[test]
fn every_word_means_what_it_says() {
    on_emulator(check);
}
