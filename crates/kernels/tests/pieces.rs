//! Output slices that are cut in step.

use oarlock_kernels::Par;
use oarlock_kernels::pieces::{cut, for_pieces};

#[test]
fn pieces_of_uneven_slices_cover_each_element_once() {
    for par in [Par::solo(), Par::threads(3).unwrap()] {
        let (mut a, mut b, mut c) = (vec![0u8; 103], vec![0u16; 52], vec![0u8; 2]);
        for_pieces(&par, 11, (cut(&mut a, 10), cut(&mut b, 5), Some(cut(&mut c, 1))), |i, (a, b, c)| {
            a.iter_mut().for_each(|x| *x += i as u8 + 1);
            b.iter_mut().for_each(|x| *x += 1);
            c.unwrap().iter_mut().for_each(|x| *x += 1);
        });
        assert!(a.iter().enumerate().all(|(j, &x)| usize::from(x) == j / 10 + 1));
        assert!(b.iter().all(|&x| x == 1) && c == [1, 1]);
    }
}
