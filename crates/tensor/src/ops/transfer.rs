//! The one door between the host and device memory: explicit copies, each after the launches that it depends on. Also
//! copies and conversions from device memory to device memory, outside any tape.

use std::ops::Range;
use std::ptr::NonNull;

use bytemuck::Pod;
use oarlock_kernels::{DType, Element, Error, Float, Result, Scalar, Store, elementwise};

use crate::arena::Buffer;
use crate::cuda::forms;
use crate::device::Device;
use crate::flat::{FlatBuffer, WriteLease};
use crate::launch::{HostOrder, Mode, Owner, Span};
use crate::lines::Lines;
use crate::ops::optimizer::Part;
use crate::ops::{with_float, wrong_shape};
use crate::shape::IntoShape;
use crate::tensor::{Known, Tensor};

impl Tensor {
    /// A tensor of zeros.
    ///
    /// # Errors
    /// No memory, or an impossible shape.
    pub fn zeros(shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Tensor> {
        let mut zeros = Tensor::uninit(shape, dtype, device, "tensor")?;
        let mut launch = device.quiet_launch("zeros");
        let bytes = launch.write_words::<u8>(&mut zeros)?;
        launch.cuda(|gpu| gpu.fill(&bytes, 0))?;
        launch.run(move |cpu| bytes.slice(cpu).fill(0))?;
        Ok(zeros)
    }

    /// A tensor with a copy of these numbers, in row-major order. Its dtype is that of the numbers, f32 for `f64`, and i32
    /// for `i64`, `u8` and `bool`, as the table at [`Scalar`] says.
    ///
    /// # Errors
    /// [`Error::Shape`] when their number is not the shape's, and [`Error::Usage`] for a number outside of the range of
    /// the dtype, with its index.
    pub fn from_slice<T: Scalar>(data: &[T], shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        let shape = shape.into_shape()?;
        if shape.n_elems() != data.len() {
            return Err(Error::Shape {
                op: "from_slice",
                expected: format!("{} elements for shape {shape:?}", shape.n_elems()),
                got: format!("{} elements", data.len()),
            });
        }
        if T::ELEMENT.is_none() {
            return Tensor::from_slice(&T::store_all("from_slice", data)?, shape, device);
        }
        let mut tensor = Tensor::uninit(shape, T::Stored::DTYPE, device, "tensor")?;
        if !device.is_dry() {
            lend_mut(tensor.span_mut()?, Mode::Write, |bytes| {
                bytes.copy_from_slice(bytemuck::cast_slice(data))
            })?;
        }
        // Whoever checks indices need not wait for a GPU.
        let ints = bytemuck::try_cast_slice::<T, i32>(data).ok();
        let ints = ints.filter(|_| T::ELEMENT == Some(DType::I32) && device.is_cuda());
        Ok(tensor.with_known(ints.and_then(Known::of_ints)))
    }

    /// A copy of the elements in host memory, as numbers of type `T`: their own, another float type (rounded to nearest),
    /// or for integers any type that holds their values exactly. Integers as `bool` are whether they are not 0: that is
    /// how a mask is read.
    ///
    /// # Errors
    /// [`Error::DType`] for floats that are to be integers, [`Error::Usage`] for an integer that `T` does not have,
    /// [`Error::Dry`] when there are no elements, and what a launch met that made them.
    pub fn to_vec<T: Scalar>(&self) -> Result<Vec<T>> {
        self.elements("to_vec", 0..self.n_elems())
    }

    /// The elements `range`, as [`Tensor::to_vec`] reads them.
    pub(crate) fn elements<T: Scalar>(&self, op: &'static str, range: Range<usize>) -> Result<Vec<T>> {
        if T::ELEMENT == Some(self.dtype()) {
            return lend(self.span().elements::<T>(&range)?, |bytes| {
                bytemuck::checked::cast_slice(bytes).to_vec()
            });
        }
        if self.dtype() == DType::I32 {
            let inexact =
                |x| Error::Usage(format!("{op}: {x} is not exact in {}; read it as i32 or f64", T::NAME));
            return lend(self.span().elements::<i32>(&range)?, |bytes| {
                let ints = bytemuck::cast_slice::<u8, i32>(bytes).iter();
                ints.map(|&x| T::from_int(x).ok_or_else(|| inexact(x))).collect()
            })?;
        }
        let wrong = || Error::DType { op, expected: T::NAME, got: self.dtype() };
        with_float!(self.dtype(), op, U => {
            lend(self.span().elements::<U>(&range)?, |bytes| {
                let floats = bytemuck::cast_slice::<u8, U>(bytes).iter();
                floats.map(|x| T::from_float(x.to_f32())).collect::<Option<_>>().ok_or_else(wrong)
            })?
        })
    }

    /// A copy of the elements of a float tensor in host memory, as f32.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`]; integers.
    pub fn to_f32_vec(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.n_elems()];
        self.read_f32(0, &mut values)?;
        Ok(values)
    }

