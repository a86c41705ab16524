//! Sums, products and extremes against plain loops.

use oarlock_kernels::reduce::{
    Dims, Extreme, extreme, extreme_ints, prod, prod_backward, sum, sum_ints, sum_scratch,
};
use oarlock_kernels::{Store, bf16};
use oarlock_reference::reduce::{SIZES, extremes, reduced, rows, sums};

use crate::everywhere::{assert_close, f64s, same_everywhere, sum as plus, values};

#[test]
fn sums_and_maxima_match_plain_loops() {
    let more = [[1, 20_001, 1], [301, 5, 1], [1, 1000, 77], [2, 0, 3]];
    for [outer, n, inner] in SIZES.into_iter().chain(more) {
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
        let sizes = [outer, n, inner];
        let want: Vec<f64> = sums(&f64s(&x), sizes).into_iter().map(|sum| 0.5 * sum).collect();
        assert_close("sums", &written, &want, 2e-5);
        assert_close("sums, added", &added, &plus(&want, &f64s(&start)), 2e-5);
        if n == 0 {
            continue;
        }
        let (largest, places) = same_everywhere(|cpu| {
            let (mut largest, mut places) = (vec![bf16::ZERO; outer * inner], vec![9; outer * inner]);
            extreme(cpu, Extreme::Max, dims, &x, &mut largest, &mut places);
            (largest, places)
        });
        let want = extremes(&f64s(&x), sizes, false);
        assert_eq!(places, want.into_iter().map(|place| place as i32).collect::<Vec<_>>());
        let largest_of = |row: &[f64]| row.iter().copied().fold(f64::MIN, f64::max);
        assert_eq!(f64s(&largest), reduced(&f64s(&x), sizes, largest_of));
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
        for (j, row) in rows([outer, n, inner]).enumerate() {
            let product = |but: usize| {
                let factors = row.iter().filter(|at| **at != but).map(|at| f64::from(x[*at]));
                factors.product::<f64>()
            };
            assert_close("product", &[y[j]], &[product(usize::MAX)], 1e-6);
            let want: Vec<f64> = row.iter().map(|at| f64::from(dy[j]) * product(*at)).collect();
            assert_close("its gradient", &row.iter().map(|at| dx[*at]).collect::<Vec<_>>(), &want, 1e-6);
            assert_eq!(sums[j], row.iter().map(|at| ints[*at]).sum::<i32>());
            assert_eq!(least[j], row.iter().map(|at| ints[*at]).min().unwrap_or(9));
        }
    }
    let cpu = &crate::everywhere::cpus()[0];
    let dims = Dims { outer: 1, n: 2, inner: 1 };
    assert!(sum_ints(cpu, dims, &[i32::MAX, 1], &mut [0], &mut [0]).is_err());
}
