//! Sums, products and extremes against plain loops.

use oarlock_kernels::reduce::{
    Dims, Extreme, extreme, extreme_ints, prod, prod_backward, sum, sum_ints, sum_scratch,
};
use oarlock_kernels::{Store, bf16};

use crate::everywhere::{assert_close, f64s, same_everywhere, values};

#[test]
fn sums_and_maxima_match_plain_loops() {
    for (outer, n, inner) in [(1, 20_001, 1), (3, 7, 5), (2, 99, 33), (301, 5, 1), (1, 1000, 77), (2, 0, 3)] {
        let dims = Dims { outer, n, inner };
        let x = values::<bf16>(1, dims.n_elems());
        let start = values::<f32>(2, outer * inner);
        let (written, added) = same_everywhere(|cpu| {
            let (mut written, mut added) = (start.clone(), start.clone());
            let mut scratch = vec![f32::NAN; sum_scratch(dims)];
            sum(cpu, dims, 0.5, &x, (&mut written, Store::Overwrite), &mut scratch);
            sum(cpu, dims, 0.5, &x, (&mut added, Store::Add), &mut scratch);
            (written, added)
        });
        let x64 = f64s(&x);
        let at = |j: usize, k: usize| (j / inner * n + k) * inner + j % inner;
        let want: Vec<f64> =
            (0..outer * inner).map(|j| 0.5 * (0..n).map(|k| x64[at(j, k)]).sum::<f64>()).collect();
        assert_close(&written, &want, 2e-5);
        assert_close(&added, &want.iter().zip(f64s(&start)).map(|(w, s)| w + s).collect::<Vec<_>>(), 2e-5);
        if n == 0 {
            continue;
        }
        let (largest, places) = same_everywhere(|cpu| {
            let (mut largest, mut places) = (vec![bf16::ZERO; outer * inner], vec![9; outer * inner]);
            extreme(cpu, Extreme::Max, dims, &x, &mut largest, &mut places);
            (largest, places)
        });
        for j in 0..outer * inner {
            let row: Vec<f64> = (0..n).map(|k| x64[at(j, k)]).collect();
            let best = row.iter().copied().fold(f64::MIN, f64::max);
            assert_eq!(f64::from(largest[j].to_f32()), best);
            assert_eq!(places[j] as usize, row.iter().position(|&x| x == best).unwrap());
        }
    }
}

#[test]
fn nan_goes_before_every_number() {
    let (mut value, mut place) = ([0.0f32], [0]);
    let dims = Dims { outer: 1, n: 4, inner: 1 };
    let cpu = &crate::everywhere::cpus()[0];
    for which in [Extreme::Max, Extreme::Min] {
        extreme(cpu, which, dims, &[1.0, f32::NAN, f32::INFINITY, f32::NAN], &mut value, &mut place);
        assert!(value[0].is_nan() && place == [1]);
    }
}

#[test]
fn products_and_integers_match_plain_loops() {
    for (outer, n, inner) in [(1, 21, 1), (3, 7, 5), (301, 5, 3), (2, 0, 3), (2, 3, 0)] {
        let dims = Dims { outer, n, inner };
        let mut x = values::<f32>(1, dims.n_elems());
        x.iter_mut().step_by(11).for_each(|x| *x = 0.0);
        let (dy, ints) = (values::<f32>(2, outer * inner), x.iter().map(|x| (x * 9.0) as i32));
        let ints: Vec<i32> = ints.collect();
        let (y, dx, sums, least) = same_everywhere(|cpu| {
            let (mut y, mut dx) = (dy.clone(), x.clone());
            prod(cpu, dims, &x, &mut y);
            let mut scratch = vec![f32::NAN; x.len()];
            prod_backward(cpu, dims, &x, &dy, (&mut dx, Store::Overwrite), &mut scratch);
            let (mut sums, mut least, mut places) = (vec![9; y.len()], vec![9; y.len()], vec![9; y.len()]);
            sum_ints(cpu, dims, &ints, &mut sums, &mut vec![9; y.len()]).unwrap();
            if n > 0 {
                extreme_ints(cpu, Extreme::Min, dims, &ints, &mut least, &mut places);
            }
            (y, dx, sums, least)
        });
        let row = |j: usize| (0..n).map(move |k| (j / inner * n + k) * inner + j % inner);
        for j in 0..outer * inner {
            let product = |but: usize| {
                let factors = row(j).filter(|at| *at != but).map(|at| f64::from(x[at]));
                factors.product::<f64>()
            };
            assert_close(&[y[j]], &[product(usize::MAX)], 1e-6);
            row(j).for_each(|at| assert_close(&[dx[at]], &[f64::from(dy[j]) * product(at)], 1e-6));
            assert_eq!(sums[j], row(j).map(|at| ints[at]).sum::<i32>());
            assert_eq!(Some(least[j]), row(j).map(|at| ints[at]).min().or(Some(9)));
        }
    }
    let cpu = &crate::everywhere::cpus()[0];
    let dims = Dims { outer: 1, n: 2, inner: 1 };
    assert!(sum_ints(cpu, dims, &[i32::MAX, 1], &mut [0], &mut [0]).is_err());
}
