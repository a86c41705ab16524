//! Host memory aligned as that of a device, for launches that are staged.

use std::ptr::NonNull;

use bytemuck::{Pod, Zeroable};

use crate::arena::ALIGN;

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[expect(dead_code, reason = "read through casts")] [u8; ALIGN]);

// SAFETY: bytes, of which zeros are a value.
unsafe impl Zeroable for Line {}
// SAFETY: bytes without padding, since the size is the alignment.
unsafe impl Pod for Line {}

/// Memory aligned to [`ALIGN`].
pub(crate) struct Lines(Vec<Line>);

impl Lines {
    /// At least `bytes` bytes of this value.
    pub fn filled(bytes: usize, value: u8) -> Lines {
        Lines(vec![Line([value; ALIGN]); bytes.div_ceil(ALIGN)])
    }

    pub fn first_byte(&mut self) -> NonNull<u8> {
        NonNull::from(&mut self.0[..]).cast()
    }

    /// The first bytes.
    pub fn bytes(&self, bytes: usize) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..bytes]
    }

    /// The first bytes, to be changed.
    pub fn bytes_mut(&mut self, bytes: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..bytes]
    }
}
