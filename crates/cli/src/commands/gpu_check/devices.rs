//! The two devices that are compared.

use oarlock_comm::available_cores;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par, Tensor};

/// The two devices that are compared.
pub(super) struct Devices {
    pub(super) gpu: Device,
    pub(super) cpu: Device,
}

impl Devices {
    pub(super) fn open() -> oarlock::Result<Devices> {
        let par = Par::threads(available_cores().len())?;
        let cpu = Device::cpu(Isa::detect(), par.clone());
        Ok(Devices { gpu: Device::cuda(0, Isa::detect(), par)?, cpu })
    }

    /// Whether the GPU still takes and gives numbers: after some errors of a kernel it does not.
    pub(super) fn gpu_answers(&self) -> bool {
        let there = Tensor::from_slice(&[1.5f32, -2.0], [2], &self.gpu);
        there.and_then(|there| there.to_vec::<f32>()).is_ok_and(|back| back == [1.5, -2.0])
    }
}
