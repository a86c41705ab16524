//! Names of dtypes on a command line.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use oarlock_tensor::DType;

/// Parses the name of a dtype, of which an argument takes only these.
pub(super) fn dtypes<const N: usize>(names: [&'static str; N]) -> impl TypedValueParser<Value = DType> {
    PossibleValuesParser::new(names).map(|name| match name.as_str() {
        "bf16" => DType::BF16,
        "f16" | "fp16" => DType::F16,
        _ => DType::F32,
    })
}
