//! The sum over ranks against its tree and the exact sum.

use oarlock_kernels::rank_sum::{sum_range, sum_range_as, tree_fold};
use oarlock_kernels::{DType, Float, bf16};

fn values(rank: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + rank * 104_729) % 2003) as f32 * 1.37e-3 - 1.1 / (rank + 1) as f32).collect()
}

#[test]
fn every_number_of_sources_adds_in_the_tree_and_near_the_exact_sum() {
    // Whole tiles of 16 elements, and a rest.
    let n = 20 * 16 + 7;
    for ranks in 1..20 {
        let mut buffers: Vec<Vec<f32>> = (0..ranks).map(|r| values(r, n)).collect();
        let before = buffers.clone();
        let sources: Vec<*const u8> = buffers.iter().map(|b| b.as_ptr().cast()).collect();
        let target = buffers[ranks - 1].as_mut_ptr().cast();
        // SAFETY: buffers of n elements each, used by this thread alone.
        unsafe { sum_range(DType::F32, &sources, &[target], 3..n) };
        for i in 3..n {
            let tree = tree_fold(0..ranks, &|r| before[r][i] as f64, &|a, b| (a as f32 + b as f32) as f64);
            assert_eq!(buffers[ranks - 1][i], tree as f32, "{ranks} ranks, element {i}");
            let exact: f64 = before.iter().map(|b| b[i] as f64).sum();
            assert!((tree - exact).abs() < 1e-5, "{ranks} ranks, element {i}");
        }
        assert_eq!(buffers[ranks - 1][..3], before[ranks - 1][..3]);
    }
}

#[test]
fn sixteen_bits_are_added_in_f32_and_rounded_once() {
    let buffers: Vec<Vec<bf16>> =
        (0..5).map(|r| values(r, 100).into_iter().map(<bf16 as Float>::from_f32).collect()).collect();
    let mut out = vec![bf16::ZERO; 100];
    let sources: Vec<*const u8> = buffers.iter().map(|b| b.as_ptr().cast()).collect();
    // SAFETY: buffers of 100 elements each, used by this thread alone.
    unsafe { sum_range(DType::BF16, &sources, &[out.as_mut_ptr().cast()], 0..100) };
    for i in 0..100 {
        let sum = tree_fold(0..5, &|r| buffers[r][i].to_f32() as f64, &|a, b| (a as f32 + b as f32) as f64);
        assert_eq!(out[i], <bf16 as Float>::from_f32(sum as f32));
    }
}

#[test]
fn a_group_of_a_power_of_two_adds_as_inside_the_whole() {
    let x: Vec<f64> = (0..16).map(|r| values(r, 1)[0] as f64 * 1e3).collect();
    let add = |a: f64, b: f64| (a as f32 + b as f32) as f64;
    for size in [1, 2, 4, 8] {
        let of_group = |g: usize| tree_fold(g * size..(g + 1) * size, &|r| x[r], &add);
        assert_eq!(tree_fold(0..16 / size, &of_group, &add), tree_fold(0..16, &|r| x[r], &add));
    }
}

#[test]
fn sums_of_groups_in_f32_add_up_to_the_bits_of_all() {
    let n = 3 * 16 + 5;
    let buffers: Vec<Vec<bf16>> =
        (0..6).map(|r| values(r, n).into_iter().map(<bf16 as Float>::from_f32).collect()).collect();
    let sources: Vec<*const u8> = buffers.iter().map(|b| b.as_ptr().cast()).collect();
    let (mut whole, mut twice) = (vec![bf16::ZERO; n], vec![bf16::ZERO; n]);
    let mut groups = vec![vec![0f32; n]; 3];
    // SAFETY: buffers of n elements each, of the dtypes that are named, used by this thread alone.
    unsafe {
        sum_range(DType::BF16, &sources, &[whole.as_mut_ptr().cast()], 0..n);
        for (group, sources) in groups.iter_mut().zip(sources.chunks(2)) {
            sum_range_as([DType::BF16, DType::F32], sources, &[group.as_mut_ptr().cast()], 0..n);
        }
        let sources: Vec<*const u8> = groups.iter().map(|b| b.as_ptr().cast()).collect();
        sum_range_as([DType::F32, DType::BF16], &sources, &[twice.as_mut_ptr().cast()], 0..n);
    }
    assert_eq!(twice, whole);
}
