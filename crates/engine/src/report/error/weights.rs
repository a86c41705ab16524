//! Weights that are not finite numbers, or would be none in the dtype that they are to have.

use oarlock_tensor::DType;

/// Weights that are not passed on. Each is named by its parameter, as far as they are few.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct UnfitWeights {
    /// What becomes of them, such as "written" or "computed with".
    pub purpose: &'static str,
    /// The dtype that they are to have.
    pub dtype: DType,
    /// The parameters in the order of their names.
    pub parameters: Vec<UnfitParameter>,
}

/// A parameter of which a dtype cannot hold all elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfitParameter {
    /// Its name.
    pub name: String,
    /// Its elements.
    pub n_elems: usize,
    /// Elements that are NaN or infinite.
    pub not_finite: usize,
    /// Finite elements that the dtype would make infinite.
    pub too_large: usize,
}

/// Parameters that are named; of more the number is reported.
const NAMED: usize = 3;

impl UnfitWeights {
    fn message(&self) -> String {
        let listed = |of: fn(&UnfitParameter) -> usize| {
            let unfit: Vec<&UnfitParameter> = self.parameters.iter().filter(|one| of(one) > 0).collect();
            let named = |one: &&UnfitParameter| format!("\"{}\" ({} of {})", one.name, of(one), one.n_elems);
            let mut text = unfit.iter().take(NAMED).map(named).collect::<Vec<_>>().join(", ");
            if unfit.len() > NAMED {
                text.push_str(&format!(" and {} more parameters", unfit.len() - NAMED));
            }
            text
        };
        let purpose = self.purpose;
        if self.parameters.iter().any(|one| one.not_finite > 0) {
            return format!(
                "weights are NaN or infinite, so they are not {purpose}: {}; take an earlier checkpoint or another copy of \
                 the model",
                listed(|one| one.not_finite)
            );
        }
        format!(
            "weights are too large for {} and would become infinite, so they are not {purpose}: {}; take bfloat16 or \
             float32 (`infer_dtype` of an export, `bf16: true` of a training run, `--dtype` elsewhere)",
            self.dtype,
            listed(|one| one.too_large)
        )
    }
}
