//! Elements and rows by index against plain loops.

use oarlock_kernels::indexed::{
    Along, add_rows, gather, scatter, scatter_add, scatter_backward, select_rows,
};
use oarlock_kernels::reduce::Dims;
use oarlock_kernels::walk::Walk;

use crate::everywhere::{same_everywhere, values};

/// Indices of shape [a, m, b] over data [a, n, b].
fn along(a: usize, n: usize, m: usize, b: usize, in_blocks: bool) -> Along {
    let (n_blocks, walk) = if in_blocks {
        (a, Walk::new(&[m, b], [&[0, 1]]))
    } else {
        (1, Walk::new(&[a, m, b], [&[n * b, 0, 1]]))
    };
    Along { op: "test", n_blocks, walk, n, step: b }
}

#[test]
fn elements_by_index_match_plain_loops() {
    for (a, n, m, b) in [(1, 5, 40_000, 1), (3, 7, 11, 5), (4001, 3, 4, 2), (2, 1, 0, 3), (1, 40, 301, 77)] {
        let x = values::<f32>(1, a * n * b);
        let source = values::<f32>(2, a * m * b);
        let ids: Vec<i32> = (0..a * m * b).map(|p| (p * p / 3 % n) as i32).collect();
        let (blocks, whole) = (along(a, n, m, b, true), along(a, n, m, b, false));
        let got = same_everywhere(|cpu| {
            let (mut gathered, mut written, mut added) = (source.clone(), x.clone(), x.clone());
            let (mut rest, mut taken) = (x.clone(), source.clone());
            gather(cpu, &whole, &x, &ids, &mut gathered).unwrap();
            scatter(cpu, &blocks, &source, &ids, &mut written).unwrap();
            scatter_add(cpu, &blocks, &source, &ids, &mut added).unwrap();
            scatter_backward(&blocks, &ids, &mut rest, &mut taken).unwrap();
            (gathered, written, added, rest, taken)
        });
        let mut want = (source.clone(), x.clone(), x.clone(), x.clone(), vec![0.0; source.len()]);
        let place = |p: usize| (p / (m * b) * n + ids[p] as usize) * b + p % b;
        let mut last = vec![None; x.len()];
        for p in 0..ids.len() {
            want.0[p] = x[place(p)];
            want.1[place(p)] = source[p];
            want.2[place(p)] += source[p];
            last[place(p)] = Some(p);
        }
        for (place, p) in last.iter().enumerate().filter_map(|(place, p)| Some((place, (*p)?))) {
            want.4[p] = std::mem::take(&mut want.3[place]);
        }
        assert!(got == want, "{a} {n} {m} {b}");
    }
}

#[test]
fn rows_by_index_match_plain_loops() {
    for (outer, n, m, inner) in [(1, 37, 3000, 19), (5, 7, 40, 3), (300, 2, 3, 1), (2, 3, 4, 0), (1, 9, 0, 2)]
    {
        let dims = Dims { outer, n, inner };
        let (x, rows) = (values::<f32>(1, dims.n_elems()), values::<f32>(2, outer * m * inner));
        let ids: Vec<i32> = (0..m).map(|j| (j * j % n) as i32).collect();
        let got = same_everywhere(|cpu| {
            let (mut selected, mut added) = (rows.clone(), x.clone());
            select_rows(cpu, "test", dims, &x, &ids, &mut selected).unwrap();
            add_rows(cpu, "test", dims, &rows, &ids, &mut added).unwrap();
            (selected, added)
        });
        let mut want = (rows.clone(), x.clone());
        for p in 0..rows.len() {
            let place = (p / (m * inner) * n + ids[p / inner % m] as usize) * inner + p % inner;
            want.0[p] = x[place];
            want.1[place] += rows[p];
        }
        assert!(got == want, "{outer} {n} {m} {inner}");
    }
}
