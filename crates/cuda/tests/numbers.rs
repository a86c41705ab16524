//! What the tests share: element types as the host sees them, and what the references say of numbers.

use half::{bf16, f16};
use oarlock_cuda::Element;

pub use oarlock_reference::compare::assert_close;
pub use oarlock_reference::gather::{by_id, padded_by_id};
pub use oarlock_reference::number::{Number, f64s, indices, magnitudes, values};

/// A type that device memory can hold.
pub trait Plain: Copy + PartialEq + std::fmt::Debug + 'static {
    const ELEMENT: Element;
}

/// A float of kernels and of references.
pub trait Float: Plain + Number {}
impl<T: Plain + Number> Float for T {}

macro_rules! plain {
    ($($t:ty = $element:ident),+) => { $(impl Plain for $t { const ELEMENT: Element = Element::$element; })+ };
}
plain!(f32 = F32, f64 = F64, bf16 = BF16, f16 = F16, i8 = I8, u8 = U8, i32 = I32, u32 = U32, u64 = U64);
