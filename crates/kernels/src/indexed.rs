//! Elements and rows by their index along one dim: gather, scatter, and sums of what meets at one place.
//!
//! What is written to one place is written or added in the order of the indices, whatever the number of threads.

use crate::Cpu;
use crate::dtype::{Float, Word};
use crate::elementwise::add_task;
use crate::error::{Error, Result};
use crate::instances::instances;
use crate::pieces::{TASK_ELEMS, task_rows};
use crate::reduce::Dims;
use crate::walk::Walk;

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

instances! {
    /// `y[p] = x[place of index p]`, for indices in one block.
    ///
    /// # Errors
    /// An index outside of the dim; then nothing was written.
    pub fn gather[W: Word](
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
}

instances! {
    /// `y[place of index p] = source[p]`; of several, the last stays.
    ///
    /// # Errors
    /// An index outside of the dim; then nothing was written.
    pub fn scatter[W: Word](
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
}

instances! {
    /// `y[place of index p] += source[p]`.
    ///
    /// # Errors
    /// An index outside of the dim; then nothing was written.
    pub fn scatter_add[T: Float](
        cpu: &Cpu, along: &Along, source: &[T], ids: &[i32], y: &mut [f32],
    ) -> Result<()> {
        assert_eq!(source.len(), ids.len(), "scatter_add: lengths");
        along.in_blocks(cpu, ids, y, |first, ids, y| {
            along.for_each(ids, |position, place| y[place] += source[first + position].to_f32());
        })
    }
}

/// The same for integers, which wrap around where they leave their range.
///
/// # Errors
/// An index outside of the dim; then nothing was written.
pub fn scatter_add_ints(cpu: &Cpu, along: &Along, source: &[i32], ids: &[i32], y: &mut [i32]) -> Result<()> {
    assert_eq!(source.len(), ids.len(), "scatter_add: lengths");
    along.in_blocks(cpu, ids, y, |first, ids, y| {
        along.for_each(ids, |position, place| y[place] = y[place].wrapping_add(source[first + position]));
    })
}

/// `y[place of index p] = value`.
///
/// # Errors
/// An index outside of the dim; then nothing was written.
pub fn scatter_value(cpu: &Cpu, along: &Along, value: i32, ids: &[i32], y: &mut [i32]) -> Result<()> {
    along.in_blocks(cpu, ids, y, |_, ids, y| along.for_each(ids, |_, place| y[place] = value))
}

instances! {
    /// The gradients of [`scatter`]: those of the source are taken out of `dy`, which becomes that of what was written
    /// over. Of several sources of one place, the last takes it.
    ///
    /// # Errors
    /// An index outside of the dim.
    pub fn scatter_backward[W: Word](
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
}

instances! {
    /// `y[o, j] = x[o, ids[j]]`, each a row of `inner` elements.
    ///
    /// # Errors
    /// An index outside of the dim; then nothing was written.
    pub fn select_rows[W: Word](
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
}

instances! {
    /// `y[o, ids[j]] += x[o, j]`, each a row of `inner` elements.
    ///
    /// # Errors
    /// An index outside of the dim; then nothing was written.
    pub fn add_rows[T: Float](
        cpu: &Cpu, op: &'static str, dims: Dims, x: &[T], ids: &[i32], y: &mut [f32],
    ) -> Result<()> {
        join_rows(cpu, op, dims, x, ids, y, |x, y| add_task(cpu.isa, x, y))
    }
}

/// The same for integers, which wrap around where they leave their range.
///
/// # Errors
/// An index outside of the dim; then nothing was written.
pub fn add_rows_ints(
    cpu: &Cpu,
    op: &'static str,
    dims: Dims,
    x: &[i32],
    ids: &[i32],
    y: &mut [i32],
) -> Result<()> {
    let add = |x: &[i32], y: &mut [i32]| y.iter_mut().zip(x).for_each(|(y, x)| *y = y.wrapping_add(*x));
    join_rows(cpu, op, dims, x, ids, y, add)
}

/// `y[o, ids[j]]` and `x[o, j]`, each a row of `inner` elements, through `add`.
fn join_rows<S: Sync, D: Send>(
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
