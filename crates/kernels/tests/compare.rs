//! Comparisons hold where they should, for floats and integers.

use oarlock_kernels::bf16;
use oarlock_kernels::compare::{Compare, compare, compare_ints};
use oarlock_kernels::walk::Walk;

use crate::everywhere::{same_everywhere, values};

#[test]
fn comparisons_hold_where_they_should_and_never_for_nan() {
    use Compare::*;
    let n = 141 * 239;
    let walk = Walk::new(&[n], [&[1], &[1]]);
    let (mut x, y) = (values::<bf16>(1, n), values::<bf16>(2, n));
    (0..n).step_by(3).for_each(|i| x[i] = y[i]);
    (x[5], x[7]) = (bf16::NAN, bf16::ZERO);
    let ints = |x: &[bf16]| x.iter().map(|x| (x.to_f32() * 2.0) as i32).collect::<Vec<_>>();
    let (xs, ys) = (ints(&x), ints(&y));
    for f in [Eq, Ne, Lt, Le, Gt, Ge, And, Or, Xor] {
        let holds = |x: f32, y: f32| match f {
            Eq => x == y,
            Ne => x != y,
            Lt => x < y,
            Le => x <= y,
            Gt => x > y,
            Ge => x >= y,
            And => x != 0.0 && y != 0.0,
            Or => x != 0.0 || y != 0.0,
            Xor => (x != 0.0) != (y != 0.0),
        };
        let (floats, of_ints) = same_everywhere(|cpu| {
            let (mut floats, mut of_ints) = (vec![9; n], vec![9; n]);
            compare(cpu, f, &walk, &x, &y, &mut floats);
            compare_ints(cpu, f, &walk, &xs, &ys, &mut of_ints);
            (floats, of_ints)
        });
        for i in 0..n {
            assert_eq!(floats[i], i32::from(holds(x[i].to_f32(), y[i].to_f32())), "{f:?} {i}");
            assert_eq!(of_ints[i], i32::from(holds(xs[i] as f32, ys[i] as f32)), "{f:?} {i}");
        }
    }
}
