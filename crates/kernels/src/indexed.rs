//! Elements and rows by their index along one dim: gather, scatter, and sums of what meets at one place.
//!
//! What is written to one place is written or added in the order of the indices, whatever the number of threads.

use bytemuck::{Pod, Zeroable};

use super::Cpu;
use super::pieces::{TASK_ELEMS, task_rows};
use super::reduce::Dims;
use super::walk::Walk;
use crate::error::{Error, Result};

/// How a tensor of indices lies over a tensor of data, of whose elements each index names one.
#[derive(Clone, Debug)]
pub struct Along {
    /// The op, for errors.
    pub op: &'static str,
    /// Both fall apart into so many blocks, whose indices point into the block of data with the same number.
    pub n_blocks: usize,
    /// The order of the indices of a block, and where in the block of data the place with index 0 is.
    pub walk: Walk<1>,
    /// The size of the dim that is indexed.
    pub n: usize,
    /// The elements from one index to the next.
    pub step: usize,
}

impl Along {
    /// Calls `f(position, place)` for the indices of a block, in order.
    fn for_each(&self, ids: &[i32], mut f: impl FnMut(usize, usize)) {
        let [step] = self.walk.steps();
        self.walk.for_ranges(0, ids.len(), |range, [start]| {
            for (k, position) in range.enumerate() {
                f(position, start + k * step + ids[position] as usize * self.step);
            }
        });
    }

    /// Runs `f(first position, indices, block of data)` for each block.
    fn in_blocks<W: Send>(
        &self,
        cpu: &Cpu,
        ids: &[i32],
        data: &mut [W],
        f: impl Fn(usize, &[i32], &mut [W]) + Sync + Send,
    ) -> Result<()> {
        check(self.op, ids, self.n)?;
        if ids.is_empty() {
            return Ok(());
        }
        let (full, len) = (data.len() / self.n_blocks, ids.len() / self.n_blocks);
        let per_task = (TASK_ELEMS / full.max(len)).max(1);
        cpu.par.chunks_mut(data, per_task * full, |i, blocks| {
            for (j, block) in blocks.chunks_mut(full).enumerate() {
                let first = (i * per_task + j) * len;
                f(first, &ids[first..first + len], block);
            }
        });
        Ok(())
    }
}

/// Each index in `0..n`.
fn check(op: &'static str, ids: &[i32], n: usize) -> Result<()> {
    match ids.iter().position(|&id| usize::try_from(id).map_or(true, |id| id >= n)) {
        Some(position) => Err(Error::Index { op, index: i64::from(ids[position]), position, bound: n }),
        None => Ok(()),
    }
}

/// `y[p] = x[place of index p]`, for indices in one block.
///
/// # Errors
/// An index outside of the dim; then nothing was written.
pub fn gather<W: Pod + Send + Sync>(
    cpu: &Cpu,
    along: &Along,
    x: &[W],
    ids: &[i32],
    y: &mut [W],
) -> Result<()> {
    assert!(along.n_blocks == 1 && ids.len() == y.len(), "gather: lengths");
    check(along.op, ids, along.n)?;
    let [step] = along.walk.steps();
    cpu.par.chunks_mut(y, TASK_ELEMS, |i, y| {
        let ids = &ids[i * TASK_ELEMS..];
        along.walk.for_ranges(i * TASK_ELEMS, y.len(), |range, [start]| {
            for (k, (y, &id)) in y[range.clone()].iter_mut().zip(&ids[range]).enumerate() {
                *y = x[start + k * step + id as usize * along.step];
            }
        });
    });
    Ok(())
}

/// `y[place of index p] = source[p]`; of several, the last stays.
///
/// # Errors
/// An index outside of the dim; then nothing was written.
pub fn scatter<W: Pod + Send + Sync>(
    cpu: &Cpu,
    along: &Along,
    source: &[W],
    ids: &[i32],
    y: &mut [W],
) -> Result<()> {
    assert_eq!(source.len(), ids.len(), "scatter: lengths");
    along.in_blocks(cpu, ids, y, |first, ids, y| {
        along.for_each(ids, |position, place| y[place] = source[first + position]);
    })
}

/// `y[place of index p]` and `source[p]` through `add`.
///
/// # Errors
/// An index outside of the dim; then nothing was written.
pub fn scatter_add<S: Pod + Sync, D: Pod + Send>(
    cpu: &Cpu,
    along: &Along,
    source: &[S],
    ids: &[i32],
    y: &mut [D],
    add: impl Fn(&mut D, S) + Sync + Send,
) -> Result<()> {
    assert_eq!(source.len(), ids.len(), "scatter_add: lengths");
    along.in_blocks(cpu, ids, y, |first, ids, y| {
        along.for_each(ids, |position, place| add(&mut y[place], source[first + position]));
    })
}

