//! Elements at even distances: read out of a tensor, or put into one that is filled with a value. Each is the gradient
//! of the other.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry;
use oarlock_kernels::copy::{self, Places};
use oarlock_kernels::walk::Walk;
use oarlock_kernels::{DType, Element, Result, Store, elementwise};

use crate::cuda::{Form, Kernels, forms};
use crate::device::Device;
use crate::ops::cast::converted;
use crate::ops::layout::spread;
use crate::ops::{with_float, with_word};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// A part of a tensor, no element of it twice.
#[derive(Clone)]
pub(crate) struct Part {
    /// The shape of the tensor.
    pub whole: Shape,
    /// The shape of the part.
    pub shape: Shape,
    /// The first element of the part in the tensor.
    pub first: usize,
    /// How far the elements lie apart, along each dim of the part.
    pub strides: Vec<usize>,
}

impl Part {
    /// The tensor as blocks of its first dims, as far as the part holds these dims whole.
    fn places(&self) -> Places {
        let (whole, part) = (self.whole.sizes(), self.shape.sizes());
        let (mut n_blocks, mut dims) = (1, 0);
        for d in 0..whole.len().min(part.len()) {
            let full: usize = whole[d + 1..].iter().product();
            let rest = part[d + 1..].iter().zip(&self.strides[d + 1..]);
            let last = self.first + rest.map(|(size, stride)| size.saturating_sub(1) * stride).sum::<usize>();
            if whole[d] != part[d] || self.strides[d] != full || last >= full {
                break;
            }
            (n_blocks, dims) = (n_blocks * whole[d], d + 1);
        }
        Places { n_blocks, first: self.first, walk: Walk::new(&part[dims..], [&self.strides[dims..]]) }
    }
}

impl Part {
    /// The elements of a tensor on a GPU at the places of the part become those of x, or get them added.
    fn write(&self, gpu: &Kernels<'_>, dtype: DType, store: Store, [x, y]: [Slice<'_>; 2]) -> Form {
        let n = self.shape.n_elems();
        // The first element of an empty part may lie beyond the end.
        if n == 0 {
            return Ok(());
        }
        let walk = forms::walk(self.shape.sizes(), [&self.strides, &self.strides])?;
        let y = forms::part(y, self.first * dtype.size()..y.bytes())?;
        let call = gpu.kernel(if store == Store::Add { "add_strided" } else { "write_strided" }, &[dtype])?;
        call.walk(&walk).slice(x).slice(y).u64(n).run(geometry::elements(n))
    }
}

/// The part of x.
pub(crate) fn take(x: &Tensor, part: Part) -> Result<Tensor> {
    let recorder = Recorder::new(&[x], &[])?;
    let y = read(x, &part)?;
    Ok(Recorder::record(recorder, y, |_| TakeBackward { part }))
}

/// A tensor of `value` with x as this part of it.
pub(crate) fn put(x: &Tensor, part: Part, value: f32) -> Result<Tensor> {
    let recorder = Recorder::new(&[x], &[])?;
    let mut y = filled(part.whole, x.dtype(), x.device(), value)?;
    let places = part.places();
    let mut launch = x.device().launch("copy", 0, 2 * x.len_bytes() as u64);
    with_word!(x.dtype(), W => {
        let dtype = x.dtype();
        let (x, y) = (launch.read_words::<W>(x)?, launch.update_words::<W>(&mut y)?);
        launch.cuda(|gpu| part.write(gpu, dtype, Store::Overwrite, [gpu.slice(&x)?, gpu.slice(&y)?]))?;
        launch.run(move |cpu| copy::write_places(cpu, &places, x.slice(cpu), y.slice(cpu)))
    })?;
    Ok(Recorder::record(recorder, y, |_| PutBackward { part }))
}

/// A tensor of which every element is `value`, rounded to the dtype.
fn filled(shape: Shape, dtype: DType, device: &Device, value: f32) -> Result<Tensor> {
    if value == 0.0 {
        return Tensor::zeros(shape, dtype, device);
    }
    let one = match dtype {
        DType::I32 => Tensor::from_slice(&[value as i32], [], device)?,
        _ => converted(&Tensor::from_slice(&[value], [], device)?, dtype, "activation")?,
    };
    spread(&one, &shape, "activation")
}

fn read(x: &Tensor, part: &Part) -> Result<Tensor> {
    let mut y = Tensor::uninit(part.shape, x.dtype(), x.device(), "activation")?;
    let walk = Walk::new(part.shape.sizes(), [&part.strides]);
    // The first element of an empty part may lie beyond the end.
    let first = if y.n_elems() > 0 { part.first } else { 0 };
    let mut launch = x.device().launch("copy", 0, 2 * y.len_bytes() as u64);
    with_word!(x.dtype(), W => {
        let dtype = x.dtype();
        let (x, y) = (launch.read_words::<W>(x)?, launch.write_words::<W>(&mut y)?);
        launch.cuda(|gpu| {
            let (x, order) = (gpu.slice(&x)?, (part.shape.sizes(), &part.strides[..]));
            let x = forms::part(x, first * dtype.size()..x.bytes())?;
            forms::strided(gpu, dtype, order, [x, gpu.slice(&y)?])
        })?;
        launch.run(move |cpu| copy::strided(cpu, &walk, &x.slice(cpu)[first..], y.slice(cpu)))
    })?;
    Ok(y)
}

struct TakeBackward {
    part: Part,
}

impl Function for TakeBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let places = self.part.places();
        // Many parts of one tensor add into one gradient.
        let (mut dx, store) = cx.slot_of(0, self.part.whole, &dy)?;
        let mut launch = dy.device().launch("copy", 0, 2 * dy.len_bytes() as u64);
        with_float!(dy.dtype(), "slice", T => {
            let (part, whole) = (launch.read::<T>(&dy)?, launch.store::<T>(&mut dx, store)?);
            launch.cuda(|gpu| {
                if store == Store::Overwrite {
                    gpu.fill(&whole, 0)?;
                }
                self.part.write(gpu, T::DTYPE, store, [gpu.slice(&part)?, gpu.slice(&whole)?])
            })?;
            launch.run(move |cpu| {
                let (part, whole) = (part.slice(cpu), whole.slice(cpu));
                match store {
                    Store::Add => copy::add_places(cpu, &places, part, whole),
                    Store::Overwrite => {
                        elementwise::fill(cpu, <T as bytemuck::Zeroable>::zeroed(), whole);
                        copy::write_places(cpu, &places, part, whole);
                    }
                }
            })
        })?;
        cx.give(0, dx)
    }
}

struct PutBackward {
    part: Part,
}

impl Function for PutBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        cx.give(0, read(&dy, &self.part)?)
    }
}
