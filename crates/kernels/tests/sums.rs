//! The order and the exactness of sums.

use oarlock_kernels::bf16;
use oarlock_kernels::sums::{NORM_BLOCK, squared_norm, sum_rows_in_place, tree_sum, tree_sum_f32};

use crate::everywhere::{same_everywhere, values};

#[test]
fn squared_norms_are_exact_enough_and_see_everything() {
    for n in [0, 1, 31, 4095, 4096, 4097, 40_000] {
        let x = values::<bf16>(1, n);
        let blocks = same_everywhere(|cpu| {
            let mut blocks = vec![0.0; n.div_ceil(NORM_BLOCK)];
            squared_norm(cpu, &x, &mut blocks);
            blocks
        });
        let want: f64 = x.iter().map(|x| f64::from(x.to_f32()).powi(2)).sum();
        assert!((tree_sum(&blocks) - want).abs() <= 1e-12 * want);
    }
    let mut x = values::<f32>(2, 10_000);
    (x[0], x[5000], x[9999]) = (3e38, f32::NAN, f32::INFINITY);
    let blocks = same_everywhere(|cpu| {
        let mut blocks = vec![0.0; 3];
        squared_norm(cpu, &x, &mut blocks);
        blocks.iter().map(|b| b.to_bits()).collect::<Vec<_>>()
    });
    let blocks: Vec<f64> = blocks.into_iter().map(f64::from_bits).collect();
    assert!(blocks[0].is_finite() && blocks[1].is_nan() && blocks[2] == f64::INFINITY);
}

#[test]
fn trees_have_the_written_order() {
    let x: Vec<f64> = values::<f32>(3, 7).into_iter().map(|x| f64::from(x) / 3.0).collect();
    assert_eq!(tree_sum(&x), ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + x[6]));
    assert_eq!((tree_sum(&[]), tree_sum_f32(&[])), (0.0, 0.0));
    let rows = values::<f32>(4, 5 * 33);
    let sum = same_everywhere(|cpu| {
        let mut partials = rows.clone();
        sum_rows_in_place(cpu, &mut partials, 33);
        partials[..33].to_vec()
    });
    for j in 0..33 {
        let at = |row: usize| rows[row * 33 + j];
        assert_eq!(sum[j], ((at(0) + at(1)) + (at(2) + at(3))) + at(4));
    }
}
