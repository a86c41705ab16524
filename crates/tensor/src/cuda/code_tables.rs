//! What the codes of quantized weights mean, in the memory of a GPU.

use oarlock_cuda::Result;
use oarlock_cuda::driver::{Context, DeviceMemory, Slice, Stream};
use oarlock_kernels::quantized::{Code, dynamic_map};

/// The values of 4-bit codes, and of the codes of their scales.
pub(crate) struct CodeTables(DeviceMemory);

/// Bytes of the values of a code, and of all of them before the map of the scales.
const VALUES: usize = 16 * size_of::<f32>();
const MAP: usize = 2 * VALUES;

impl CodeTables {
    pub(super) fn new(context: &Context, stream: &Stream) -> Result<CodeTables> {
        let all = [&Code::Nf4.values()[..], Code::Fp4.values(), dynamic_map()].concat();
        let memory = context.alloc(size_of_val(&all[..]))?;
        stream.write_now(bytemuck::cast_slice(&all), memory.all())?;
        Ok(CodeTables(memory))
    }

    /// The 16 values of a code.
    pub fn values(&self, code: Code) -> Result<Slice<'_>> {
        let start = match code {
            Code::Nf4 => 0,
            Code::Fp4 => VALUES,
        };
        self.0.slice(start..start + VALUES)
    }

    /// The 256 values of the codes of scales.
    pub fn map(&self) -> Result<Slice<'_>> {
        self.0.slice(MAP..self.0.bytes())
    }
}
