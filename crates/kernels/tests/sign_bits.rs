//! Signs as bits against plain loops, on every variant, and the passes of the 1-bit optimizers likewise.

use oarlock_kernels::compressed::sign_bits::{pack, sum, unpack};
use oarlock_kernels::difference::largest_magnitude;
use oarlock_kernels::optim::one_bit::{self, MAX_SLICES, Pass};

use crate::everywhere::{same_everywhere, values};

const SCALE: f32 = 0.37;

#[test]
fn signs_are_packed_and_the_rest_stays() {
    for n in [0, 8, 96, 4096, 40_008] {
        let mut x = values::<f32>(3, n);
        if n > 8 {
            (x[1], x[2], x[3], x[4]) = (0.0, -0.0, f32::INFINITY, f32::MIN_POSITIVE);
        }
        let (rest, bits) = same_everywhere(|cpu| {
            let (mut rest, mut bits) = (x.clone(), vec![0xAAu8; n / 8]);
            pack(cpu, &mut rest, SCALE, &mut bits);
            (rest, bits)
        });
        for (i, &x) in x.iter().enumerate() {
            let positive = x >= 0.0;
            assert_eq!(bits[i / 8] >> (i % 8) & 1 == 1, positive, "element {i}: {x}");
            assert_eq!(rest[i].to_bits(), (x - if positive { SCALE } else { -SCALE }).to_bits());
        }
    }
}

#[test]
fn signs_come_back_from_any_bit_and_sum_up_over_ranks() {
    let n_bytes = 5003;
    let bits: Vec<u8> = (0..3 * n_bytes + 9).map(|i| (i * i * 31 + i / 7) as u8).collect();
    let sign = |at: usize| if bits[at / 8] >> (at % 8) & 1 == 1 { SCALE } else { -SCALE };
    for (first, n) in [(0, 40_000), (0, 3), (3, 33_005), (16, 17), (5, 2), (7, 0)] {
        let out = same_everywhere(|cpu| {
            let mut out = vec![9.0; n];
            unpack(cpu, &bits, first, SCALE, &mut out);
            out
        });
        assert!(out.iter().enumerate().all(|(i, &x)| x == sign(first + i)), "{n} from bit {first}");
    }
    let scales = [0.25, 1.5, 0.0625];
    let stride = n_bytes + 4;
    let out = same_everywhere(|cpu| {
        let mut out = vec![9.0; 8 * n_bytes];
        sum(cpu, &bits, stride, &scales, &mut out);
        out
    });
    for (i, &x) in out.iter().enumerate() {
        let of = |rank: usize| sign(8 * rank * stride + i) / SCALE * scales[rank];
        assert_eq!(x, of(0) + of(1) + of(2), "element {i}");
    }
}

/// Runs a pass on `n` elements everywhere; the written slices and the results.
fn run(pass: Pass, n: usize) -> (Vec<Vec<f32>>, Vec<Vec<f32>>, Vec<f64>) {
    let (n_slices, n_written) = pass.slices();
    // Second moments are not negative.
    let before: Vec<Vec<f32>> = (0..n_slices)
        .map(|i| values::<f32>(i as u64 + 5, n).iter().map(|x| x.abs() + 0.01).collect())
        .collect();
    let (after, results) = same_everywhere(|cpu| {
        let mut slices = before.clone();
        let (written, read) = slices.split_at_mut(n_written);
        let mut written = written.iter_mut();
        let mut read = read.iter();
        let mut results = vec![0.0; pass.results() * n.div_ceil(4096)];
        one_bit::run(
            cpu,
            pass,
            [(); MAX_SLICES].map(|()| written.next().map_or(&mut [][..], Vec::as_mut_slice)),
            [(); MAX_SLICES].map(|()| read.next().map_or(&[][..], Vec::as_slice)),
            &mut results,
        );
        (slices, results)
    });
    (before, after, results)
}

fn near(got: f32, expected: f64) -> bool {
    (f64::from(got) - expected).abs() <= 4e-6 * expected.abs().max(0.05)
}

