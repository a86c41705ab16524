//! Linear with a frozen quantized weight: y = x·Wᵀ. The products dequantize the weight part by part.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry;
use oarlock_kernels::gemm::{MatMut, MatRef};
use oarlock_kernels::quantized::{self, Format, Layout, Side};
use oarlock_kernels::{DType, Element, Error, Result, Store};

use crate::cuda::{Form, Kernels, Matrix, Unable, failed, forms};
use crate::device::Device;
use crate::launch::{Launch, ViewMut};
use crate::ops::{with_float, wrong_shape};
use crate::param::Param;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

const OP: &str = "linear_quantized";

/// x `[.., I]` and the words of a weight `[O, I]`, as [`Layout::quantize`] writes them → `[.., O]`, in x's dtype, summed in
/// f32. The bits are those of [`linear`](super::linear) with the dequantized weight. The weight gets no gradient.
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
        launch.cuda(|gpu| expand(gpu, layout, gpu.slice(&words)?, (gpu.slice(&out)?, T::DTYPE)))?;
        launch.run(move |cpu| {
            let weight = layout.weight(words.slice(cpu));
            quantized::dequantize(cpu, weight, 0..layout.rows, 0..layout.cols, out.slice(cpu));
        })
    })?;
    Ok(whole)
}

/// Writes the weight that is in these words to the memory of a GPU.
fn expand(gpu: &Kernels<'_>, layout: Layout, words: Slice<'_>, (out, dtype): (Slice<'_>, DType)) -> Form {
    let n = layout.n_elems();
    if n == 0 {
        return Err(Unable::NoForm);
    }
    let mut end = 0;
    let [codes, scales, absmax, offset] = layout.parts().map(|n_words| {
        end += n_words;
        4 * (end - n_words)..4 * end
    });
    let part = |bytes| forms::part(words, bytes);
    let Format::FourBit { code, nested } = layout.format else {
        let call =
            gpu.kernel("dequantize_int8", &[dtype])?.slice(part(codes)?).slice(part(scales)?).slice(out);
        return call.u32(0).u32(layout.rows).u32(layout.cols).run(geometry::elements(n));
    };
    let tables = gpu.code_tables()?;
    let call = gpu.kernel("dequantize_4bit", &[dtype])?.slice(part(codes)?);
    let call = call.slice(tables.values(code).map_err(failed)?);
    let call = if nested {
        // The kernel takes the offset by value.
        let offset: Vec<f32> = gpu.download_slice(part(offset)?)?;
        let call = call.slice(part(absmax)?).slice(part(scales)?).slice(tables.map().map_err(failed)?);
        call.f32s(&offset)
    } else {
        call.slice(part(scales)?).null().null().f32(0.0)
    };
    call.slice(out).u64(0).u64(n).run(geometry::elements(n))
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
    with_float!(a.dtype(), OP, T => {
        let (a, words) = (launch.read::<T>(a)?, launch.read::<i32>(&words)?);
        let c = launch.store::<T>(c, store)?;
        launch.cuda(|gpu| {
            let bytes = layout.n_elems() * T::DTYPE.size();
            let whole = gpu.temporary(bytes)?;
            expand(gpu, layout, gpu.slice(&words)?, (whole.part(0, bytes)?, T::DTYPE))?;
            let weight = Matrix::new(whole.part(0, bytes)?, layout.rows, layout.cols).t_if(side == Side::Forward);
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
    let size = [layout.rows, layout.cols];
    let scratch = launch.scratch(quantized::product_scratch_bytes(device.host(), side, m, size, dtype))?;
    Ok((launch, scratch))
}
