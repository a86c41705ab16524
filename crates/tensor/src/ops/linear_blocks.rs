//! Linear and embedding with a weight in the blocks of a GGUF file, for inference: products of integers, without gradients.

use oarlock_kernels::block_quantized::{self, BlockLayout};
use oarlock_kernels::{DType, Error, Result};

use crate::ops::{with_float, wrong_shape};
use crate::param::Param;
use crate::tensor::Tensor;

/// x `[.., I]` and the words of a weight `[O, I]` in blocks → `[.., O]`, in x's dtype. x is quantized to 8 bits first, so the
/// result is near that of [`linear`](super::linear) with the dequantized weight. It is the same on every CPU, and for a row
/// whatever other rows there are.
///
/// # Errors
/// Shapes or dtypes that do not fit, and an x that gradients are asked of.
pub fn linear_blocks(x: &Tensor, weight: &Param, layout: BlockLayout) -> Result<Tensor> {
    const OP: &str = "linear_blocks";
    check_words(OP, weight, layout)?;
    if x.tape().is_some() {
        return Err(Error::Usage(format!(
            "{OP}: products with weights in blocks pass no gradient; load the weights dequantized to train"
        )));
    }
    if x.sizes().is_empty() || x.shape().last() != layout.cols() {
        return Err(wrong_shape(OP, format!("x of shape [.., {}]", layout.cols()), x));
    }
    let words = weight.weight()?;
    let mut y = Tensor::uninit(x.shape().with_last(layout.rows())?, x.dtype(), x.device(), "activation")?;
    let m = x.shape().n_rows();
    let flops = 2 * m as u64 * layout.rows() as u64 * layout.cols() as u64;
    let mut launch = x.device().launch("linear in blocks", flops, 0);
    let scratch = launch.scratch::<u8>(block_quantized::product_scratch_bytes(m, layout))?;
    with_float!(x.dtype(), OP, T => {
        let (x, words) = (launch.read::<T>(x)?, launch.read::<i32>(&words)?);
        let y = launch.write::<T>(&mut y)?;
        launch.run(move |cpu| {
            block_quantized::product(cpu, x.slice(cpu), layout, words.slice(cpu), y.slice(cpu), scratch.slice(cpu));
        })
    })?;
    drop(words);
    Ok(y)
}

/// ids `[..]` (i32) and the words of a table `[V, I]` in blocks → `[.., I]` in f32.
///
/// # Errors
/// [`Error::Index`] for an id outside `0..V`, and shapes or dtypes that do not fit.
pub fn embedding_blocks(ids: &Tensor, table: &Param, layout: BlockLayout) -> Result<Tensor> {
    const OP: &str = "embedding_blocks";
    check_words(OP, table, layout)?;
    if ids.dtype() != DType::I32 {
        return Err(Error::DType { op: OP, expected: "i32 ids", got: ids.dtype() });
    }
    let words = table.weight()?;
    let sizes = [ids.sizes(), &[layout.cols()]].concat();
    let mut y = Tensor::uninit(&sizes[..], DType::F32, ids.device(), "activation")?;
    let mut launch = ids.device().launch("embedding in blocks", 0, 2 * y.len_bytes() as u64);
    let (ids, words_read) = (launch.read::<i32>(ids)?, launch.read::<i32>(&words)?);
    let out = launch.write::<f32>(&mut y)?;
    launch.run(move |cpu| {
        block_quantized::embed(cpu, layout, words_read.slice(cpu), ids.slice(cpu), out.slice(cpu))
    })?;
    drop(words);
    Ok(y)
}

fn check_words(op: &'static str, weight: &Param, layout: BlockLayout) -> Result<()> {
    match weight.shape().sizes() == [layout.n_words()] {
        true => Ok(()),
        false => Err(wrong_shape(op, format!("a weight of {} words", layout.n_words()), &weight.weight()?)),
    }
}
