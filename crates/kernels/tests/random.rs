//! Random numbers: known words, any split, moments and correlations.

use oarlock_kernels::bf16;
use oarlock_kernels::pieces::TASK_ELEMS;
use oarlock_kernels::random::{Permutation, Stream, dropout, fill_normal, fill_uniform, philox};

use crate::everywhere::{cpus, f64s, same_everywhere, values};

const STREAM: Stream = Stream { seed: 0x0123_4567_89ab_cdef, stream: 42 };

#[test]
fn philox_gives_the_published_words() {
    const LOW: u64 = 0xffff_ffff;
    let known: [([u64; 4], [u64; 2], [u32; 4]); 3] = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([LOW; 4], [LOW; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, words) in known {
        let got = philox([counter[0]], [counter[1]], [counter[2], counter[3]], key);
        assert_eq!(got.map(|w| w[0]), words);
    }
}

#[test]
fn any_split_gives_the_same_bits() {
    let n = TASK_ELEMS + 200;
    for first in [0, 1, 63, 64, 1000, u64::from(u32::MAX) * 4 - 77] {
        let (normal, uniform) = same_everywhere(|cpu| {
            let (mut normal, mut uniform) = (vec![0.0f32; n], vec![0.0f32; n]);
            fill_normal(cpu, STREAM, first, 0.0, 1.0, &mut normal);
            fill_uniform(cpu, STREAM, first, 0.0, 1.0, &mut uniform);
            (normal, uniform)
        });
        let cpu = &cpus()[0];
        for (from, to) in [(0, 1), (1, 40), (5, 70), (60, 300), (128, 192), (n - 3, n)] {
            let mut part = vec![0.0f32; to - from];
            fill_normal(cpu, STREAM, first + from as u64, 0.0, 1.0, &mut part);
            assert_eq!(part, normal[from..to]);
        }
        assert!((0..n).all(|i| uniform[i] == STREAM.uniform(first + i as u64)));
    }
}

#[test]
fn moments_tails_and_correlations_are_those_of_the_distributions() {
    let n = 1 << 20;
    let (mut z, mut u) = (vec![0.0f32; n], vec![0.0f32; n]);
    let cpu = cpus().pop().unwrap();
    fill_normal(&cpu, STREAM, 7, 0.0, 1.0, &mut z);
    fill_uniform(&cpu, STREAM, 7, -1.0, 3.0, &mut u);
    let moment = |x: &[f32], p: i32| f64s(x).iter().map(|x| x.powi(p)).sum::<f64>() / n as f64;
    for (p, want, tolerance) in [(1, 0.0, 0.005), (2, 1.0, 0.007), (3, 0.0, 0.02), (4, 3.0, 0.05)] {
        assert!((moment(&z, p) - want).abs() < tolerance, "moment {p}: {}", moment(&z, p));
    }
    let beyond = |t: f32| z.iter().filter(|z| z.abs() > t).count() as f64 / n as f64;
    assert!((beyond(1.0) - 0.317_31).abs() < 0.003 && (beyond(3.0) - 0.0027).abs() < 0.0003);
    for lag in [1, 16, 32, 64] {
        let product = z.iter().zip(&z[lag..]).map(|(a, b)| f64::from(a * b)).sum::<f64>() / n as f64;
        assert!(product.abs() < 0.005, "lag {lag}: {product}");
    }
    assert!((moment(&u, 1) - 1.0).abs() < 0.01 && u.iter().all(|u| (-1.0..=3.0).contains(u)));
    let (mut other, mut wide) = (vec![0.0f32; n], vec![0.0f32; n]);
    fill_normal(&cpu, Stream { stream: 43, ..STREAM }, 7, 0.0, 1.0, &mut other);
    let product = z.iter().zip(&other).map(|(a, b)| f64::from(a * b)).sum::<f64>() / n as f64;
    assert!(product.abs() < 0.005);
    fill_normal(&cpu, STREAM, 7, 5.0, 0.5, &mut wide);
    assert!(wide.iter().zip(&z).all(|(w, z)| *w == 5.0 + 0.5 * z));
}

#[test]
fn dropout_keeps_the_share_and_repeats_its_mask() {
    let n = 100_000;
    let x = values::<bf16>(1, n)
        .iter()
        .map(|x| if x.to_f32() == 0.0 { bf16::ONE } else { *x })
        .collect::<Vec<_>>();
    let y = same_everywhere(|cpu| {
        let mut y = x.clone();
        dropout(cpu, STREAM, 3, 0.9, 2.0, &mut y);
        y
    });
    let kept = y.iter().filter(|y| y.to_f32() != 0.0).count();
    assert!((kept as f64 / n as f64 - 0.9).abs() < 0.005);
    assert!(y.iter().zip(&x).all(|(y, x)| y.to_f32() == 0.0 || y.to_f32() == 2.0 * x.to_f32()));
    let (cpu, mut ones) = (&cpus()[0], vec![1.0f32; n]);
    dropout(cpu, STREAM, 3, 0.9, 1.0, &mut ones);
    assert!(ones.iter().zip(&y).all(|(one, y)| (*one == 0.0) == (y.to_f32() == 0.0)));
    for (keep, want) in [(1.0, 1.0f32), (0.0, 0.0)] {
        let mut x = [1.0f32; 100];
        dropout(cpu, STREAM, 0, keep, 1.0, &mut x);
        assert_eq!(x, [want; 100]);
    }
}

#[test]
fn permutations_hit_everything_once_and_differ() {
    for n in [1, 2, 3, 5, 64, 1000, 4097] {
        let mut order: Vec<u64> = (0..n).filter_map(|i| Permutation::new(STREAM, n).get(i)).collect();
        let fixed = order.iter().zip(0..).filter(|(x, i)| **x == *i).count();
        assert!(n < 64 || fixed < 8, "{fixed} of {n} stayed in place");
        order.sort_unstable();
        assert!(order.into_iter().eq(0..n));
    }
    let large = Permutation::new(STREAM, u64::MAX);
    assert!(large.get(u64::MAX).is_none() && large.get(5) != large.get(6));
    let other = Permutation::new(Stream { stream: 1, ..STREAM }, 1000);
    assert!((0..1000).filter(|&i| other.get(i) == Permutation::new(STREAM, 1000).get(i)).count() < 10);
}