    /// Copies elements of a float tensor to the host, from element `first` on, as f32.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`]; integers, or elements that it does not have.
    pub fn read_f32(&self, first: usize, out: &mut [f32]) -> Result<()> {
        let range = first..first + out.len();
        with_float!(self.dtype(), "read_f32", T => {
            lend(self.span().elements::<T>(&range)?, |bytes| widen::<T>(bytes, out))
        })
    }

    /// A copy of the elements in host memory, as bytes.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        lend(self.span(), <[u8]>::to_vec)
    }

    /// The value of a one-element tensor, copied to the host and converted as [`Tensor::to_vec`] does.
    ///
    /// # Errors
    /// More or less than one element, and as [`Tensor::to_vec`].
    pub fn item<T: Scalar>(&self) -> Result<T> {
        match self.n_elems() {
            1 => Ok(self.elements("item", 0..1)?[0]),
            _ => Err(wrong_shape("item", "one element", self)),
        }
    }

    /// The same elements on another device; a copy, unless it is there already. Not recorded.
    ///
    /// # Errors
    /// No memory, and as [`Tensor::to_vec`].
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device().same(device) {
            return Ok(self.clone());
        }
        let mut copy = Tensor::uninit(*self.shape(), self.dtype(), device, "copy")?;
        let mut known = None;
        if !device.is_dry() {
            // Through host memory: devices wait for none of each other's launches.
            let elements = self.to_bytes()?;
            lend_mut(copy.span_mut()?, Mode::Write, |bytes| bytes.copy_from_slice(&elements))?;
            if self.dtype() == DType::I32 && device.is_cuda() {
                known = Known::of_ints(&bytemuck::pod_collect_to_vec::<u8, i32>(&elements));
            }
        }
        Ok(copy.with_known(known))
    }

    /// A copy in memory of its own, not recorded.
    pub(crate) fn copied(&self, what: &'static str) -> Result<Tensor> {
        let mut copy = Tensor::uninit(*self.shape(), self.dtype(), self.device(), what)?;
        let mut launch = self.device().quiet_launch("copy");
        let (from, to) = (launch.read_words::<u8>(self)?, launch.write_words::<u8>(&mut copy)?);
        launch.cuda(|gpu| gpu.copy(&from, &to))?;
        launch.run(move |cpu| to.slice(cpu).copy_from_slice(from.slice(cpu)))?;
        Ok(copy)
    }

    /// Copies `rows` over the part of this tensor that begins at `first` of dim `dim`; the dims before it have size 1,
    /// those after it are equal. Only for the sole owner of the memory.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit, or a shared tensor.
    pub fn write_rows(&mut self, dim: usize, first: usize, rows: &Tensor) -> Result<()> {
        let fits = rows.dtype() == self.dtype()
            && rows.sizes().len() == self.sizes().len()
            && dim < self.sizes().len()
            && self.sizes()[..dim].iter().all(|&s| s == 1)
            && rows.sizes()[..dim].iter().all(|&s| s == 1)
            && rows.sizes()[dim + 1..] == self.sizes()[dim + 1..]
            && first + rows.sizes()[dim] <= self.sizes()[dim];
        if !fits {
            return Err(Error::Shape {
                op: "write_rows",
                expected: format!("rows that fit into {} from {first} of dim {dim} on", self.describe()),
                got: rows.describe(),
            });
        }
        let row_bytes = self.sizes()[dim + 1..].iter().product::<usize>() * self.dtype().size();
        let device = self.device().clone();
        let mut launch = device.quiet_launch("write_rows");
        let from = launch.read_words::<u8>(rows)?;
        let start = first * row_bytes;
        let to = launch.write_words_at::<u8>(self, &(start..start + rows.len_bytes()))?;
        launch.cuda(|gpu| gpu.copy(&from, &to))?;
        launch.run(move |cpu| to.slice(cpu).copy_from_slice(from.slice(cpu)))
    }
}

fn widen<T: Float>(from: &[u8], to: &mut [f32]) {
    to.iter_mut().zip(bytemuck::cast_slice::<u8, T>(from)).for_each(|(to, from)| *to = from.to_f32());
}

