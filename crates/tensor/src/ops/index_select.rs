//! Rows of a tensor by index; for a table of parameters there is [`embedding`](crate::ops::embedding).

use crate::cpu::{Store, embed};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::cast::converted;
use crate::ops::{check_device, with_float, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// x `[V, ..]`, ids `[N..]` (i32) → `[N.., ..]`: the rows `ids` of x. Gradients of a row that is taken more than once
/// are added in the order of the ids, in f32.
///
/// # Errors
/// [`Error::Index`] for an id outside `0..V`; no dim, or rows of no elements.
pub fn index_select(x: &Tensor, ids: &Tensor) -> Result<Tensor> {
    check_device("index_select", x, &[ids])?;
    if ids.dtype() != DType::I32 {
        return Err(Error::DType { op: "index_select", expected: "i32 ids", got: ids.dtype() });
    }
    let Some((_, row)) = x.sizes().split_first().filter(|(_, row)| row.iter().product::<usize>() > 0) else {
        return Err(wrong_shape("index_select", "x of shape [V, ..] with rows of at least one element", x));
    };
    let recorder = Recorder::new(&[x, ids], &[])?;
    let sizes: Vec<usize> = ids.sizes().iter().chain(row).copied().collect();
    let mut y = Tensor::uninit(&sizes[..], x.dtype(), x.device(), "activation")?;
    let (dim, bytes) = (row.iter().product(), 2 * y.len_bytes() as u64);
    let mut launch = x.device().launch("index_select", 0, bytes);
    with_float!(x.dtype(), "index_select", T => {
        let (x, ids) = (launch.read::<T>(x)?, launch.read::<i32>(ids)?);
        let y = launch.write::<T>(&mut y)?;
        launch.run(move |cpu| embed::embed_forward(cpu, x.slice(cpu), dim, ids.slice(cpu), y.slice(cpu)))
    })?;
    Ok(Recorder::record(recorder, y, |_| IndexSelectBackward { ids: ids.detach(), shape: *x.shape(), dim }))
}

struct IndexSelectBackward {
    ids: Tensor,
    shape: Shape,
    dim: usize,
}

impl Function for IndexSelectBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let device = dy.device().clone();
        let mut sum = Tensor::uninit(self.shape, DType::F32, &device, "gradient")?;
        let mut launch = device.launch("index_select backward", 0, 2 * dy.len_bytes() as u64);
        with_float!(dy.dtype(), "index_select", T => {
            let (dy, ids, dim) = (launch.read::<T>(&dy)?, launch.read::<i32>(&self.ids)?, self.dim);
            let sum = launch.write::<f32>(&mut sum)?;
            launch.run(move |cpu| {
                let sum = (sum.slice(cpu), Store::Overwrite);
                embed::embed_backward(cpu, dy.slice(cpu), dim, ids.slice(cpu), sum)
            })
        })?;
        cx.give(0, converted(&sum, dy.dtype(), "gradient")?)
    }
}
