//! The norms of many parts of flat buffers at once.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::{transfer, update};
use oarlock_tensor::{Device, Error, FlatBuffer, Par};

use crate::common::own_gpu;

#[test]
fn norms_of_many_parts_are_those_of_each() {
    let (gpu, cpu) = (own_gpu(), Device::cpu(Isa::detect(), Par::solo()));
    for device in gpu.iter().chain([&cpu]) {
        let flat = |bytes| FlatBuffer::pooled(device, bytes, "test").unwrap();
        let (x, one, all) = (flat(4 * 12_000), flat(8 * 70), flat(8 * 70));
        let put = |x: &mut [f32]| x.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 101) as f32 - 50.0);
        transfer::write_with(&x, 0..12_000, put).unwrap();
        let parts = [0..5000, 5001..5001, 5003..9100, 11_000..11_001].into_iter();
        let parts = parts.chain((0..64).map(|i| 20 * i..20 * i + 17));
        let (mut first, mut pairs) = (0, Vec::new());
        for range in parts {
            let sums = first..first + range.len().div_ceil(4096);
            first = sums.end;
            let part = |flat, range| Part { flat, range };
            update::squared_norms(device, &part(&x, range.clone()), &part(&one, sums.clone())).unwrap();
            pairs.push((part(&x, range), part(&all, sums)));
        }
        assert_eq!(first, 69);
        device.profile().enable();
        update::all_squared_norms(device, &pairs).unwrap();
        let calls: u64 = device.profile().take().iter().map(|(_, op)| op.calls).sum();
        assert_eq!(calls, if device.is_cuda() { 2 } else { 68 });
        let read = |flat| transfer::read_with::<f64, _>(flat, 0..69, <[f64]>::to_vec).unwrap();
        assert_eq!(read(&one), read(&all));
        pairs[0].1.range.end += 1;
        assert!(matches!(update::all_squared_norms(device, &pairs), Err(Error::Shape { .. })));
    }
}
