//! Moves between flat buffers, outside any tape: copies, conversions and sums of parts.

use crate::cpu::elementwise;
use crate::device::{Device, Kind};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::flat::FlatBuffer;
use crate::ops::optimizer::Part;
use crate::ops::with_float;
use crate::param::Store;

/// Copies elements of `dtype`.
///
/// # Errors
/// Parts of different lengths, or while one is in use elsewhere.
pub fn copy(device: &Device, dtype: DType, from: &Part<'_>, to: &Part<'_>) -> Result<()> {
    convert(device, (from, dtype), (to, dtype))
}

/// Copies elements of one dtype as another, rounded to nearest.
///
/// # Errors
/// Parts of different lengths, dtypes that are no floats, or while one is in use elsewhere.
pub fn convert(
    device: &Device,
    (from, from_dtype): (&Part<'_>, DType),
    (to, to_dtype): (&Part<'_>, DType),
) -> Result<()> {
    check("convert", from, to)?;
    let (from_lease, mut to_lease) = (from.flat.read()?, to.flat.write()?);
    let (from, to) = (from.range.clone(), to.range.clone());
    let bytes = (from.len() * (from_dtype.size() + to_dtype.size())) as u64;
    device.profile().time("transfer", 0, bytes, || {
        let Kind::Cpu(cpu) = device.kind();
        if from_dtype == to_dtype {
            let size = from_dtype.size();
            let source = &from_lease.bytes()[from.start * size..from.end * size];
            to_lease.bytes_mut()[to.start * size..to.end * size].copy_from_slice(source);
            return Ok(());
        }
        with_float!(from_dtype, "convert", F => with_float!(to_dtype, "convert", T => {
            elementwise::cast(cpu, &from_lease.slice::<F>()[from], &mut to_lease.slice_mut::<T>()[to]);
            Ok(())
        }))
    })
}

/// Rounds f32 values into `to`, from element `first` on.
///
/// # Errors
/// Values that do not fit, a dtype that is no float, or while the buffer is in use elsewhere.
pub fn store(device: &Device, values: &[f32], to: &FlatBuffer, first: usize, dtype: DType) -> Result<()> {
    let range = first..first + values.len();
    if range.end * dtype.size() > to.len_bytes() {
        return Err(outside("store", &range, to));
    }
    let mut lease = to.write()?;
    let Kind::Cpu(cpu) = device.kind();
    with_float!(dtype, "store", T => {
        elementwise::cast(cpu, values, &mut lease.slice_mut::<T>()[range]);
        Ok(())
    })
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
    let Kind::Cpu(cpu) = device.kind();
    device.profile().time("transfer", 0, 12 * from.range.len() as u64, || {
        let source = &from_lease.slice::<f32>()[from.range.clone()];
        elementwise::add_assign(cpu, &mut to_lease.slice_mut::<f32>()[to.range.clone()], source);
    });
    Ok(())
}

fn check(op: &'static str, from: &Part<'_>, to: &Part<'_>) -> Result<()> {
    if from.range.len() != to.range.len() {
        let (expected, got) = (format!("{} elements", from.range.len()), format!("{}", to.range.len()));
        return Err(Error::Shape { op, expected, got });
    }
    Ok(())
}

fn outside(op: &'static str, range: &std::ops::Range<usize>, flat: &FlatBuffer) -> Error {
    Error::Shape { op, expected: format!("elements inside of {flat:?}"), got: format!("{range:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::dtype::bf16;
    use crate::par::Par;

    fn flat(device: &Device, values: &[f32]) -> FlatBuffer {
        let flat = FlatBuffer::pooled(device, values.len() * 4, "test").unwrap();
        store(device, values, &flat, 0, DType::F32).unwrap();
        flat
    }

    #[test]
    fn parts_are_copied_converted_and_added() {
        let device = Device::cpu(Isa::detect(), Par::solo());
        let values: Vec<f32> = (0..100).map(|i| i as f32 * 1.001).collect();
        let (a, b) = (flat(&device, &values), flat(&device, &[0.0; 100]));
        let part = |flat, range| Part { flat, range };
        copy(&device, DType::F32, &part(&a, 10..20), &part(&b, 50..60)).unwrap();
        accumulate(&device, &part(&a, 0..10), &part(&b, 50..60), Store::Add).unwrap();
        let sums = b.read().unwrap().slice::<f32>()[50..60].to_vec();
        assert!(sums.iter().enumerate().all(|(i, &sum)| sum == values[10 + i] + values[i]));
        let half = FlatBuffer::pooled(&device, 200, "test").unwrap();
        convert(&device, (&part(&a, 0..100), DType::F32), (&part(&half, 0..100), DType::BF16)).unwrap();
        assert_eq!(half.read().unwrap().slice::<bf16>()[37], bf16::from_f32(values[37]));
        assert!(copy(&device, DType::F32, &part(&a, 0..3), &part(&b, 0..4)).is_err());
        assert!(store(&device, &values, &a, 100, DType::F32).is_err());
        let _held = b.read().unwrap();
        assert!(copy(&device, DType::F32, &part(&a, 0..3), &part(&b, 0..3)).is_err());
    }
}
