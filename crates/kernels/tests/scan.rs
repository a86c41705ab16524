//! Running sums against plain loops.

use oarlock_kernels::reduce::Dims;
use oarlock_kernels::scan::cumsum;
use oarlock_reference::reduce::running_sums;

use crate::everywhere::{f64s, same_everywhere, values};

#[test]
fn running_sums_match_plain_loops() {
    for (outer, n, inner) in [(1, 40_001, 1), (3, 7, 5), (4000, 9, 1), (2, 300, 33), (0, 3, 1), (2, 0, 3)] {
        let dims = Dims { outer, n, inner };
        let x = values::<f32>(1, dims.n_elems());
        for reverse in [false, true] {
            let got = same_everywhere(|cpu| {
                let (mut y, mut carry) = (vec![0.0; x.len()], vec![7.0; outer * inner]);
                cumsum(cpu, dims, reverse, &x, &mut y, &mut carry);
                y
            });
            let want = running_sums(&f64s(&x), [outer, n, inner], reverse);
            assert_eq!(got, want.into_iter().map(|sum| sum as f32).collect::<Vec<_>>());
        }
    }
}
