//! Token embedding: gather rows of a table, and scatter their gradients back into it.

use super::elementwise::add_task;
use super::pieces::task_rows;
use super::{Cpu, Store};
use crate::dtype::Float;
use crate::error::{Error, Result};

/// `y[row] = table[ids[row]]`.
///
/// # Errors
/// An id outside the table; then nothing was written.
pub fn embed_forward<T: Float, U: Float>(
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

/// `table[ids[row]] = x[row]` for different ids; other rows stay.
///
/// # Errors
/// An id outside the table; then nothing was written.
pub fn place_rows<T: Float>(x: &[T], dim: usize, ids: &[i32], table: &mut [T]) -> Result<()> {
    check("place_rows", ids, table.len(), x.len(), dim)?;
    for (x, &id) in x.chunks_exact(dim).zip(ids) {
        table[id as usize * dim..][..dim].copy_from_slice(x);
    }
    Ok(())
}

/// `d_table[ids[row]] += dy[row]`; [`Store::Overwrite`] clears the table first. Rows with the same id are added in
/// their order: each thread owns a range of the table and looks through all ids for its own.
///
/// # Errors
/// An id outside the table; then nothing was written.
pub fn embed_backward<T: Float>(
    cpu: &Cpu,
    dy: &[T],
    dim: usize,
    ids: &[i32],
    (d_table, store): (&mut [f32], Store),
) -> Result<()> {
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

fn check(op: &'static str, ids: &[i32], table: usize, rows: usize, dim: usize) -> Result<()> {
    assert!(dim > 0 && table.is_multiple_of(dim) && rows == ids.len() * dim, "{op}: lengths");
    let bound = table / dim;
    match ids.iter().position(|&id| id < 0 || id as usize >= bound) {
        Some(position) => Err(Error::Index { op, index: i64::from(ids[position]), position, bound }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{cpus, same_everywhere, values};
    use crate::dtype::bf16;

    #[test]
    fn gather_and_scatter_match_plain_loops() {
        let (vocab, dim, rows) = (37, 19, 3000);
        let table = values::<bf16>(1, vocab * dim);
        let ids: Vec<i32> = (0..rows).map(|r| (r * r % vocab) as i32).collect();
        let dy = values::<bf16>(2, rows * dim);
        let start = values::<f32>(3, vocab * dim);
        let (y, added, written) = same_everywhere(|cpu| {
            let (mut y, mut added, mut written) = (dy.clone(), start.clone(), start.clone());
            embed_forward(cpu, &table, dim, &ids, &mut y).unwrap();
            embed_backward(cpu, &dy, dim, &ids, (&mut added, Store::Add)).unwrap();
            embed_backward(cpu, &dy, dim, &ids, (&mut written, Store::Overwrite)).unwrap();
            (y, added, written)
        });
        let (mut want_added, mut want_written) = (start, vec![0.0f32; vocab * dim]);
        for (row, &id) in ids.iter().enumerate() {
            for j in 0..dim {
                let (to, from) = (id as usize * dim + j, row * dim + j);
                assert_eq!(y[from], table[to]);
                want_added[to] += dy[from].to_f32();
                want_written[to] += dy[from].to_f32();
            }
        }
        assert_eq!((added, written), (want_added, want_written));
    }

    #[test]
    fn ids_outside_the_table_are_named() {
        let (cpu, mut y) = (&cpus()[0], [0.0f32; 2]);
        let error = embed_forward(cpu, &[1.0f32; 3], 1, &[2, 3], &mut y).unwrap_err();
        assert_eq!(error.to_string(), "embed_forward: index 3 at position 1 is outside 0..3");
        assert!(embed_backward(cpu, &[1.0f32; 2], 1, &[-1, 0], (&mut [0.0; 3], Store::Add)).is_err());
        assert_eq!(y, [0.0; 2]);
    }
}
