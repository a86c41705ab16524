//! An update of low rank in numbers: added to rows of a weight.

use super::adaptation::LowRank;

/// Adds `scale · B·A` to rows of a weight, from `first` on. `a` is `[rank, inputs]`, `b` `[outputs, rank]`.
pub(super) fn add_update(a: &[f32], b: &[f32], module: LowRank, first: usize, rows: &mut [f32]) {
    let n_in = a.len() / module.rank;
    let mut update = vec![0.0; n_in];
    for (index, row) in rows.chunks_exact_mut(n_in).enumerate() {
        update.fill(0.0);
        let weights = &b[(first + index) * module.rank..][..module.rank];
        for (weight, a) in weights.iter().zip(a.chunks_exact(n_in)) {
            update.iter_mut().zip(a).for_each(|(sum, a)| *sum += weight * a);
        }
        row.iter_mut().zip(&update).for_each(|(w, sum)| *w += module.scale * sum);
    }
}
