//! The tensor: a dense, contiguous array on a device, and, while a tape records, the place that made it.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::arena::Buffer;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::flat::Lease;
use crate::shape::{IntoShape, Shape};
use crate::tape::{Tape, Var};

/// A dense, row-major array. Cloning shares the memory; no op changes a tensor that somebody else can see.
#[derive(Clone)]
pub struct Tensor {
    memory: Memory,
    /// First element, in bytes from the start of the memory.
    offset_bytes: usize,
    shape: Shape,
    dtype: DType,
    device: Device,
    pub(crate) var: Option<Var>,
}

/// What holds the elements: a buffer of the pool, or a read lease on a unit's flat buffer.
#[derive(Clone)]
enum Memory {
    Pooled(Arc<Buffer>),
    Leased(Arc<Lease>),
}

impl Tensor {
    /// A tensor of arbitrary content, for a kernel to fill. `what` names it in the memory table.
    pub(crate) fn uninit(
        shape: impl IntoShape,
        dtype: DType,
        device: &Device,
        what: &'static str,
    ) -> Result<Tensor> {
        let shape = shape.into_shape()?;
        let buffer = device.arena().allocate(shape.n_elems() * dtype.size(), what)?;
        let memory = Memory::Pooled(Arc::new(buffer));
        Ok(Tensor { memory, offset_bytes: 0, shape, dtype, device: device.clone(), var: None })
    }

