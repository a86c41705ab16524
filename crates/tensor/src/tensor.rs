//! The tensor: a dense, contiguous array on a device, and, while a tape records, the place that made it.

use std::sync::Arc;

use oarlock_kernels::{DType, Element, Error, Result};

use crate::arena::Buffer;
use crate::device::Device;
use crate::flat::Lease;
use crate::launch::{Span, offset};
use crate::param::Param;
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
    /// What the host knows of the elements without looking at them.
    known: Option<Known>,
    pub(crate) var: Option<Var>,
}

/// What the host knows of elements on a GPU that it has written: reading them would mean to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Known {
    /// All elements, f32, have this value.
    All(f32),
    /// Integers of at most `greatest`, the negative ones of which are `negative`.
    Ints { greatest: i32, negative: Negative },
}

/// The negative ones among integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Negative {
    None,
    /// All of them have this value.
    Only(i32),
    Several,
}

impl Known {
    /// Of integers; `None` where there are none.
    pub fn of_ints(ints: &[i32]) -> Option<Known> {
        let mut negative = Negative::None;
        for &int in ints.iter().filter(|int| **int < 0) {
            negative = match negative {
                Negative::None => Negative::Only(int),
                Negative::Only(other) if other == int => negative,
                _ => Negative::Several,
            };
        }
        ints.iter().max().map(|&greatest| Known::Ints { greatest, negative })
    }

    /// Whether all are in `0..bound`, or are `ignored`.
    pub fn are_indices(&self, bound: usize, ignored: Option<i32>) -> bool {
        let Known::Ints { greatest, negative } = *self else { return false };
        let is_below = usize::try_from(greatest).map_or(true, |greatest| greatest < bound);
        is_below
            && match negative {
                Negative::None => true,
                Negative::Only(int) => Some(int) == ignored,
                Negative::Several => false,
            }
    }
}

/// What holds the elements: a buffer of the pool, or a read lease on a unit's flat buffer.
#[derive(Clone)]
enum Memory {
    Pooled(Arc<Buffer>),
    Leased { lease: Arc<Lease>, of: Option<Param> },
}

/// Elements of a parameter's working copy, without the lease on it.
pub(crate) struct Loan {
    param: Param,
    /// From the start of the flat buffer, in which the parameter has a fixed place.
    offset_bytes: usize,
    shape: Shape,
}

impl Loan {
    /// Borrows the elements again.
    pub fn borrow(&self) -> Result<Tensor> {
        Ok(Tensor { offset_bytes: self.offset_bytes, shape: self.shape, ..self.param.weight()? })
    }
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
        Ok(Tensor { memory, offset_bytes: 0, shape, dtype, device: device.clone(), known: None, var: None })
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
            memory: Memory::Leased { lease: Arc::new(lease), of: None },
            offset_bytes,
            shape,
            dtype,
            device: device.clone(),
            known: None,
            var: None,
        }
    }

    /// What is lent with it from its first element on, in another shape.
    ///
    /// # Errors
    /// A shape that leaves the memory, or of a tensor that is not lent.
    pub(crate) fn lent_on(self, shape: Shape) -> Result<Tensor> {
        let Memory::Leased { lease, .. } = &self.memory else {
            return Err(Error::Usage("only a weight that is lent has neighbors".to_owned()));
        };
        let bytes = shape.n_elems().saturating_mul(self.dtype.size());
        lease.span().part(self.offset_bytes..self.offset_bytes.saturating_add(bytes))?;
        Ok(Tensor { shape, known: None, ..self })
    }

    /// The same as the working copy of a parameter, which lends it.
    pub(crate) fn lent_by(mut self, param: &Param) -> Tensor {
        if let Memory::Leased { of, .. } = &mut self.memory {
            *of = Some(param.clone());
        }
        self
    }

    /// How to borrow the same elements again later, where a parameter lends them.
    pub(crate) fn loan(&self) -> Option<Loan> {
        match &self.memory {
            Memory::Leased { of: Some(param), .. } => {
                Some(Loan { param: param.clone(), offset_bytes: self.offset_bytes, shape: self.shape })
            }
            _ => None,
        }
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

    /// Its elements' memory, for launches and copies: initialized, and alive as long as `self`. It is written only
    /// through [`Tensor::span_mut`], or after every lease on it has ended.
    pub(crate) fn span(&self) -> Span<'_> {
        let whole = match &self.memory {
            Memory::Pooled(buffer) => buffer.span(),
            Memory::Leased { lease, .. } => lease.span(),
        };
        // Constructors keep offset + length inside the memory.
        let ptr = whole.ptr.map(|ptr| offset(ptr, self.offset_bytes));
        Span { ptr, bytes: self.len_bytes(), ..whole }
    }

    /// The same to be written, for its only owner.
    pub(crate) fn span_mut(&mut self) -> Result<Span<'_>> {
        if !self.is_unique() {
            return Err(Error::Usage("a tensor that is shared or leased cannot be written".to_string()));
        }
        self.known = None;
        Ok(self.span())
    }

    /// Whether it holds elements of type `T`.
    pub(crate) fn check_elements<T: Element>(&self, op: &'static str) -> Result<()> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType { op, expected: T::NAME, got: self.dtype });
        }
        Ok(())
    }

    /// Its shape and dtype in words, for messages: `Tensor([2, 3], f32)`.
    pub fn describe(&self) -> String {
        format!("Tensor({:?}, {})", self.shape, self.dtype)
    }

    /// The size of its elements together.
    pub(crate) fn len_bytes(&self) -> usize {
        self.n_elems() * self.dtype.size()
    }

    /// What the host knows of the elements.
    pub(crate) fn known(&self) -> Option<Known> {
        self.known
    }

    /// The same, of which the host knows this.
    pub(crate) fn with_known(self, known: Option<Known>) -> Tensor {
        Tensor { known, ..self }
    }

    /// Whether nobody else sees this memory, so that an op may write into it.
    pub(crate) fn is_unique(&self) -> bool {
        match &self.memory {
            Memory::Pooled(buffer) => Arc::strong_count(buffer) == 1,
            Memory::Leased { .. } => false,
        }
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