#[test]
fn passes_are_their_formulas_in_f64() {
    const N: usize = 40_001;
    let (lr, eps, decay, beta1, beta2, lrs, scale) = (0.1, 1e-3, 0.2, 0.9, 0.99, 0.3, 1.7);
    type Formula<'a> = &'a dyn Fn(&[f64]) -> Vec<f64>;
    let step = |w: f64, m: f64, v: f64| lr * (m / (v.sqrt() + eps) + decay * w);
    let frozen = |x: &[f64]| {
        let m = x[0] / scale;
        let g = (m - beta1 * x[1]) / (1.0 - beta1);
        let fresh = beta2 * x[2] + (1.0 - beta2) * g * g;
        vec![m, m / (x[3].sqrt() + eps) + decay * x[4], fresh]
    };
    let formulas: [(Pass, Formula); 12] = [
        (Pass::Momentum { beta1 }, &|x| vec![beta1 * x[0] + (1.0 - beta1) * x[1]]),
        (Pass::Variance { beta2 }, &|x| vec![beta2 * x[0] + (1.0 - beta2) * x[1] * x[1]]),
        (Pass::Step { lr, eps, decay }, &|x| vec![x[0] - step(x[0], x[1], x[2])]),
        (Pass::LocalStep { lr, eps, decay }, &|x| {
            vec![x[0] - step(x[0], x[2], x[3]), x[1] - step(x[0], x[2], x[3])]
        }),
        (Pass::SumMoments { eps }, &|x| vec![x[0] * (x[1].sqrt() + eps)]),
        (Pass::TakeMean { eps, lrs }, &|x| vec![x[0] + x[1] / (x[3].sqrt() + eps), 0.0, -x[1] / lrs]),
        (Pass::TakeMean { eps, lrs: 0.0 }, &|x| vec![x[0] + x[1] / (x[3].sqrt() + eps), 0.0, x[2]]),
        (Pass::Mask, &|x| vec![x[0] * x[1]]),
        (Pass::LambDirection { eps, decay }, &|x| vec![x[2] / (x[3].sqrt() + eps) + decay * x[1]]),
        (Pass::Along { length: lr }, &|x| vec![x[0] - lr * x[1]]),
        (Pass::LambMomentum { beta1, scale }, &|x| vec![(beta1 * x[0] + (1.0 - beta1) * x[1]) * scale, x[0]]),
        (Pass::LambFrozen { beta1, beta2, eps, decay, scale }, &frozen),
    ];
    for (pass, formula) in formulas {
        let (before, after, results) = run(pass, N);
        for i in 0..N {
            let x: Vec<f64> = before.iter().map(|slice| f64::from(slice[i])).collect();
            for (slot, expected) in formula(&x).into_iter().enumerate() {
                assert!(near(after[slot][i], expected), "{pass:?}, slice {slot}, element {i}: {expected}");
            }
        }
        let n_written = pass.slices().1;
        assert_eq!(before[n_written..], after[n_written..], "{pass:?} writes what it reads");
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let total = |which: usize| results.chunks(N.div_ceil(4096)).nth(which).unwrap().to_vec();
        match pass {
            Pass::LambDirection { .. } => {
                let of = |slice: usize| norm(&mut after[slice].iter().map(|x| f64::from(*x)));
                let got: Vec<f64> = (0..2).map(|which| total(which).iter().sum::<f64>().sqrt()).collect();
                assert!((got[0] / of(1) - 1.0).abs() < 1e-9 && (got[1] / of(0) - 1.0).abs() < 1e-9);
            }
            Pass::LambFrozen { .. } => {
                let at = |slice: usize, i: usize| f64::from(after[slice][i]);
                let plain = |i: usize| at(0, i) / (at(3, i).sqrt() + eps);
                let expected = [norm(&mut (0..N).map(plain)), norm(&mut (0..N).map(|i| at(1, i)))];
                for (which, expected) in expected.iter().enumerate() {
                    assert!((total(which).iter().sum::<f64>().sqrt() / expected - 1.0).abs() < 1e-6);
                }
                let ratio = |i: usize| (at(3, i).sqrt() + eps) / (at(2, i).sqrt() + eps);
                let greatest = largest_magnitude((0..N).map(ratio)).unwrap();
                assert!((largest_magnitude(total(2)).unwrap() / greatest - 1.0).abs() < 1e-5);
            }
            _ => assert!(results.is_empty()),
        }
    }
}
