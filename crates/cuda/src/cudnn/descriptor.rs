//! Descriptors of cuDNN: what its graphs and plans consist of, each with numbered attributes.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::api::{Api, Handle, Status, call};
use crate::error::Result;

/// What a descriptor describes, by `cudnnBackendDescriptorType_t`.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Kind {
    Pointwise = 0,
    Engine = 2,
    EngineConfig = 3,
    EngineHeuristic = 4,
    Plan = 5,
    PointwiseOp = 13,
    Graph = 15,
    VariantPack = 16,
    Tensor = 17,
    Matmul = 18,
    MatmulOp = 19,
    Reduction = 21,
    ReductionOp = 22,
    ReshapeOp = 31,
    DeviceProperties = 38,
}

/// The type of an attribute's elements, by `cudnnBackendAttributeType_t`.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Type {
    Handle = 0,
    Dtype = 1,
    Boolean = 2,
    Int64 = 3,
    Pointer = 6,
    HeuristicMode = 8,
    NumericalNote = 11,
    PointwiseMode = 14,
    Descriptor = 15,
    ReductionOperator = 18,
    Char = 24,
}

/// One of them.
pub(super) struct Descriptor {
    handle: Handle,
    api: Arc<Api>,
}

// SAFETY: a descriptor is memory of the library, without a thread of its own; whoever changes one has it alone.
unsafe impl Send for Descriptor {}

impl Descriptor {
    pub(super) fn new(api: &Arc<Api>, kind: Kind) -> Result<Descriptor> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        api.check(unsafe { call!(api, descriptor_create(kind as c_int, &mut handle)) })?;
        Ok(Descriptor { handle, api: api.clone() })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Sets an attribute to these elements, which must have the size of their type in the library.
    pub(super) fn set<T: Copy>(&self, attribute: c_int, of: Type, elements: &[T]) -> Result<()> {
        let at: *const c_void = elements.as_ptr().cast();
        let n = elements.len() as i64;
        // SAFETY: the descriptor is live, and the function reads as many elements as there are.
        let called = unsafe { call!(self.api, descriptor_set(self.handle, attribute, of as c_int, n, at)) };
        self.api.check(called)
    }

    /// As [`Descriptor::set`], to one number of an enumeration.
    pub(super) fn set_number(&self, attribute: c_int, of: Type, number: c_int) -> Result<()> {
        self.set(attribute, of, &[number])
    }

    /// As [`Descriptor::set`], to other descriptors.
    pub(super) fn set_descriptors(&self, attribute: c_int, others: &[&Descriptor]) -> Result<()> {
        let handles: Vec<Handle> = others.iter().map(|other| other.handle).collect();
        self.set(attribute, Type::Descriptor, &handles)
    }

    /// Writes the elements of an attribute over `elements`; how many the attribute has.
    pub(super) fn get<T: Copy>(&self, attribute: c_int, of: Type, elements: &mut [T]) -> Result<usize> {
        let (called, count) = self.ask(attribute, of, elements);
        self.api.check(called)?;
        Ok(usize::try_from(count).unwrap_or(0).min(elements.len()))
    }

    /// Fills descriptors of the right kind from an attribute, and drops those that are too many.
    pub(super) fn get_descriptors(&self, attribute: c_int, others: &mut Vec<Descriptor>) -> Result<()> {
        let mut handles: Vec<Handle> = others.iter().map(|other| other.handle).collect();
        let n = self.get(attribute, Type::Descriptor, &mut handles)?;
        others.truncate(n);
        Ok(())
    }

    fn ask<T: Copy>(&self, attribute: c_int, of: Type, elements: &mut [T]) -> ((&'static str, Status), i64) {
        let (n, mut count) = (elements.len() as i64, 0);
        let at: *mut c_void = elements.as_mut_ptr().cast();
        // SAFETY: the descriptor is live, and the function writes no more elements than there are.
        let called = unsafe {
            call!(self.api, descriptor_get(self.handle, attribute, of as c_int, n, &mut count, at))
        };
        (called, count)
    }

    /// Declares it complete, and checks it.
    pub(super) fn finalize(self) -> Result<Descriptor> {
        // SAFETY: the descriptor is live.
        self.api.check(unsafe { call!(self.api, finalize(self.handle)) })?;
        Ok(self)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made once, ended once. A failure leaves nothing to do.
        unsafe { (self.api.descriptor_destroy.call)(self.handle) };
    }
}