    /// A read-only window on a unit's flat buffer.
    pub(crate) fn leased(
        lease: Lease,
        offset_bytes: usize,
        shape: Shape,
        dtype: DType,
        device: &Device,
    ) -> Tensor {
        Tensor {
            memory: Memory::Leased(Arc::new(lease)),
            offset_bytes,
            shape,
            dtype,
            device: device.clone(),
            var: None,
        }
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// No memory, or an impossible shape.
    pub fn zeros(shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Tensor> {
        let mut t = Tensor::uninit(shape, dtype, device, "tensor")?;
        if !device.is_dry() {
            t.bytes_mut()?.fill(0);
        }
        Ok(t)
    }

    /// A tensor with these elements, in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`] when their number is not the shape's.
    pub fn from_slice<T: Element>(data: &[T], shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        let shape = shape.into_shape()?;
        if shape.n_elems() != data.len() {
            return Err(Error::Shape {
                op: "from_slice",
                expected: format!("{} elements for shape {shape:?}", shape.n_elems()),
                got: format!("{} elements", data.len()),
            });
        }
        let mut t = Tensor::uninit(shape, T::DTYPE, device, "tensor")?;
        if !device.is_dry() {
            t.slice_mut::<T>()?.copy_from_slice(data);
        }
        Ok(t)
    }

    /// A copy in memory of its own, not recorded.
    pub(crate) fn copied(&self, what: &'static str) -> Result<Tensor> {
        let mut copy = Tensor::uninit(self.shape, self.dtype, &self.device, what)?;
        if !self.device.is_dry() {
            copy.bytes_mut()?.copy_from_slice(self.bytes()?);
        }
        Ok(copy)
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The sizes of its dims.
    pub fn sizes(&self) -> &[usize] {
        self.shape.sizes()
    }

    /// The number of elements.
    pub fn n_elems(&self) -> usize {
        self.shape.n_elems()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device it lives on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The elements of a tensor in host memory.
    ///
    /// # Errors
    /// [`Error::DType`] when they are of another type, [`Error::Dry`] when there are none.
    pub fn slice<T: Element>(&self) -> Result<&[T]> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType { op: "slice", expected: dtype_name::<T>(), got: self.dtype });
        }
        Ok(bytemuck::cast_slice(self.bytes()?))
    }

    /// The elements, for the only owner of the memory.
    pub(crate) fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType { op: "slice_mut", expected: dtype_name::<T>(), got: self.dtype });
        }
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()?))
    }

    /// The first byte of the memory that it lies in, where that is not dry.
    fn ptr(&self) -> Result<NonNull<u8>> {
        let ptr = match &self.memory {
            Memory::Pooled(buffer) => buffer.ptr(),
            Memory::Leased(lease) => lease.ptr(),
        };
        ptr.ok_or(Error::Dry)
    }

    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        let start = self.ptr()?.as_ptr();
        // SAFETY: constructors keep offset + length inside the memory, which is initialised, outlives `self`, and is
        // written only through `bytes_mut` (sole owner) or after every lease on it has ended.
        Ok(unsafe { std::slice::from_raw_parts(start.add(self.offset_bytes), self.len_bytes()) })
    }

    pub(crate) fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        if !self.is_unique() {
            return Err(Error::Usage("a tensor that is shared or leased cannot be written".to_string()));
        }
        let start = self.ptr()?.as_ptr();
        // SAFETY: as in `bytes`; the memory is a buffer without another owner, and `self` is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.add(self.offset_bytes), self.len_bytes()) })
    }

    /// The size of its elements together.
    pub(crate) fn len_bytes(&self) -> usize {
        self.n_elems() * self.dtype.size()
    }

    /// Whether nobody else sees this memory, so that an op may write into it.
    pub(crate) fn is_unique(&self) -> bool {
        match &self.memory {
            Memory::Pooled(buffer) => Arc::strong_count(buffer) == 1,
            Memory::Leased(_) => false,
        }
    }

    /// Copies `rows` over the part of this tensor that begins at `first` of dim `dim`; the dims before it have size 1,
    /// those after it are equal. Only for the sole owner of the memory.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit, or a shared tensor.
    pub fn write_rows(&mut self, dim: usize, first: usize, rows: &Tensor) -> Result<()> {
        let fits = rows.dtype == self.dtype
            && rows.sizes().len() == self.sizes().len()
            && dim < self.sizes().len()
            && self.sizes()[..dim].iter().all(|&s| s == 1)
            && rows.sizes()[..dim].iter().all(|&s| s == 1)
            && rows.sizes()[dim + 1..] == self.sizes()[dim + 1..]
            && first + rows.sizes()[dim] <= self.sizes()[dim];
        if !fits {
            return Err(Error::Shape {
                op: "write_rows",
                expected: format!("rows that fit into {self:?} from {first} of dim {dim} on"),
                got: format!("{rows:?}"),
            });
        }
        let row_bytes = self.sizes()[dim + 1..].iter().product::<usize>() * self.dtype.size();
        if !self.device.is_dry() {
            self.bytes_mut()?[first * row_bytes..][..rows.len_bytes()].copy_from_slice(rows.bytes()?);
        }
        Ok(())
    }

    /// A copy of the elements.
    ///
    /// # Errors
    /// [`Error::DType`] when they are of another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.slice::<T>()?.to_vec())
    }

    /// The value of a one-element float tensor.
    ///
    /// # Errors
    /// More than one element, or integers.
    pub fn item(&self) -> Result<f32> {
        if self.n_elems() != 1 {
            return Err(Error::Shape {
                op: "item",
                expected: "one element".to_string(),
                got: format!("{:?}", self.shape),
            });
        }
        match self.dtype {
            DType::F32 => Ok(self.slice::<f32>()?[0]),
            DType::BF16 => Ok(self.slice::<half::bf16>()?[0].to_f32()),
            DType::F16 => Ok(self.slice::<half::f16>()?[0].to_f32()),
            DType::I32 => Err(Error::DType { op: "item", expected: "a float", got: self.dtype }),
        }
    }

    /// As [`Tensor::item`]; `None` on a dry device, where nothing has a value.
    pub(crate) fn known_item(&self) -> Result<Option<f32>> {
        if self.device.is_dry() { Ok(None) } else { self.item().map(Some) }
    }

    /// The same elements on another device; a copy, unless it is there already. Not recorded.
    ///
    /// # Errors
    /// No memory.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device.same(device) {
            return Ok(self.clone());
        }
        let mut copy = Tensor::uninit(self.shape, self.dtype, device, "copy")?;
        if !device.is_dry() {
            copy.bytes_mut()?.copy_from_slice(self.bytes()?);
        }
        Ok(copy)
    }

    /// The tape it is on.
    pub fn tape(&self) -> Option<Tape> {
        self.var.as_ref().map(|var| var.tape().clone())
    }

    /// The same elements, cut off from the tape: no gradient flows through it.
    pub fn detach(&self) -> Tensor {
        Tensor { var: None, ..self.clone() }
    }

    /// The same elements at a place on a tape.
    pub(crate) fn on(self, var: Var) -> Tensor {
        Tensor { var: Some(var), ..self }
    }

    /// Another view of the same memory: same elements from `first` on, another shape. Not recorded.
    pub(crate) fn view(&self, first: usize, shape: Shape) -> Tensor {
        debug_assert!(first + shape.n_elems() <= self.n_elems());
        let offset_bytes = self.offset_bytes + first * self.dtype.size();
        Tensor { offset_bytes, shape, var: None, ..self.clone() }
    }
}

fn dtype_name<T: Element>() -> &'static str {
    match T::DTYPE {
        DType::F32 => "f32",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::I32 => "i32",
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?}, {})", self.shape, self.dtype)
    }
}
