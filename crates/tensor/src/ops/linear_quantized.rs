//! Linear with a frozen quantized weight: y = x·Wᵀ. The products dequantize the weight part by part; on a GPU with many rows
//! of x, all of it. Rows in the blocks of a GGUF file are dequantized so for training, on the host; for inference, panels of
//! them are multiplied as integers.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::gemm::GemmShape;
use oarlock_cuda::geometry;
use oarlock_kernels::block_quantized::{self, BlockLayout};
use oarlock_kernels::gemm::{MatMut, MatRef};
use oarlock_kernels::quantized::{self, Format, Layout, Side};
use oarlock_kernels::{DType, Element, Error, Result, Store};

use crate::cuda::{Call, Form, FormError, Found, Kernels, Matrix, element, failed, forms};
use crate::device::Device;
use crate::launch::{Launch, ViewMut};
use crate::ops::{with_float, wrong_shape};
use crate::param::Param;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

const OP: &str = "linear_quantized";

/// x `[.., I]` and the words of a weight `[O, I]`, as [`Layout::quantize`] writes them → `[.., O]`, in x's dtype, summed in
/// f32. On a CPU the bits are those of [`linear`](super::linear) with the dequantized weight. The weight gets no gradient.
///
/// # Errors
/// Shapes or dtypes that do not fit, a weight that is trained.
pub fn linear_quantized(x: &Tensor, weight: &Param, layout: Layout) -> Result<Tensor> {
    if weight.shape().sizes() != [layout.n_words()] {
        return Err(wrong_shape(OP, format!("a weight of {} words", layout.n_words()), &weight.weight()?));
    }
    if weight.trainable()? {
        return Err(Error::Usage(format!("{OP}: a quantized weight cannot be trained; freeze it")));
    }
    if x.sizes().is_empty() || x.shape().last() != layout.cols {
        return Err(wrong_shape(OP, format!("x of shape [.., {}]", layout.cols), x));
    }
    let recorder = Recorder::new(&[x], &[])?;
    let mut y = Tensor::uninit(x.shape().with_last(layout.rows)?, x.dtype(), x.device(), "activation")?;
    multiply(Side::Forward, x, weight, layout, &mut y, Store::Overwrite)?;
    Ok(Recorder::record(recorder, y, |_| LinearBackward { weight: weight.clone(), layout }))
}

/// The weight `[O, I]` that such words stand for, in a float dtype and on no tape.
///
/// # Errors
/// Another number of words than the layout has.
pub fn dequantize(weight: &Param, layout: Layout, dtype: DType) -> Result<Tensor> {
    const OP: &str = "dequantize";
    let words = weight.weight()?;
    if words.sizes() != [layout.n_words()] {
        return Err(wrong_shape(OP, format!("a weight of {} words", layout.n_words()), &words));
    }
    let device = words.device();
    let mut whole = Tensor::uninit([layout.rows, layout.cols], dtype, device, "tensor")?;
    let mut launch = device.launch(OP, 0, 0);
    with_float!(dtype, OP, T => {
        let (words, out) = (launch.read::<i32>(&words)?, launch.write::<T>(&mut whole)?);
        launch.cuda(|gpu| {
            let weight = Words { layout, words: gpu.slice(&words)? };
            weight.expand(gpu, (gpu.slice(&out)?, T::DTYPE))
        })?;
        launch.run(move |cpu| {
            let weight = layout.weight(words.slice(cpu));
            quantized::dequantize(cpu, weight, 0..layout.rows, 0..layout.cols, out.slice(cpu));
        })
    })?;
    Ok(whole)
}

/// Rows of x up to which a GPU multiplies by the codes themselves, without the dequantized weight in its memory.
///
/// Writing a weight of 16 bits and reading it again moves 4 bytes more for each element, about 1.3 ps at 3 TB/s, as long as
/// cuBLASLt multiplies some hundred rows by it; the own kernel reads the codes once more for each tile of 128 rows and
/// multiplies slower than cuBLASLt. Where that is not there, the own kernel multiplies all rows.
const FUSED_ROWS: usize = 256;

/// The parts of a weight on a GPU, as kernels take them.
struct Words<'l> {
    layout: Layout,
    words: Slice<'l>,
}

impl<'l> Words<'l> {
    /// Bytes of the codes, the scales, their scales, and the offset of these.
    fn parts(&self) -> Found<[Slice<'l>; 4]> {
        let mut end = 0;
        let [codes, scales, absmax, offset] = self.layout.parts().map(|n_words| {
            end += n_words;
            forms::part(self.words, 4 * (end - n_words)..4 * end)
        });
        Ok([codes?, scales?, absmax?, offset?])
    }

