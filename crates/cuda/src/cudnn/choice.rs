//! Who computes an attention: the kernels of this crate or cuDNN.

use super::attention::{Pass, is_supported};
use crate::attention::AttentionShape;
use crate::element::Element;

/// The variable that decides it for all shapes, as `own` or `cudnn`.
pub const VARIABLE: &str = "OARLOCK_ATTENTION";

/// Who computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The kernels of this crate.
    Own,
    /// cuDNN, where it has a plan.
    Cudnn,
}

/// Who computes a pass of attention on a GPU of this compute capability, where `wanted` is the value of [`VARIABLE`].
///
/// No GPU has measured where cuDNN is faster, so without the variable it is nowhere.
pub fn attention_choice(
    wanted: Option<&str>,
    (shape, element, _pass): (&AttentionShape, Element, Pass),
    _capability: (u32, u32),
) -> Choice {
    match wanted {
        Some("cudnn") if is_supported(shape, element) => Choice::Cudnn,
        _ => Choice::Own,
    }
}
