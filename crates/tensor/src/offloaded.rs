//! Activations of a GPU that wait for their backward pass in pinned memory, so that the GPU has their memory meanwhile.

use std::cell::RefCell;

use oarlock_kernels::{DType, Result};

use crate::device::Device;
use crate::flat::FlatBuffer;
use crate::ops::transfer;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A tensor whose elements are in pinned memory.
pub(crate) struct OffloadedTensor {
    host: FlatBuffer,
    shape: Shape,
    dtype: DType,
    device: Device,
    /// On its way back, or there.
    back: RefCell<Option<Tensor>>,
}

impl OffloadedTensor {
    /// Copies a tensor out, beside what is launched from now on.
    ///
    /// # Errors
    /// No memory that can be pinned; another device than a GPU.
    pub fn new(tensor: &Tensor) -> Result<OffloadedTensor> {
        let device = tensor.device().clone();
        let host = FlatBuffer::borrowed_pinned(&device, tensor.len_bytes(), "offloaded activations")?;
        transfer::to_pinned(tensor, &host)?;
        Ok(OffloadedTensor {
            host,
            shape: *tensor.shape(),
            dtype: tensor.dtype(),
            device,
            back: RefCell::default(),
        })
    }

    /// Begins to copy it back.
    ///
    /// # Errors
    /// No memory, and what an earlier launch met.
    pub fn begin(&self) -> Result<()> {
        let mut back = self.back.borrow_mut();
        if back.is_none() {
            let mut tensor = Tensor::uninit(self.shape, self.dtype, &self.device, "activations")?;
            transfer::from_pinned(&self.host, &mut tensor)?;
            *back = Some(tensor);
        }
        Ok(())
    }

    /// The tensor, for launches from now on.
    ///
    /// # Errors
    /// As [`OffloadedTensor::begin`].
    pub fn get(&self) -> Result<Tensor> {
        self.begin()?;
        // Its caller keeps it as long as it is needed.
        self.back.take().ok_or(oarlock_kernels::Error::Dry)
    }
}