    /// The arguments that say where the weight is; the same for all kernels of its format.
    fn pass(&self, gpu: &Kernels<'l>, call: Call<'l>) -> Found<Call<'l>> {
        let [codes, scales, absmax, offset] = self.parts()?;
        let (code, nested) = match self.layout.format {
            Format::FourBit { code, nested } => (code, nested),
            Format::Int8 => return Ok(call.slice(codes).slice(scales)),
            Format::Blocks(_) => return Err(FormError::NoForm),
        };
        let tables = gpu.code_tables()?;
        let call = call.slice(codes).slice(tables.values(code).map_err(failed)?);
        Ok(match nested {
            true => call.slice(absmax).slice(scales).slice(tables.map().map_err(failed)?).slice(offset),
            false => call.slice(scales).null().null().null(),
        })
    }

    /// Writes the weight to other memory.
    fn expand(&self, gpu: &Kernels<'l>, (out, dtype): (Slice<'l>, DType)) -> Form {
        let (n, Layout { rows, cols, format }) = (self.layout.n_elems(), self.layout);
        if n == 0 {
            return Err(FormError::NoForm);
        }
        let op = match format {
            Format::Int8 => "dequantize_int8",
            Format::FourBit { .. } => "dequantize_4bit",
            Format::Blocks(_) => return Err(FormError::NoForm),
        };
        let call = self.pass(gpu, gpu.kernel(op, &[dtype])?)?.slice(out);
        let call = match format {
            Format::Int8 => call.u32(0).u32(rows).u32(cols),
            _ => call.u64(0).u64(n),
        };
        call.run(geometry::elements(n))
    }

    /// `y = x Wᵀ` or `y = x W`, or that added to y.
    fn multiply(
        &self,
        gpu: &Kernels<'l>,
        (side, m, dtype): (Side, usize, DType),
        x: Slice<'l>,
        (y, store): (Slice<'l>, Store),
    ) -> Form {
        let Layout { rows, cols, format } = self.layout;
        if m * rows * cols == 0 {
            return Err(FormError::NoForm);
        }
        let forward = side == Side::Forward;
        let op = match (format, forward) {
            (Format::Int8, true) => "product_int8_forward",
            (Format::Int8, false) => "product_int8_backward",
            (Format::FourBit { .. }, true) => "product_4bit_forward",
            (Format::FourBit { .. }, false) => "product_4bit_backward",
            (Format::Blocks(_), _) => return Err(FormError::NoForm),
        };
        let shape = GemmShape::quantized(m, [rows, cols], forward);
        let call = self.pass(gpu, gpu.kernel(op, &[dtype])?.slice(x).u64(shape.k))?.null();
        let beta = if store == Store::Add { 1.0 } else { 0.0 };
        let call = call.slice(y).u64(shape.n).f32(beta).u32(m).u32(rows).u32(cols);
        call.run(shape.geometry(element(dtype)))
    }
}

struct LinearBackward {
    weight: Param,
    layout: Layout,
}

impl Function for LinearBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        if !cx.needs(0) {
            return Ok(());
        }
        let (mut dx, store) = cx.slot_of(0, dy.shape().with_last(self.layout.cols)?, &dy)?;
        multiply(Side::Backward, &dy, &self.weight, self.layout, &mut dx, store)?;
        cx.give(0, dx)
    }
}

/// `c = a · Wᵀ` or `c = a · W`.
fn multiply(
    side: Side,
    a: &Tensor,
    weight: &Param,
    layout: Layout,
    c: &mut Tensor,
    store: Store,
) -> Result<()> {
    let words = weight.weight()?;
    let (m, k, n) = (a.shape().n_rows(), a.shape().last(), c.shape().last());
    let (mut launch, scratch) = product(a.device(), side, a.dtype(), m, layout)?;
    let whole_bytes = layout.n_elems() * a.dtype().size();
    if m > FUSED_ROWS {
        launch.counts_temporary(whole_bytes)?;
    }
    with_float!(a.dtype(), OP, T => {
        let (a, words) = (launch.read::<T>(a)?, launch.read::<i32>(&words)?);
        let c = launch.store::<T>(c, store)?;
        launch.cuda(|gpu| {
            let words = Words { layout, words: gpu.slice(&words)? };
            if m <= FUSED_ROWS || !gpu.has_cublas() {
                return words.multiply(gpu, (side, m, T::DTYPE), gpu.slice(&a)?, (gpu.slice(&c)?, store));
            }
            let whole = gpu.temporary(whole_bytes)?;
            words.expand(gpu, (whole.part(0, whole_bytes)?, T::DTYPE))?;
            let weight = Matrix::new(whole.part(0, whole_bytes)?, layout.rows, layout.cols).t_if(side == Side::Forward);
            gpu.multiply((T::DTYPE, 1), [gpu.matrix(&a, m, k)?, weight], (&c, T::DTYPE, store), None)
        })?;
        launch.run(move |cpu| {
            let (a, weight) = (MatRef::new(a.slice(cpu), m, k), layout.weight(words.slice(cpu)));
            let c = MatMut::new(c.slice(cpu), m, n);
            quantized::product(cpu, side, a, weight, c, store, scratch.slice(cpu));
        })
    })
}

fn product(
    device: &Device,
    side: Side,
    dtype: DType,
    m: usize,
    layout: Layout,
) -> Result<(Launch<'_>, ViewMut<u8>)> {
    let name = match side {
        Side::Forward => "quantized linear forward",
        Side::Backward => "quantized linear input grad",
    };
    let mut launch = device.launch(name, 2 * m as u64 * layout.n_elems() as u64, 0);
    let scratch = launch.scratch(quantized::product_scratch_bytes(device.host(), side, m, layout, dtype))?;
    Ok((launch, scratch))
}

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