/// Lends memory of a device to the host for reading, when what writes it has run.
fn lend<R>(span: Span<'_>, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
    let ptr = span.ptr.ok_or(Error::Dry)?;
    if let Owner::Cuda(block) = span.owner {
        let mut copy = Lines::filled(span.bytes, 0);
        block.read(block.start_of(ptr), copy.bytes_mut(span.bytes))?;
        return Ok(read(copy.bytes(span.bytes)));
    }
    // SAFETY: a span is initialized memory that its owner keeps alive; launches that write it have run, later ones wait
    // for this call, and hosts that write it hold it alone.
    let read = || read(unsafe { std::slice::from_raw_parts(ptr.as_ptr(), span.bytes) });
    in_order(&span, ptr, Mode::Read, read)
}

/// Lends memory of a device to the host for writing, when what uses it has run. The caller is its only owner, and writes
/// all of it or, with [`Mode::Update`], a part.
fn lend_mut<R>(span: Span<'_>, mode: Mode, write: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
    let ptr = span.ptr.ok_or(Error::Dry)?;
    if let Owner::Cuda(block) = span.owner {
        let (mut copy, start) = (Lines::filled(span.bytes, 0), block.start_of(ptr));
        if mode == Mode::Update {
            block.read(start, copy.bytes_mut(span.bytes))?;
        }
        let result = write(copy.bytes_mut(span.bytes));
        block.write(start, copy.bytes(span.bytes))?;
        return Ok(result);
    }
    // SAFETY: as in `lend`; the caller's right to write is exclusive.
    let write = || write(unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), span.bytes) });
    in_order(&span, ptr, Mode::Update, write)
}

/// Copies between host memory and memory that the host can see, after the launches that the copy depends on.
fn in_order<R>(span: &Span<'_>, ptr: NonNull<u8>, mode: Mode, copy: impl FnOnce() -> R) -> Result<R> {
    match span.owner {
        Owner::Strict(guard) => guard.copy(ptr, span.bytes, mode, copy),
        Owner::Host(host) => match host.order.get() {
            Some(HostOrder::Strict(guard)) => guard.copy(ptr, span.bytes, mode, copy),
            Some(HostOrder::Cuda(mirror)) => mirror.settle().map(|()| copy()),
            None => Ok(copy()),
        },
        Owner::Pinned(block) => block.settle(mode).map(|()| copy()),
        Owner::Pool | Owner::Cuda(_) => Ok(copy()),
    }
}

/// Shows elements of a flat buffer to the host, where they lie if the host can see them there. `f` may not move
/// anything on a device.
///
/// # Errors
/// Elements outside of the buffer, a buffer that is being written, and what a launch met that made them.
pub fn read_with<T: Pod, R>(flat: &FlatBuffer, range: Range<usize>, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    let lease = flat.read()?;
    lend(lease.span().elements::<T>(&range)?, |bytes| f(bytemuck::cast_slice(bytes)))
}

/// Lets the host write elements of a flat buffer, where they lie if the host can see them there. `f` may not move
/// anything on a device.
///
/// # Errors
/// Elements outside of the buffer, a buffer that is in use, and what an earlier launch met.
pub fn write_with<T: Pod, R>(
    flat: &FlatBuffer,
    range: Range<usize>,
    f: impl FnOnce(&mut [T]) -> R,
) -> Result<R> {
    let lease = flat.write()?;
    lend_mut(lease.span().elements::<T>(&range)?, Mode::Update, |bytes| f(bytemuck::cast_slice_mut(bytes)))
}

/// Copies elements of a flat buffer to the host, from element `first` on, as f32; those of i32 bit by bit.
///
/// # Errors
/// As [`read_with`].
pub fn load(flat: &FlatBuffer, first: usize, dtype: DType, out: &mut [f32]) -> Result<()> {
    let range = first..first + out.len();
    if dtype == DType::I32 {
        return read_with::<f32, _>(flat, range, |bits| out.copy_from_slice(bits));
    }
    let lease = flat.read()?;
    with_float!(dtype, "load", T => {
        lend(lease.span().elements::<T>(&range)?, |bytes| widen::<T>(bytes, out))
    })
}

/// Rounds f32 values into `to`, from element `first` on; elements of i32 get the bits of the values.
///
/// # Errors
/// Values that do not fit, or while the buffer is in use elsewhere.
pub fn store(device: &Device, values: &[f32], to: &FlatBuffer, first: usize, dtype: DType) -> Result<()> {
    let range = first..first + values.len();
    if dtype == DType::I32 {
        let lease = to.write()?;
        let all = lease.span().elements::<f32>(&range)?;
        return lend_mut(all, Mode::Write, |to| to.copy_from_slice(bytemuck::cast_slice(values)));
    }
    let lease = to.write()?;
    with_float!(dtype, "store", T => {
        let all = lease.span().elements::<T>(&range)?;
        lend_mut(all, Mode::Write, |to| {
            elementwise::cast::<f32, T>(device.host(), values, bytemuck::cast_slice_mut(to));
        })
    })
}

