//! Who computes an attention: the kernels of this crate or cuDNN.

use std::ffi::OsStr;

use super::attention::{Pass, is_supported};
use crate::attention::{AttentionShape, Tuned};
use crate::element::Element;
use crate::error::{Error, Result};

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

/// What the value of [`VARIABLE`] asks for; none where it is not set.
///
/// # Errors
/// [`Error::Attention`] for a value that is none of the two.
pub fn wanted(value: Option<&OsStr>) -> Result<Option<Choice>> {
    match value.map(|value| value.to_string_lossy()).as_deref() {
        None | Some("") => Ok(None),
        Some("own") => Ok(Some(Choice::Own)),
        Some("cudnn") => Ok(Some(Choice::Cudnn)),
        Some(other) => {
            Err(Error::Attention { reason: format!("{VARIABLE} is `{other}`, not `own` or `cudnn`") })
        }
    }
}

/// Who computes a pass of attention: whom the environment asks for, else who was measured to be faster, else the own kernels.
/// cuDNN computes only what it has a graph for.
pub fn attention_choice(
    wanted: Option<Choice>,
    measured: &Tuned,
    (shape, element, pass): (&AttentionShape, Element, Pass),
) -> Choice {
    if !is_supported(shape, element) {
        return Choice::Own;
    }
    let measured = || measured.get((shape, element, pass)).map(|measured| measured.by);
    wanted.or_else(measured).unwrap_or(Choice::Own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_values_of_the_variable_are_errors() {
        let asked = |value: &str| wanted(Some(OsStr::new(value)));
        assert_eq!(wanted(None).unwrap(), None);
        assert_eq!(asked("").unwrap(), None);
        assert_eq!(asked("own").unwrap(), Some(Choice::Own));
        assert_eq!(asked("cudnn").unwrap(), Some(Choice::Cudnn));
        let said = asked("cuDNN").unwrap_err().to_string();
        assert_eq!(said, "attention by cuDNN: OARLOCK_ATTENTION is `cuDNN`, not `own` or `cudnn`");
    }
}
