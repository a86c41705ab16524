//! Embedding: rows of a table, by token id.

use oarlock_cuda::geometry;
use oarlock_kernels::{DType, Element, Error, Result, Store, embed};

use crate::cuda::{forms, indexed};
use crate::ops::{with_float, wrong_shape};
use crate::param::Param;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// ids `[..]` (i32), table `[V, I]` → `[.., I]` in the table's dtype.
///
/// # Errors
/// [`Error::Index`] for an id outside `0..V`.
pub fn embedding(ids: &Tensor, table: &Param) -> Result<Tensor> {
    let dtype = table.weight()?.dtype();
    embedding_to(ids, table, dtype)
}

/// As [`embedding`], with the output in `dtype`: the table's, or f32 for the start of a residual stream.
///
/// # Errors
/// [`Error::Index`] for an id outside `0..V`; another dtype.
pub fn embedding_to(ids: &Tensor, table: &Param, dtype: DType) -> Result<Tensor> {
    if ids.dtype() != DType::I32 {
        return Err(Error::DType { op: "embedding", expected: "i32 ids", got: ids.dtype() });
    }
    let &[n_ids, dim @ (1..)] = table.shape().sizes() else {
        return Err(wrong_shape("embedding", "a table of shape [V, I] with I > 0", &table.weight()?));
    };
    let recorder = Recorder::new(&[ids], &[table])?;
    let weight = table.weight()?;
    let mut sizes = ids.sizes().to_vec();
    sizes.push(dim);
    let mut y = Tensor::uninit(&sizes[..], dtype, ids.device(), "activation")?;
    let bytes = 2 * y.len_bytes() as u64;
    let mut launch = ids.device().launch("embedding forward", 0, bytes);
    with_float!(weight.dtype(), "embedding", T => {
        let (rows, weight) = (ids.n_elems(), launch.read::<T>(&weight)?);
        let ids = launch.read::<i32>(ids)?;
        match dtype {
            DType::F32 => {
                let y = launch.write::<f32>(&mut y)?;
                launch.cuda(|gpu| {
                    indexed::check(gpu, "embed_forward", &ids, rows, n_ids)?;
                    forms::gather_rows(gpu, (&weight, T::DTYPE), &ids, (&y, dtype), [rows, dim])
                })?;
                launch.run(move |cpu| embed::embed_forward(cpu, weight.slice(cpu), dim, ids.slice(cpu), y.slice(cpu)))
            }
            _ => {
                let y = launch.write::<T>(&mut y)?;
                launch.cuda(|gpu| {
                    indexed::check(gpu, "embed_forward", &ids, rows, n_ids)?;
                    forms::gather_rows(gpu, (&weight, T::DTYPE), &ids, (&y, dtype), [rows, dim])
                })?;
                launch.run(move |cpu| embed::embed_forward(cpu, weight.slice(cpu), dim, ids.slice(cpu), y.slice(cpu)))
            }
        }
    })?;
    drop(weight);
    Ok(Recorder::record(recorder, y, |_| EmbeddingBackward { ids: ids.detach(), table: table.clone() }))
}

struct EmbeddingBackward {
    ids: Tensor,
    table: Param,
}

impl Function for EmbeddingBackward {
    fn backward(self: Box<Self>, dy: Tensor, _cx: &mut Backward<'_>) -> Result<()> {
        let Some(mut slot) = self.table.grad()? else { return Ok(()) };
        let device = dy.device().clone();
        let (store, dim) = (slot.store, dy.shape().last());
        let (n_rows, vocab) = (self.ids.n_elems(), self.table.shape().sizes()[0]);
        let mut launch = device.launch("embedding backward", 0, 2 * dy.len_bytes() as u64);
        with_float!(dy.dtype(), "embedding", T => {
            let (dy, ids) = (launch.read::<T>(&dy)?, launch.read::<i32>(&self.ids)?);
            let table = launch.grad(&mut slot)?;
            launch.cuda(|gpu| {
                if store == Store::Overwrite {
                    gpu.fill(&table, 0)?;
                }
                if n_rows == 0 {
                    return Ok(());
                }
                let rows = gpu.by_id(gpu.slice(&ids)?, n_rows, vocab)?;
                let n_runs = n_rows / geometry::EMBED_RUN;
                let runs = gpu.temporary(4 * n_runs * dim)?;
                let runs = runs.part(0, 4 * n_runs * dim)?;
                if n_runs > 0 {
                    let call = gpu.kernel("embed_runs", &[T::DTYPE])?.view(&dy).slice(rows.order()?);
                    let call = call.slice(rows.starts()?).slice(runs).u32(n_rows).u32(dim);
                    call.run(geometry::embed_runs(n_rows, dim))?;
                }
                let call = gpu.kernel("embed_backward", &[T::DTYPE])?.view(&dy).slice(rows.order()?);
                let call = call.slice(rows.starts()?).slice(rows.unique()?).slice(runs).view(&table);
                call.u32(n_rows).u32(dim).run(geometry::elements(n_rows * dim.next_multiple_of(8)))
            })?;
            launch.run(move |cpu| {
                embed::embed_backward(cpu, dy.slice(cpu), dim, ids.slice(cpu), (table.slice(cpu), store))
            })
        })
    }
}
