//! Token embedding: gather rows of a table, and scatter their gradients back into it.

use crate::dtype::{Float, bf16, f16};
use crate::elementwise::add_task;
use crate::error::{Error, Result};
use crate::instances::instances;
use crate::pieces::task_rows;
use crate::{Cpu, Store};

instances! {
    /// `y[row] = table[ids[row]]`.
    ///
    /// # Errors
    /// An id outside the table; then nothing was written.
    pub fn embed_forward[T: Float, U: Float; [f32, f32] [bf16, bf16] [bf16, f32] [f16, f16] [f16, f32]](
        cpu: &Cpu,
        table: &[T],
        dim: usize,
        ids: &[i32],
        y: &mut [U],
    ) -> Result<()> {
        check("embed_forward", ids, table.len(), y.len(), dim)?;
        let task = task_rows(dim);
        cpu.par.chunks_mut(y, task * dim, |i, y| {
            for (y, &id) in y.chunks_exact_mut(dim).zip(&ids[i * task..]) {
                let from = id as usize * dim;
                y.iter_mut().zip(&table[from..from + dim]).for_each(|(y, x)| *y = U::from_f32(x.to_f32()));
            }
        });
        Ok(())
    }
}

instances! {
    /// `table[ids[row]] = x[row]`, rounded, for different ids; other rows stay.
    ///
    /// # Errors
    /// An id outside the table; then nothing was written.
    pub fn place_rows[T: Float](x: &[f32], dim: usize, ids: &[i32], table: &mut [T]) -> Result<()> {
        check("place_rows", ids, table.len(), x.len(), dim)?;
        for (x, &id) in x.chunks_exact(dim).zip(ids) {
            let row = &mut table[id as usize * dim..][..dim];
            row.iter_mut().zip(x).for_each(|(to, &x)| *to = T::from_f32(x));
        }
        Ok(())
    }
}

instances! {
    /// `d_table[ids[row]] += dy[row]`; [`Store::Overwrite`] clears the table first. Rows with the same id are added in
    /// their order: each thread owns a range of the table and looks through all ids for its own.
    ///
    /// # Errors
    /// An id outside the table; then nothing was written.
    pub fn embed_backward[T: Float](
        cpu: &Cpu,
        dy: &[T],
        dim: usize,
        ids: &[i32],
        d_table: (&mut [f32], Store),
    ) -> Result<()> {
        let (d_table, store) = d_table;
        check("embed_backward", ids, d_table.len(), dy.len(), dim)?;
        // More ranges than threads, since low ids are frequent in most vocabularies.
        let n_ranges = if cpu.par.n_threads() == 1 { 1 } else { 8 * cpu.par.n_threads() };
        let range = (d_table.len() / dim).div_ceil(n_ranges).max(1);
        cpu.par.chunks_mut(d_table, range * dim, |i, d_rows| {
            if store == Store::Overwrite {
                d_rows.fill(0.0);
            }
            let first = i * range;
            let owned = first..first + d_rows.len() / dim;
            for (&id, dy) in ids.iter().zip(dy.chunks_exact(dim)) {
                let id = id as usize;
                if owned.contains(&id) {
                    let from = (id - first) * dim;
                    add_task(cpu.isa, dy, &mut d_rows[from..from + dim]);
                }
            }
        });
        Ok(())
    }
}

fn check(op: &'static str, ids: &[i32], table: usize, rows: usize, dim: usize) -> Result<()> {
    assert!(dim > 0 && table.is_multiple_of(dim) && rows == ids.len() * dim, "{op}: lengths");
    let bound = table / dim;
    match ids.iter().position(|&id| id < 0 || id as usize >= bound) {
        Some(position) => Err(Error::Index { op, index: i64::from(ids[position]), position, bound }),
        None => Ok(()),
    }
}