/// One f64 on a device: a sum with all its digits.
#[derive(Clone, Debug)]
pub struct DeviceF64(FlatBuffer);

impl DeviceF64 {
    /// Zero.
    pub(crate) fn zero(device: &Device, what: &'static str) -> Result<DeviceF64> {
        FlatBuffer::pooled(device, size_of::<f64>(), what).map(DeviceF64)
    }

    /// For a launch that writes it.
    pub(crate) fn lease(&self) -> Result<WriteLease> {
        self.0.write()
    }

    /// The number, copied to the host.
    ///
    /// # Errors
    /// [`Error::Dry`] on a dry device, and what a launch met that made it.
    pub fn read(&self) -> Result<f64> {
        read_with::<f64, _>(&self.0, 0..1, |value| value[0])
    }
}

/// Writes zeros to all of a flat buffer, on its device.
///
/// # Errors
/// While the buffer is in use elsewhere, and what an earlier launch met.
pub fn zero(device: &Device, flat: &FlatBuffer) -> Result<()> {
    let mut lease = flat.write()?;
    let mut launch = device.quiet_launch("zeros");
    let bytes = launch.write_flat::<u8>(&mut lease, &(0..flat.len_bytes()), Mode::Write)?;
    launch.cuda(|gpu| gpu.fill(&bytes, 0))?;
    launch.run(move |cpu| bytes.slice(cpu).fill(0))
}

/// Fills a buffer with zeros.
pub(crate) fn clear(device: &Device, buffer: &mut Buffer) -> Result<()> {
    let mut launch = device.quiet_launch("zeros");
    let len = buffer.len_bytes();
    let bytes = launch.buffer::<u8>(buffer, len)?;
    launch.cuda(|gpu| gpu.fill(&bytes, 0))?;
    launch.run(move |cpu| bytes.slice(cpu).fill(0))
}

/// Copies elements of `dtype`; between a GPU and pinned memory beside its launches, each of which waits only for what it
/// uses.
///
/// # Errors
/// Parts of different lengths, or while one is in use elsewhere.
pub fn copy(device: &Device, dtype: DType, from: &Part<'_>, to: &Part<'_>) -> Result<()> {
    convert(device, (from, dtype), (to, dtype))
}

