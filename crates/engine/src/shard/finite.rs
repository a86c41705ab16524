//! Weights that are not finite numbers, or would be none in a dtype: found and counted wherever weights pass, so that
//! none is written, nor computed with, without a word.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use oarlock_tensor::DType;

use crate::Result;
use crate::report::error::{UnfitParameter, UnfitWeights};

/// How many of some numbers a dtype cannot hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfit {
    not_finite: usize,
    too_large: usize,
}

impl Unfit {
    /// Those of `values`.
    pub(crate) fn of(values: &[f32], dtype: DType) -> Unfit {
        let limit = limit(dtype);
        // Most often there is none, which a loop without a branch sees.
        let n = values.iter().fold(0usize, |n, x| n + usize::from(x.is_nan() | (x.abs() >= limit)));
        if n == 0 {
            return Unfit::default();
        }
        let not_finite = values.iter().filter(|x| !x.is_finite()).count();
        Unfit { not_finite, too_large: n - not_finite }
    }

    /// Whether there is any.
    pub(crate) fn any(self) -> bool {
        self != Unfit::default()
    }
}

impl AddAssign for Unfit {
    fn add_assign(&mut self, more: Unfit) {
        self.not_finite += more.not_finite;
        self.too_large += more.too_large;
    }
}

/// The least size of a number that the dtype rounds to infinity.
fn limit(dtype: DType) -> f32 {
    match dtype {
        // Half a step beyond the largest number, from where ties go up.
        DType::F16 => 65520.0,
        DType::BF16 => f32::from_bits(0x7f7f_8000),
        _ => f32::INFINITY,
    }
}

/// What was found of some parameters, by their names.
#[derive(Debug, Default)]
pub struct Findings(BTreeMap<String, (Unfit, DType, usize)>);

impl Findings {
    /// Looks at elements of a parameter, which has `n_elems`.
    pub(crate) fn look(&mut self, name: &str, n_elems: usize, values: &[f32], dtype: DType) {
        let unfit = Unfit::of(values, dtype);
        if unfit.any() {
            self.0.entry(name.to_owned()).or_insert((Unfit::default(), dtype, n_elems)).0 += unfit;
        }
    }

    /// Whether all was as it should be.
    pub(crate) fn verdict(self, purpose: &'static str) -> Result<()> {
        let Some((_, dtype, _)) = self.0.values().next().copied() else { return Ok(()) };
        let parameter = |(name, (unfit, _, n_elems)): (String, (Unfit, DType, usize))| UnfitParameter {
            name,
            n_elems,
            not_finite: unfit.not_finite,
            too_large: unfit.too_large,
        };
        Err(UnfitWeights { purpose, dtype, parameters: self.0.into_iter().map(parameter).collect() }.into())
    }
}

/// Refuses elements of a parameter that a dtype would make infinite, such as weights that are loaded in f16.
///
/// # Errors
/// [`UnfitWeights`] with the name of the parameter.
pub fn check_range(name: &str, n_elems: usize, values: &[f32], dtype: DType) -> Result<()> {
    // What is infinite already is so by the will of a model's author: files of weights are looked at where they are read.
    if !dtype.is_float() || Unfit::of(values, dtype).too_large == 0 {
        return Ok(());
    }
    let mut findings = Findings::default();
    findings.look(name, n_elems, values, dtype);
    findings.verdict("computed with")
}

#[cfg(test)]
mod tests {
    use oarlock_tensor::{bf16, f16};

    use super::*;

    #[test]
    fn a_number_is_too_large_exactly_where_the_dtype_makes_it_infinite() {
        let near = |x: f32| [x.next_down(), x, x.next_up(), -x.next_down(), -x, -x.next_up()];
        let values = [65504.0, 65519.0, 65520.0, limit(DType::BF16), f32::MAX, 0.0, 1.0];
        for x in values.into_iter().flat_map(near) {
            let unfit = |dtype| Unfit::of(&[x], dtype).any();
            assert_eq!(unfit(DType::F16), f16::from_f32(x).is_infinite(), "{x}");
            assert_eq!(unfit(DType::BF16), bf16::from_f32(x).is_infinite(), "{x}");
            assert_eq!(unfit(DType::F32), x.is_infinite(), "{x}");
        }
    }

    #[test]
    fn all_that_is_unfit_is_counted_and_named() {
        let mut findings = Findings::default();
        findings.look("b", 6, &[1.0, f32::NAN, -f32::NAN], DType::F16);
        findings.look("b", 6, &[f32::INFINITY, 1e6, 2.0], DType::F16);
        findings.look("a", 2, &[1.0, 2.0], DType::F16);
        let text = findings.verdict("written").unwrap_err().to_string();
        assert!(
            text.starts_with("weights are NaN or infinite, so they are not written: \"b\" (3 of 6);"),
            "{text}"
        );

        let mut findings = Findings::default();
        for name in ["a", "b", "c", "d", "e"] {
            findings.look(name, 2, &[-1e6, 0.0], DType::F16);
        }
        let text = findings.verdict("written").unwrap_err().to_string();
        let named =
            "\"a\" (1 of 2), \"b\" (1 of 2), \"c\" (1 of 2) and 2 more parameters; take bfloat16 or float32";
        assert!(text.contains("too large for f16") && text.contains(named), "{text}");
        assert!(Findings::default().verdict("written").is_ok());
        assert!(check_range("w", 1, &[1e6], DType::F16).is_err());
        assert!(check_range("w", 2, &[1e6, f32::NEG_INFINITY], DType::F32).is_ok());
    }
}
