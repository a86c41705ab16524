//! Sums, products and extremes along the middle dim of `[outer, n, inner]`.

/// Sizes that every suite takes.
pub const SIZES: [[usize; 3]; 5] = [[3, 7, 5], [2, 9, 33], [1, 77, 5], [1, 2, 1500], [2, 99, 33]];

/// What is reduced to each element: the places, in their order.
pub fn rows([outer, n, inner]: [usize; 3]) -> impl Iterator<Item = Vec<usize>> {
    (0..outer * inner).map(move |j| (0..n).map(|k| (j / inner * n + k) * inner + j % inner).collect())
}

/// `f` of the elements that are reduced to each.
pub fn reduced<R>(x: &[f64], sizes: [usize; 3], f: impl Fn(&[f64]) -> R) -> Vec<R> {
    rows(sizes).map(|row| f(&row.into_iter().map(|at| x[at]).collect::<Vec<_>>())).collect()
}

/// Sums.
pub fn sums(x: &[f64], sizes: [usize; 3]) -> Vec<f64> {
    reduced(x, sizes, |row| row.iter().sum())
}

/// Where along the dim the first of the largest or least elements is; NaN goes before every number.
pub fn extremes(x: &[f64], sizes: [usize; 3], least: bool) -> Vec<usize> {
    reduced(x, sizes, |row| {
        let best = (0..row.len()).reduce(|best, k| {
            let before = if least { row[k] < row[best] } else { row[k] > row[best] };
            if before || (row[k].is_nan() && !row[best].is_nan()) { k } else { best }
        });
        best.expect("an extreme of at least one element")
    })
}

/// Running sums, from the last element on where they are reversed.
pub fn running_sums(x: &[f64], sizes: [usize; 3], reverse: bool) -> Vec<f64> {
    let mut y = x.to_vec();
    for mut row in rows(sizes) {
        if reverse {
            row.reverse();
        }
        let mut sum = 0.0;
        for at in row {
            sum += x[at];
            y[at] = sum;
        }
    }
    y
}

/// The squared norms of blocks of elements.
pub fn block_squares(x: &[f64], block: usize) -> Vec<f64> {
    x.chunks(block).map(|block| block.iter().map(|x| x * x).sum()).collect()
}
