//! Embedding: rows of a table, by token id.

use crate::cpu::embed;
use crate::device::Kind;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{with_float, wrong_shape};
use crate::param::Param;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// ids `[..]` (i32), table `[V, I]` → `[.., I]`.
///
/// # Errors
/// [`Error::Index`] for an id outside `0..V`.
pub fn embedding(ids: &Tensor, table: &Param) -> Result<Tensor> {
    if ids.dtype() != DType::I32 {
        return Err(Error::DType { op: "embedding", expected: "i32 ids", got: ids.dtype() });
    }
    let &[_, dim @ (1..)] = table.shape().sizes() else {
        return Err(wrong_shape("embedding", "a table of shape [V, I] with I > 0", &table.weight()?));
    };
    let recorder = Recorder::new(&[ids], &[table])?;
    let weight = table.weight()?;
    let mut sizes = ids.sizes().to_vec();
    sizes.push(dim);
    let mut y = Tensor::uninit(&sizes[..], weight.dtype(), ids.device(), "activation")?;
    let Kind::Cpu(cpu) = ids.device().kind();
    let bytes = 2 * y.bytes().len() as u64;
    ids.device().profile().time("embedding forward", 0, bytes, || {
        with_float!(weight.dtype(), "embedding", T => {
            embed::embed_forward(cpu, weight.slice::<T>()?, dim, ids.slice()?, y.slice_mut::<T>()?)
        })
    })?;
    drop(weight);
    let Some(recorder) = recorder else { return Ok(y) };
    let [y] = recorder.finish([y], EmbeddingBackward { ids: ids.detach(), table: table.clone() });
    Ok(y)
}

struct EmbeddingBackward {
    ids: Tensor,
    table: Param,
}

impl Function for EmbeddingBackward {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, _cx: &mut Backward<'_>) -> Result<()> {
        let (Some(dy), Some(mut slot)) = (grads[0].take(), self.table.grad()?) else { return Ok(()) };
        let device = dy.device().clone();
        let Kind::Cpu(cpu) = device.kind();
        let store = slot.store;
        device.profile().time("embedding backward", 0, 2 * dy.bytes().len() as u64, || {
            with_float!(dy.dtype(), "embedding", T => {
                embed::embed_backward(cpu, dy.slice::<T>()?, dy.shape().last(), self.ids.slice()?, (slot.slice_mut(), store))
            })
        })
    }
}
