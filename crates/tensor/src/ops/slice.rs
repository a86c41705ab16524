//! Parts of a dim, and tensors joined along one.

use std::borrow::Borrow;
use std::ops::Range;

use oarlock_kernels::copy::{self, Window};
use oarlock_kernels::{Element, Error, Result, Store, elementwise};

use crate::cuda::forms;
use crate::ints::{Int, place};
use crate::ops::{check_device, check_dtype, dim_of, squeeze, unsqueeze, with_float, with_word, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The part `range` of a dim.
///
/// # Errors
/// A dim that x does not have, or a range that leaves it.
pub fn narrow(x: &Tensor, dim: impl Int, range: Range<usize>) -> Result<Tensor> {
    let dim = dim_of("narrow", x, dim)?;
    let size = x.sizes()[dim];
    if range.start > range.end || range.end > size {
        return Err(wrong_shape("narrow", format!("{range:?} inside dim {dim}"), x));
    }
    if range == (0..size) {
        return Ok(x.clone());
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = read(x, dim, range.clone())?;
    Ok(Recorder::record(recorder, y, |_| NarrowBackward { shape: *x.shape(), dim, first: range.start }))
}

/// What lies at one index of a dim, which goes away.
///
/// # Errors
/// A dim that x does not have, or an index outside of it.
pub fn select(x: &Tensor, dim: impl Int, index: impl Int) -> Result<Tensor> {
    let dim = dim_of("select", x, dim)?;
    let index = index.signed();
    let Some(at) = place(index, x.sizes()[dim]) else {
        return Err(wrong_shape("select", format!("an index inside dim {dim} instead of {index}"), x));
    };
    squeeze(&narrow(x, dim, at..at + 1)?, dim)
}

/// How a dim is split.
pub trait SplitSizes {
    /// The sizes of the parts of a dim of this size; `None` if there are none.
    fn parts(&self, size: usize) -> Option<Vec<usize>>;

    /// What it expects of a dim, for errors.
    fn wanted(&self) -> String;
}

/// Parts of this size, of which the last may be smaller.
impl SplitSizes for usize {
    fn parts(&self, size: usize) -> Option<Vec<usize>> {
        if size == 0 {
            return Some(vec![0]);
        }
        let starts = (0..size).step_by(Some(*self).filter(|&part| part > 0)?);
        Some(starts.map(|start| (size - start).min(*self)).collect())
    }

    fn wanted(&self) -> String {
        format!("parts of {self} elements, at least 1,")
    }
}
/// Parts of these sizes, which are the whole dim together.
impl SplitSizes for &[usize] {
    fn parts(&self, size: usize) -> Option<Vec<usize>> {
        let total = self.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        (total == Some(size)).then(|| self.to_vec())
    }

    fn wanted(&self) -> String {
        format!("a size of {self:?} together")
    }
}
impl<const N: usize> SplitSizes for [usize; N] {
    fn parts(&self, size: usize) -> Option<Vec<usize>> {
        self.as_slice().parts(size)
    }

    fn wanted(&self) -> String {
        self.as_slice().wanted()
    }
}
impl<const N: usize> SplitSizes for &[usize; N] {
    fn parts(&self, size: usize) -> Option<Vec<usize>> {
        self.as_slice().parts(size)
    }

    fn wanted(&self) -> String {
        self.as_slice().wanted()
    }
}

/// The parts of a dim in order: of one size, the last of which may be smaller, or of given sizes, which are the whole
/// dim together.
///
/// # Errors
/// A dim that x does not have, a size of 0, or sizes that do not add up to its size.
pub fn split(x: &Tensor, sizes: impl SplitSizes, dim: impl Int) -> Result<Vec<Tensor>> {
    let dim = dim_of("split", x, dim)?;
    let parts = sizes.parts(x.sizes()[dim]);
    let parts = parts.ok_or_else(|| wrong_shape("split", format!("{} at dim {dim}", sizes.wanted()), x))?;
    in_parts(x, dim, &parts)
}

/// A dim in `n` parts of one size, rounded up; the last is smaller, and where the size does not suffice there are fewer.
///
/// # Errors
/// A dim that x does not have, or no parts.
pub fn chunk(x: &Tensor, n: usize, dim: impl Int) -> Result<Vec<Tensor>> {
    let dim = dim_of("chunk", x, dim)?;
    let size = x.sizes()[dim];
    match n {
        0 => Err(Error::Usage("chunk: at least one part is needed".to_string())),
        _ if size == 0 => in_parts(x, dim, &vec![0; n]),
        _ => split(x, size.div_ceil(n), dim),
    }
}

/// What lies at each index of a dim, which goes away.
///
/// # Errors
/// A dim that x does not have.
pub fn unbind(x: &Tensor, dim: impl Int) -> Result<Vec<Tensor>> {
    let dim = dim_of("unbind", x, dim)?;
    (0..x.sizes()[dim]).map(|index| select(x, dim, index)).collect()
}

fn in_parts(x: &Tensor, dim: usize, sizes: &[usize]) -> Result<Vec<Tensor>> {
    let mut first = 0;
    let parts = sizes.iter().map(|size| {
        first += size;
        narrow(x, dim, first - size..first)
    });
    parts.collect()
}

/// Tensors one after the other along a dim; the other dims are equal.
///
/// # Errors
/// No tensor, or shapes or dtypes that do not fit.
pub fn concat<T: Borrow<Tensor>>(tensors: &[T], dim: impl Int) -> Result<Tensor> {
    let tensors: Vec<&Tensor> = tensors.iter().map(Borrow::borrow).collect();
    let Some(&head) = tensors.first() else {
        return Err(Error::Usage("concat: no tensor was given".to_string()));
    };
    let dim = dim_of("concat", head, dim)?;
    check_device("concat", head, &tensors)?;
    let mut sizes = head.sizes().to_vec();
    sizes[dim] = 0;
    let mut parts = Vec::with_capacity(tensors.len());
    for tensor in &tensors {
        check_dtype("concat", head, tensor)?;
        let other = |s: &[usize]| s.iter().enumerate().any(|(d, &size)| d != dim && size != head.sizes()[d]);
        if tensor.sizes().len() != sizes.len() || other(tensor.sizes()) {
            return Err(wrong_shape("concat", format!("{:?} but for dim {dim}", head.shape()), tensor));
        }
        parts.push(sizes[dim]..sizes[dim] + tensor.sizes()[dim]);
        sizes[dim] += tensor.sizes()[dim];
    }
    let recorder = Recorder::new(&tensors, &[])?;
    let mut y = Tensor::uninit(&sizes[..], head.dtype(), head.device(), "activation")?;
    for (tensor, part) in tensors.iter().zip(&parts) {
        let window = window(y.shape(), dim, part);
        let bytes = 2 * tensor.len_bytes() as u64;
        let mut launch = head.device().launch("copy", 0, bytes);
        with_word!(head.dtype(), W => {
            let (part, whole) = (launch.read_words::<W>(tensor)?, launch.update_words::<W>(&mut y)?);
            launch.cuda(|gpu| {
                let memory = [gpu.slice(&part)?, gpu.slice(&whole)?];
                forms::write_window(gpu, (head.dtype(), false), window, memory)
            })?;
            launch.run(move |cpu| copy::write_window(cpu, window, part.slice(cpu), whole.slice(cpu)))
        })?;
    }
    Ok(Recorder::record(recorder, y, |_| ConcatBackward { dim, parts }))
}

/// Tensors of equal shapes one after the other along a new dim before dim `dim` (or at the end; -1 is the end).
///
/// # Errors
/// No tensor, or unequal shapes or dtypes.
pub fn stack<T: Borrow<Tensor>>(tensors: &[T], dim: impl Int) -> Result<Tensor> {
    let tensors: Vec<&Tensor> = tensors.iter().map(Borrow::borrow).collect();
    let Some(&head) = tensors.first() else {
        return Err(Error::Usage("stack: no tensor was given".to_string()));
    };
    if let Some(other) = tensors.iter().find(|t| t.shape() != head.shape()) {
        return Err(wrong_shape("stack", format!("{:?}", head.shape()), other));
    }
    // The joined tensors have the new dim as well, so a negative dim is theirs.
    let wider = tensors.iter().map(|t| unsqueeze(t, dim)).collect::<Result<Vec<_>>>()?;
    concat(&wider, dim)
}

fn window(whole: &Shape, dim: usize, range: &Range<usize>) -> Window {
    let sizes = whole.sizes();
    let inner: usize = sizes[dim + 1..].iter().product();
    Window { full: sizes[dim] * inner, first: range.start * inner, len: range.len() * inner }
}

fn read(x: &Tensor, dim: usize, range: Range<usize>) -> Result<Tensor> {
    let mut sizes = x.sizes().to_vec();
    sizes[dim] = range.len();
    let mut y = Tensor::uninit(&sizes[..], x.dtype(), x.device(), "activation")?;
    let bytes = 2 * y.len_bytes() as u64;
    let window = window(x.shape(), dim, &range);
    let mut launch = x.device().launch("copy", 0, bytes);
    with_word!(x.dtype(), W => {
        let dtype = x.dtype();
        let (whole, part) = (launch.read_words::<W>(x)?, launch.write_words::<W>(&mut y)?);
        launch.cuda(|gpu| forms::read_window(gpu, dtype, window, [gpu.slice(&whole)?, gpu.slice(&part)?]))?;
        launch.run(move |cpu| copy::read_window(cpu, window, whole.slice(cpu), part.slice(cpu)))
    })?;
    Ok(y)
}

struct NarrowBackward {
    shape: Shape,
    dim: usize,
    first: usize,
}

impl Function for NarrowBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let device = dy.device().clone();
        let window = window(&self.shape, self.dim, &(self.first..self.first + dy.sizes()[self.dim]));
        // Many parts of one tensor add into one gradient.
        let (mut dx, store) = cx.slot_of(0, self.shape, &dy)?;
        let mut launch = device.launch("copy", 0, 2 * dy.len_bytes() as u64);
        with_float!(dy.dtype(), "narrow", T => {
            let (part, whole) = (launch.read::<T>(&dy)?, launch.store::<T>(&mut dx, store)?);
            launch.cuda(|gpu| {
                let adds = store == Store::Add;
                if !adds {
                    gpu.fill(&whole, 0)?;
                }
                let memory = [gpu.slice(&part)?, gpu.slice(&whole)?];
                forms::write_window(gpu, (T::DTYPE, adds), window, memory)
            })?;
            launch.run(move |cpu| {
                let (part, whole) = (part.slice(cpu), whole.slice(cpu));
                match store {
                    Store::Add => copy::add_window(cpu, window, part, whole),
                    Store::Overwrite => {
                        elementwise::fill(cpu, <T as bytemuck::Zeroable>::zeroed(), whole);
                        copy::write_window(cpu, window, part, whole);
                    }
                }
            })
        })?;
        cx.give(0, dx)
    }
}

struct ConcatBackward {
    dim: usize,
    parts: Vec<Range<usize>>,
}

impl Function for ConcatBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        for (index, part) in self.parts.into_iter().enumerate() {
            if cx.needs(index) {
                cx.give(index, read(&dy, self.dim, part)?)?;
            }
        }
        Ok(())
    }
}
