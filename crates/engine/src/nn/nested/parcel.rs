//! Values on their way to another rank: what `Nested::pack` writes and `Nested::unpack` reads.

use half::{bf16, f16};
use oarlock_tensor::{DType, Device, Element, Tensor};

use crate::{Error, Result};

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

    /// What is in bytes from another rank; its tensors come to `device`.
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
        self.put(&[match tensor.dtype() {
            DType::F32 => 0,
            DType::BF16 => 1,
            DType::F16 => 2,
            DType::I32 => 3,
        }]);
        self.put(&tensor.to_bytes()?);
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
        let n_bytes =
            sizes.iter().try_fold(size_of::<T>(), |n, size| n.checked_mul(*size)).ok_or_else(broken)?;
        let bytes = self.take(n_bytes)?;
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use oarlock_tensor::Par;
    use oarlock_tensor::cpu::Isa;

    use super::*;
    use crate::nn::nested::Nested;

    fn device() -> Device {
        Device::cpu(Isa::detect(), Par::threads(1).unwrap())
    }

    type Value =
        (Vec<Tensor>, Option<String>, [bool; 2], BTreeMap<String, i64>, HashMap<u8, f32>, char, Option<()>);

    fn value(device: &Device) -> Value {
        let halves = [f16::from_f32(0.5), f16::from_f32(-2.0)];
        let brains = [bf16::from_f32(3.0)];
        let tensors = vec![
            Tensor::from_slice(&[1.5_f32, f32::NAN, -0.0, 4.0], [2, 2], device).unwrap(),
            Tensor::from_slice(&[-7_i32, 8], [1, 2, 1], device).unwrap(),
            Tensor::from_slice(&halves, [2], device).unwrap(),
            Tensor::from_slice(&brains, [1], device).unwrap(),
        ];
        let map = BTreeMap::from([("é".to_owned(), -3), (String::new(), i64::MAX)]);
        (tensors, Some("text".to_owned()), [true, false], map, HashMap::from([(1, 0.5)]), '\u{1f6a3}', None)
    }

    #[test]
    fn what_is_packed_comes_out_to_the_bit() {
        let device = device();
        let (before, mut parcel) = (value(&device), Parcel::new(&device));
        before.pack(&mut parcel).unwrap();
        let after = Value::unpack(&mut Parcel::open(parcel.bytes().to_vec(), &device)).unwrap();
        let bits = |value: &Value| {
            value.0[0].to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(&before), bits(&after));
        assert_eq!(before.0[1].to_vec::<i32>().unwrap(), after.0[1].to_vec::<i32>().unwrap());
        assert_eq!(before.0[2].to_vec::<f16>().unwrap(), after.0[2].to_vec::<f16>().unwrap());
        assert_eq!(before.0[3].to_vec::<bf16>().unwrap(), after.0[3].to_vec::<bf16>().unwrap());
        assert_eq!(after.0[1].sizes(), [1, 2, 1]);
        let rest = |value: Value| (value.1, value.2, value.3, value.4, value.5, value.6);
        assert_eq!(rest(before), rest(after));
    }

    #[test]
    fn a_parcel_that_is_cut_short_is_an_error() {
        let device = device();
        let mut parcel = Parcel::new(&device);
        value(&device).pack(&mut parcel).unwrap();
        for n in 0..parcel.bytes().len() {
            assert!(Value::unpack(&mut Parcel::open(parcel.bytes()[..n].to_vec(), &device)).is_err(), "{n}");
        }
    }

    struct Own;

    impl Nested for Own {
        fn map_tensors(&self, _f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Own> {
            Ok(Own)
        }
    }

    #[test]
    fn a_type_that_does_not_say_how_it_travels_is_named() {
        let message = Own.pack(&mut Parcel::new(&device())).unwrap_err().to_string();
        assert!(
            message.contains("tests::Own are not sent to other ranks; derive Nested for it"),
            "{message}"
        );
    }
}
