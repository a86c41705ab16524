//! Values on their way to another rank: what `Nested::pack` writes and `Nested::unpack` reads.

use half::{bf16, f16};
use oarlock_tensor::{DType, Device, Element, Tensor};

use crate::error::{Error, Result};

/// A value as bytes. It is read in the order in which it was written, by a rank of the same program.
pub struct Parcel {
    bytes: Vec<u8>,
    /// How far it is read.
    at: usize,
    /// Where its tensors are made.
    device: Device,
}

impl Parcel {
    pub(crate) fn new(device: &Device) -> Parcel {
        Parcel::open(Vec::new(), device)
    }

    pub(crate) fn open(bytes: Vec<u8>, device: &Device) -> Parcel {
        Parcel { bytes, at: 0, device: device.clone() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes bytes whose number the reader knows.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Reads so many bytes.
    ///
    /// # Errors
    /// There are not as many.
    pub fn take(&mut self, n: usize) -> Result<&[u8]> {
        let bytes = self.bytes.get(self.at..).and_then(|rest| rest.get(..n)).ok_or_else(broken)?;
        self.at += n;
        Ok(bytes)
    }

    /// Writes a number.
    pub fn put_len(&mut self, n: usize) {
        self.put(&(n as u64).to_le_bytes());
    }

    /// Reads a number.
    ///
    /// # Errors
    /// There is none.
    pub fn take_len(&mut self) -> Result<usize> {
        let bytes = self.take(8)?.try_into().map_err(|_| broken())?;
        usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| broken())
    }

    /// Writes something that can be skipped.
    pub(crate) fn nest(&mut self, write: impl FnOnce(&mut Parcel) -> Result<()>) -> Result<()> {
        let begin = self.bytes.len();
        self.put_len(0);
        write(self)?;
        let len = (self.bytes.len() - begin - 8) as u64;
        self.bytes[begin..begin + 8].copy_from_slice(&len.to_le_bytes());
        Ok(())
    }

    /// Begins to read what was nested.
    pub(crate) fn enter(&mut self) -> Result<usize> {
        self.take_len()
    }

    /// Goes past what was nested.
    pub(crate) fn skip(&mut self) -> Result<()> {
        let n = self.enter()?;
        self.take(n).map(|_| ())
    }

    pub(super) fn put_tensor(&mut self, tensor: &Tensor) -> Result<()> {
        self.put_len(tensor.sizes().len());
        for size in tensor.sizes() {
            self.put_len(*size);
        }
        let (code, bytes): (u8, &[u8]) = match tensor.dtype() {
            DType::F32 => (0, bytemuck::cast_slice(tensor.slice::<f32>()?)),
            DType::BF16 => (1, bytemuck::cast_slice(tensor.slice::<bf16>()?)),
            DType::F16 => (2, bytemuck::cast_slice(tensor.slice::<f16>()?)),
            DType::I32 => (3, bytemuck::cast_slice(tensor.slice::<i32>()?)),
        };
        self.put(&[code]);
        self.put(bytes);
        Ok(())
    }

    pub(super) fn take_tensor(&mut self) -> Result<Tensor> {
        let n_dims = self.take_len()?;
        let sizes = (0..n_dims).map(|_| self.take_len()).collect::<Result<Vec<_>>>()?;
        match self.take(1)?[0] {
            0 => self.elements::<f32>(&sizes),
            1 => self.elements::<bf16>(&sizes),
            2 => self.elements::<f16>(&sizes),
            3 => self.elements::<i32>(&sizes),
            _ => Err(broken()),
        }
    }

    fn elements<T: Element>(&mut self, sizes: &[usize]) -> Result<Tensor> {
        let device = self.device.clone();
        let bytes = self.take(sizes.iter().product::<usize>() * size_of::<T>())?;
        let elements: Vec<T> = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
        Ok(Tensor::from_slice(&elements, sizes, &device)?)
    }
}

/// Not what was expected.
pub(super) fn broken() -> Error {
    Error::Usage(
        "a value came from another rank in another form than expected; all ranks run the same program"
            .to_owned(),
    )
}
