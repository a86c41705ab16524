//! Elements that move, against plain loops.

use oarlock_kernels::copy::{
    Places, Window, add_places, add_window, keep_in_rows, read_window, reversed, select, strided,
    write_places, write_window,
};
use oarlock_kernels::reduce::Dims;
use oarlock_kernels::walk::Walk;

use crate::everywhere::{same_everywhere, values};

#[test]
fn windows_are_read_written_and_added() {
    for (n_blocks, full, first, len) in [(3, 7, 2, 4), (4000, 9, 0, 3), (1, 40_000, 5, 39_995), (2, 3, 3, 0)]
    {
        let window = Window { full, first, len };
        let (whole, part) = (values::<f32>(1, n_blocks * full), values::<f32>(2, n_blocks * len));
        let (read, written, added) = same_everywhere(|cpu| {
            let (mut read, mut written, mut added) = (part.clone(), whole.clone(), whole.clone());
            read_window(cpu, window, &whole, &mut read);
            write_window(cpu, window, &part, &mut written);
            add_window(cpu, window, &part, &mut added);
            (read, written, added)
        });
        for i in 0..n_blocks * full {
            let (block, at) = (i / full, i % full);
            let inside = (first..first + len).contains(&at);
            let j = block * len + at.saturating_sub(first);
            let (w, a) = if inside { (part[j], whole[i] + part[j]) } else { (whole[i], whole[i]) };
            assert_eq!((written[i], added[i]), (w, a));
            assert!(!inside || read[j] == whole[i]);
        }
    }
}

#[test]
fn transposes_and_expansions_at_odd_sizes() {
    let (rows, cols) = (131, 257);
    let x: Vec<u32> = (0..rows * cols).map(|i| i as u32).collect();
    let (turned, spread) = same_everywhere(|cpu| {
        let (mut turned, mut spread) = (vec![0; x.len()], vec![0; x.len()]);
        strided(cpu, &Walk::new(&[cols, rows], [&[1, cols]]), &x, &mut turned);
        strided(cpu, &Walk::new(&[rows, cols], [&[1, 0]]), &x, &mut spread);
        (turned, spread)
    });
    for i in 0..rows * cols {
        assert_eq!(turned[i], x[i % rows * cols + i / rows]);
        assert_eq!(spread[i], x[i / cols]);
    }
}

#[test]
fn rows_are_reversed_and_cut() {
    for (outer, n, inner) in [(3, 7, 5), (1, 20_001, 1), (4000, 2, 3), (2, 0, 4), (2, 3, 0)] {
        let dims = Dims { outer, n, inner };
        let x = values::<f32>(1, dims.n_elems());
        let (turned, kept) = same_everywhere(|cpu| {
            let (mut turned, mut kept) = (vec![9.0; x.len()], vec![9.0; x.len()]);
            reversed(cpu, dims, &x, &mut turned);
            keep_in_rows(cpu, inner, &x, &mut kept, &|row| row % 2..inner.max(row % 2));
            (turned, kept)
        });
        for i in 0..x.len() {
            let (row, column) = (i / inner, i % inner);
            assert_eq!(turned[i], x[(row / n * n + n - 1 - row % n) * inner + column]);
            assert_eq!(kept[i], if column >= row % 2 { x[i] } else { 0.0 });
        }
    }
}

#[test]
fn places_are_written_and_added_to() {
    // Every third element of the second half of each row, in `n` rows of 40.
    for n in [1, 7, 2001] {
        let places = Places { n_blocks: n, first: 20, walk: Walk::new(&[7], [&[3]]) };
        let (whole, part) = (values::<f32>(1, n * 40), values::<f32>(2, n * 7));
        let (written, added) = same_everywhere(|cpu| {
            let (mut written, mut added) = (whole.clone(), whole.clone());
            write_places(cpu, &places, &part, &mut written);
            add_places(cpu, &places, &part, &mut added);
            (written, added)
        });
        for (i, &old) in whole.iter().enumerate() {
            let at = (i % 40).checked_sub(20).filter(|at| at % 3 == 0).map(|at| part[i / 40 * 7 + at / 3]);
            assert_eq!(written[i], at.unwrap_or(old));
            assert_eq!(added[i], at.map_or(old, |part| old + part));
        }
    }
}

#[test]
fn a_mask_chooses() {
    let (x, y, mask) = ([1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0], [1, 0, -7]);
    let outs = same_everywhere(|cpu| {
        let mut outs = [[0.0f32; 3]; 3];
        select(cpu, &mask, Some(&x), Some(&y), 9.0, &mut outs[0]);
        select(cpu, &mask, None, Some(&y), 9.0, &mut outs[1]);
        select(cpu, &mask, Some(&x), None, 9.0, &mut outs[2]);
        outs
    });
    assert_eq!(outs, [[1.0, 5.0, 3.0], [9.0, 5.0, 9.0], [1.0, 9.0, 3.0]]);
}