/// The gradients of [`scatter`]: those of the source are taken out of `dy`, which becomes that of what was written
/// over. Of several sources of one place, the last takes it.
///
/// # Errors
/// An index outside of the dim.
pub fn scatter_backward<W: Pod + Zeroable>(
    along: &Along,
    ids: &[i32],
    dy: &mut [W],
    d_source: &mut [W],
) -> Result<()> {
    check(along.op, ids, along.n)?;
    let (full, len) = (dy.len() / along.n_blocks.max(1), ids.len() / along.n_blocks.max(1));
    for position in (0..ids.len()).rev() {
        along.walk.for_ranges(position % len, 1, |_, [start]| {
            let place = position / len * full + start + ids[position] as usize * along.step;
            d_source[position] = std::mem::replace(&mut dy[place], W::zeroed());
        });
    }
    Ok(())
}

/// `y[o, j] = x[o, ids[j]]`, each a row of `inner` elements.
///
/// # Errors
/// An index outside of the dim; then nothing was written.
pub fn select_rows<W: Pod + Send + Sync>(
    cpu: &Cpu,
    op: &'static str,
    dims: Dims,
    x: &[W],
    ids: &[i32],
    y: &mut [W],
) -> Result<()> {
    let Dims { outer, n, inner } = dims;
    assert!(x.len() == dims.n_elems() && y.len() == outer * ids.len() * inner, "{op}: lengths");
    check(op, ids, n)?;
    if y.is_empty() {
        return Ok(());
    }
    let task = task_rows(inner);
    cpu.par.chunks_mut(y, task * inner, |i, y| {
        for (k, y) in y.chunks_exact_mut(inner).enumerate() {
            let (o, j) = ((i * task + k) / ids.len(), (i * task + k) % ids.len());
            y.copy_from_slice(&x[(o * n + ids[j] as usize) * inner..][..inner]);
        }
    });
    Ok(())
}

/// `y[o, ids[j]]` and `x[o, j]`, each a row of `inner` elements, through `add`.
///
/// # Errors
/// An index outside of the dim; then nothing was written.
pub fn add_rows<S: Pod + Sync, D: Pod + Send>(
    cpu: &Cpu,
    op: &'static str,
    dims: Dims,
    x: &[S],
    ids: &[i32],
    y: &mut [D],
    add: impl Fn(&[S], &mut [D]) + Sync + Send,
) -> Result<()> {
    let Dims { outer, n, inner } = dims;
    assert!(y.len() == dims.n_elems() && x.len() == outer * ids.len() * inner, "{op}: lengths");
    check(op, ids, n)?;
    if x.is_empty() {
        return Ok(());
    }
    // Each thread owns rows of y and looks through all indices for its own: whole blocks, or, where there is one block,
    // more ranges of rows than threads, since some rows are more frequent.
    let n_ranges = if outer > 1 || cpu.par.n_threads() == 1 { 1 } else { 8 * cpu.par.n_threads() };
    let range = n.div_ceil(n_ranges);
    cpu.par.chunks_mut(y, range * inner, |i, y| {
        let (o, first) = if outer > 1 { (i, 0) } else { (0, i * range) };
        let owned = first..first + y.len() / inner;
        let rows = x[o * ids.len() * inner..].chunks_exact(inner);
        for (&id, x) in ids.iter().zip(rows).filter(|(id, _)| owned.contains(&(**id as usize))) {
            add(x, &mut y[(id as usize - first) * inner..][..inner]);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{same_everywhere, values};

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
        for (a, n, m, b) in
            [(1, 5, 40_000, 1), (3, 7, 11, 5), (4001, 3, 4, 2), (2, 1, 0, 3), (1, 40, 301, 77)]
        {
            let x = values::<f32>(1, a * n * b);
            let source = values::<f32>(2, a * m * b);
            let ids: Vec<i32> = (0..a * m * b).map(|p| (p * p / 3 % n) as i32).collect();
            let (blocks, whole) = (along(a, n, m, b, true), along(a, n, m, b, false));
            let got = same_everywhere(|cpu| {
                let (mut gathered, mut written, mut added) = (source.clone(), x.clone(), x.clone());
                let (mut rest, mut taken) = (x.clone(), source.clone());
                gather(cpu, &whole, &x, &ids, &mut gathered).unwrap();
                scatter(cpu, &blocks, &source, &ids, &mut written).unwrap();
                scatter_add(cpu, &blocks, &source, &ids, &mut added, |y, x| *y += x).unwrap();
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
        for (outer, n, m, inner) in
            [(1, 37, 3000, 19), (5, 7, 40, 3), (300, 2, 3, 1), (2, 3, 4, 0), (1, 9, 0, 2)]
        {
            let dims = Dims { outer, n, inner };
            let (x, rows) = (values::<f32>(1, dims.n_elems()), values::<f32>(2, outer * m * inner));
            let ids: Vec<i32> = (0..m).map(|j| (j * j % n) as i32).collect();
            let got = same_everywhere(|cpu| {
                let (mut selected, mut added) = (rows.clone(), x.clone());
                select_rows(cpu, "test", dims, &x, &ids, &mut selected).unwrap();
                let add = |x: &[f32], y: &mut [f32]| y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
                add_rows(cpu, "test", dims, &rows, &ids, &mut added, add).unwrap();
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
}