/// Copies elements of one dtype as another, rounded to nearest.
///
/// # Errors
/// Parts of different lengths, dtypes that are not floats, or while one is in use elsewhere.
pub fn convert(
    device: &Device,
    (from, from_dtype): (&Part<'_>, DType),
    (to, to_dtype): (&Part<'_>, DType),
) -> Result<()> {
    check("convert", from, to)?;
    let (from_lease, mut to_lease) = (from.flat.read()?, to.flat.write()?);
    if device.is_cuda() && from_dtype == to_dtype && (from.flat.is_pinned() || to.flat.is_pinned()) {
        let bytes = |part: &Part<'_>| part.range.start * to_dtype.size()..part.range.end * to_dtype.size();
        return copy_pinned(from_lease.span().part(bytes(from))?, to_lease.span().part(bytes(to))?);
    }
    let bytes = (from.range.len() * (from_dtype.size() + to_dtype.size())) as u64;
    let mut launch = device.launch("transfer", 0, bytes);
    if from_dtype == to_dtype {
        let bytes = |range: &Range<usize>| range.start * to_dtype.size()..range.end * to_dtype.size();
        let from = launch.read_flat::<u8>(&from_lease, &bytes(&from.range))?;
        let to = launch.write_flat::<u8>(&mut to_lease, &bytes(&to.range), Mode::Write)?;
        launch.cuda(|gpu| gpu.copy(&from, &to))?;
        return launch.run(move |cpu| to.slice(cpu).copy_from_slice(from.slice(cpu)));
    }
    with_float!(from_dtype, "convert", F => with_float!(to_dtype, "convert", T => {
        let n = from.range.len();
        let from = launch.read_flat::<F>(&from_lease, &from.range)?;
        let to = launch.write_flat::<T>(&mut to_lease, &to.range, Mode::Write)?;
        launch.cuda(|gpu| forms::cast(gpu, (&from, from_dtype), (&to, to_dtype), n))?;
        launch.run(move |cpu| elementwise::cast(cpu, from.slice(cpu), to.slice(cpu)))
    }))
}

/// Copies all elements of a tensor of a GPU to pinned memory, beside the launches.
pub(crate) fn to_pinned(from: &Tensor, to: &FlatBuffer) -> Result<()> {
    let lease = to.write()?;
    copy_pinned(from.span(), lease.span().part(0..from.len_bytes())?)
}

/// Copies all elements of a tensor of a GPU from pinned memory, beside the launches.
pub(crate) fn from_pinned(from: &FlatBuffer, to: &mut Tensor) -> Result<()> {
    let (lease, bytes) = (from.read()?, to.len_bytes());
    copy_pinned(lease.span().part(0..bytes)?, to.span_mut()?)
}

/// A copy of which one side is pinned memory beside a GPU.
fn copy_pinned(from: Span<'_>, to: Span<'_>) -> Result<()> {
    let (Some(first), Some(to_first)) = (from.ptr, to.ptr) else { return Err(Error::Dry) };
    match (from.owner, to.owner) {
        (Owner::Pinned(pinned), Owner::Cuda(block)) => {
            pinned.upload(first, block, block.start_of(to_first), from.bytes)
        }
        (Owner::Cuda(block), Owner::Pinned(pinned)) => {
            pinned.download(block, block.start_of(first), to_first, from.bytes)
        }
        // The host sees both.
        _ => lend(from, |bytes| lend_mut(to, Mode::Write, |to| to.copy_from_slice(bytes)))?,
    }
}

/// Adds f32 elements to others, or overwrites them.
///
/// # Errors
/// As [`copy`].
pub fn accumulate(device: &Device, from: &Part<'_>, to: &Part<'_>, how: Store) -> Result<()> {
    if how == Store::Overwrite {
        return copy(device, DType::F32, from, to);
    }
    check("accumulate", from, to)?;
    let (from_lease, mut to_lease) = (from.flat.read()?, to.flat.write()?);
    let mut launch = device.launch("transfer", 0, 12 * from.range.len() as u64);
    let n = from.range.len();
    let from = launch.read_flat::<f32>(&from_lease, &from.range)?;
    let to = launch.write_flat::<f32>(&mut to_lease, &to.range, Mode::Update)?;
    launch.cuda(|gpu| forms::add_assign(gpu, (&to, DType::F32), (&from, DType::F32), n))?;
    launch.run(move |cpu| elementwise::add_assign(cpu, to.slice(cpu), from.slice(cpu)))
}

fn check(op: &'static str, from: &Part<'_>, to: &Part<'_>) -> Result<()> {
    if from.range.len() != to.range.len() {
        let (expected, got) = (format!("{} elements", from.range.len()), format!("{}", to.range.len()));
        return Err(Error::Shape { op, expected, got });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use oarlock_kernels::{Isa, Par, bf16};

    use super::*;

    fn flat(device: &Device, values: &[f32]) -> FlatBuffer {
        let flat = FlatBuffer::pooled(device, values.len() * 4, "test").unwrap();
        store(device, values, &flat, 0, DType::F32).unwrap();
        flat
    }

    #[test]
    fn parts_are_copied_converted_and_added() {
        for device in [Device::cpu, Device::strict, Device::staging] {
            let device = device(Isa::detect(), Par::solo());
            let values: Vec<f32> = (0..100).map(|i| i as f32 * 1.001).collect();
            let (a, b) = (flat(&device, &values), flat(&device, &[0.0; 100]));
            let part = |flat, range| Part { flat, range };
            copy(&device, DType::F32, &part(&a, 10..20), &part(&b, 50..60)).unwrap();
            accumulate(&device, &part(&a, 0..10), &part(&b, 50..60), Store::Add).unwrap();
            let mut sums = [0.0; 10];
            load(&b, 50, DType::F32, &mut sums).unwrap();
            assert!(sums.iter().enumerate().all(|(i, &sum)| sum == values[10 + i] + values[i]));
            let half = FlatBuffer::pooled(&device, 200, "test").unwrap();
            convert(&device, (&part(&a, 0..100), DType::F32), (&part(&half, 0..100), DType::BF16)).unwrap();
            let rounded = read_with::<bf16, _>(&half, 37..38, |values| values[0]).unwrap();
            assert_eq!(rounded, <bf16 as Float>::from_f32(values[37]));
            assert!(copy(&device, DType::F32, &part(&a, 0..3), &part(&b, 0..4)).is_err());
            assert!(store(&device, &values, &a, 100, DType::F32).is_err());
            let _held = b.read().unwrap();
            assert!(copy(&device, DType::F32, &part(&a, 0..3), &part(&b, 0..3)).is_err());
        }
    }
}
