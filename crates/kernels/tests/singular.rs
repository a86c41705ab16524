//! Singular values and vectors: products, orthogonality, matrices without a direction, equal bits on any threads.

use oarlock_kernels::decompose::singular::{Search, Singular, largest};
use oarlock_kernels::difference::largest_difference;
use oarlock_kernels::random::{Stream, fill_normal};
use oarlock_kernels::{Cpu, Isa, Par};

use crate::everywhere::same_everywhere;

fn cpu(threads: usize) -> Cpu {
    Cpu { isa: Isa::detect(), par: Par::threads(threads).unwrap() }
}

fn normal(rows: usize, cols: usize) -> Vec<f32> {
    let mut x = vec![0.0f32; rows * cols];
    fill_normal(&cpu(1), Stream { seed: 3, stream: (rows * 1000 + cols) as u64 }, 0, 0.0, 1.0, &mut x);
    x
}

/// A matrix whose singular values fall by a factor from one to the next.
fn falling(rows: usize, cols: usize, factor: f64) -> Vec<f32> {
    let k = rows.min(cols);
    let (left, right) = (normal(k, rows), normal(k, cols));
    let found = |x: &[f32], n: usize| largest(&cpu(1), x, [k, n], k, Search::Exact).right;
    let (left, right) = (found(&left, rows), found(&right, cols));
    let at = |i: usize, j: usize| {
        (0..k).map(|v| factor.powi(v as i32) * left[v * rows + i] * right[v * cols + j]).sum::<f64>() as f32
    };
    (0..rows * cols).map(|index| at(index / cols, index % cols)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Checks that W v = σ u and Wᵀ u = σ v, and that the vectors are orthonormal.
fn check(x: &[f32], [rows, cols]: [usize; 2], found: &Singular, within: f64) {
    let Singular { values, left, right } = found;
    assert!(values.windows(2).all(|pair| pair[1] <= pair[0] + within * values[0]), "{values:?}");
    for (i, value) in values.iter().enumerate() {
        let (u, v) = (&left[i * rows..][..rows], &right[i * cols..][..cols]);
        for (row, u) in x.chunks_exact(cols).zip(u) {
            let product: f64 = row.iter().zip(v).map(|(a, b)| f64::from(*a) * b).sum();
            assert!(
                (product - value * u).abs() <= within * values[0],
                "{rows} x {cols}, {i}: {product} {value} {u}"
            );
        }
        for (j, v) in v.iter().enumerate() {
            let product: f64 = x.chunks_exact(cols).zip(u).map(|(row, u)| f64::from(row[j]) * u).sum();
            assert!((product - value * v).abs() <= within * values[0], "{rows} x {cols}, {i}");
        }
        assert!(u.iter().fold(0.0f64, |most, x| if x.abs() > most.abs() { *x } else { most }) > 0.0);
        for j in 0..values.len() {
            let expected = f64::from(u8::from(i == j));
            assert!((dot(u, &left[j * rows..][..rows]) - expected).abs() < 1e-12);
            assert!((dot(v, &right[j * cols..][..cols]) - expected).abs() < 1e-12);
        }
    }
}

#[test]
fn exact_vectors_are_those_of_the_matrix() {
    for (rows, cols, n) in [(1, 1, 1), (3, 7, 2), (7, 3, 3), (40, 200, 8), (200, 40, 40), (130, 257, 5)] {
        let x = normal(rows, cols);
        check(&x, [rows, cols], &largest(&cpu(1), &x, [rows, cols], n, Search::Exact), 1e-10);
    }
    let x = falling(90, 150, 0.5);
    let found = largest(&cpu(1), &x, [90, 150], 6, Search::Exact);
    check(&x, [90, 150], &found, 1e-10);
    for (i, value) in found.values.iter().enumerate() {
        assert!((value - 0.5f64.powi(i as i32)).abs() < 1e-6, "{i}: {value}");
    }
}

#[test]
fn iterations_come_close_to_them() {
    for sizes in [[90, 150], [150, 90]] {
        let x = falling(sizes[0], sizes[1], 0.8);
        let exact = largest(&cpu(1), &x, sizes, 4, Search::Exact);
        let found = |n| largest(&cpu(1), &x, sizes, 4, Search::Iterations(n));
        let error = |found: &Singular| -> f64 { largest_difference(&found.values, &exact.values).unwrap() };
        assert!(error(&found(16)) < 1e-4 && error(&found(16)) < error(&found(1)));
        check(&x, sizes, &found(60), 1e-5);
    }
}

#[test]
fn matrices_without_directions_have_vectors_all_the_same() {
    for x in
        [vec![0.0f32; 60], vec![2.0; 60], (0..60).map(|at| f32::from(u8::from(at / 10 == at % 10))).collect()]
    {
        for search in [Search::Exact, Search::Iterations(2)] {
            check(&x, [6, 10], &largest(&cpu(1), &x, [6, 10], 6, search), 1e-10);
        }
    }
    assert!(largest(&cpu(1), &[], [0, 5], 3, Search::Exact).values.is_empty());
    let mut x = normal(5, 5);
    x[7] = f32::INFINITY;
    assert!(largest(&cpu(1), &x, [5, 5], 2, Search::Exact).left.iter().all(|x| x.is_nan()));
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    let x = normal(150, 270);
    for search in [Search::Exact, Search::Iterations(3)] {
        same_everywhere(|cpu| largest(cpu, &x, [150, 270], 12, search));
    }
}
