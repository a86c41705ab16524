//! The order of operands that broadcast.

use oarlock_kernels::walk::Walk;

#[test]
fn even_dims_are_merged_and_every_element_is_found() {
    let dense = Walk::new(&[2, 1, 3, 4], [&[12, 12, 4, 1], &[12, 0, 4, 1]]);
    assert_eq!(dense, Walk::new(&[24], [&[1], &[1]]));
    let turned = Walk::new(&[3, 2, 4], [&[4, 12, 1]]);
    for first in 0..24 {
        let mut seen = vec![0; 24 - first];
        turned.for_rows(first, &mut seen, |out, [start]| {
            out.iter_mut().enumerate().for_each(|(i, out)| *out = start + i * turned.steps()[0]);
        });
        let want = (first..24).map(|i| (i / 8) * 4 + (i / 4 % 2) * 12 + i % 4);
        assert!(seen.into_iter().eq(want));
    }
    let scalar = Walk::new(&[], [&[]]);
    scalar.for_rows(0, &mut [0], |out, start| assert_eq!((out.len(), start), (1, [0])));
}
