//! Operands are broadcast, and the bits are those of plain loops.

use oarlock_kernels::binary::{Binary, binary};
use oarlock_kernels::walk::Walk;

use crate::everywhere::{same_everywhere, values};

#[test]
fn operands_are_spread() {
    let (rows, cols) = (141, 239);
    let (x, y) = (values::<f32>(1, rows * cols), values::<f32>(2, rows * cols));
    for (x_strides, y_strides) in
        [([cols, 1], [cols, 1]), ([cols, 1], [0, 1]), ([1, 0], [cols, 1]), ([0, 0], [cols, 1])]
    {
        let walk = Walk::new(&[rows, cols], [&x_strides, &y_strides]);
        let outs = same_everywhere(|cpu| {
            [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div].map(|f| {
                let mut out = x.clone();
                binary(cpu, f, &walk, &x, &y, &mut out);
                out
            })
        });
        for i in 0..rows * cols {
            let at = |s: [usize; 2]| i / cols * s[0] + i % cols * s[1];
            let (x, y) = (x[at(x_strides)], y[at(y_strides)]);
            let want = [x + y, x - y, x * y, x / y].map(f32::to_bits);
            assert_eq!(outs.each_ref().map(|out| out[i].to_bits()), want);
        }
    }
}
