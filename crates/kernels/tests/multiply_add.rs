//! Fused multiply-add in software against `f32::mul_add`, bit by bit.

use oarlock_kernels::multiply_add::fused;

#[track_caller]
fn check(x: f32, y: f32, sum: f32) {
    let (got, want) = (fused(x, y, sum), x.mul_add(y, sum));
    let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
    assert!(same, "{x:e} {y:e} + {sum:e}: {got:e} instead of {want:e}");
}

/// The first and the last of each kind, and some with a few bits.
fn edges() -> Vec<f32> {
    let exponents = [1, 2, 23, 24, 25, 100, 103, 104, 126, 127, 128, 150, 151, 253, 254];
    let mantissas = [0, 1, 2, 3, 0x40_0000, 0x40_0001, 0x55_5555, 0x7f_fffe, 0x7f_ffff];
    let normal = exponents.iter().flat_map(|e| mantissas.map(|m| f32::from_bits(e << 23 | m)));
    let positive: Vec<f32> =
        mantissas.map(f32::from_bits).into_iter().chain(normal).chain([f32::INFINITY]).collect();
    positive.iter().flat_map(|x| [*x, -x]).chain([f32::NAN]).collect()
}

#[test]
fn every_triple_of_edges() {
    let edges = edges();
    // All of them take minutes without optimization.
    for (i, &x) in edges.iter().enumerate() {
        for &y in edges[i..].iter() {
            for &sum in edges.iter().step_by(3) {
                check(x, y, sum);
            }
        }
    }
}

/// Sums near the middle between two floats, where a second rounding goes wrong: the product or the sum is far smaller than the
/// last bit of the other.
#[test]
fn sums_near_a_tie() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let mut n_wrong_with_two_roundings = 0;
    for _ in 0..200_000 {
        // x y is half of the last bit of the sum less a share of at most 2^-32 of itself, which f64 has no place for.
        let sum = f32::from_bits(0x4b00_0000 | random() >> 9);
        let share = f32::powi(2.0, -(16 + (random() % 8) as i32));
        let half = if random() & 1 == 0 { 0.5 } else { -0.5 };
        let (x, y) = (1.0 + share, half * (1.0 - share));
        // The whole moved among the exponents, down to where the results are not normal.
        let scale = f32::from_bits((random() % 200 + 1) << 23);
        let (x, sum) = (x * scale, sum * scale);
        check(x, y, sum);
        check(y, x, -sum);
        let twice = (f64::from(x) * f64::from(y) + f64::from(sum)) as f32;
        n_wrong_with_two_roundings += u32::from(twice.to_bits() != x.mul_add(y, sum).to_bits());
    }
    assert!(n_wrong_with_two_roundings > 100, "{n_wrong_with_two_roundings}");
}

#[test]
fn any_bits() {
    let mut state = 7u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f32::from_bits((state >> 32) as u32)
    };
    for _ in 0..1_000_000 {
        let (x, y, sum) = (random(), random(), random());
        check(x, y, sum);
        // Of about the size of the product, where something is cancelled.
        check(x, y, -(x * y));
        check(x, y, f32::from_bits((-(x * y)).to_bits() ^ 5));
        check(x, y, f32::from_bits((x * y).to_bits().wrapping_sub(24 << 23)));
    }
}
