//! The global norm of the gradients, which is summed by blocks of parameters.

use crate::nn::{NamedParam, UnitParams};
use crate::shard::group::GroupBuilder;

/// The global norm of the gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct GradNorm {
    /// The L2 norm over all parameters.
    pub norm: f64,
    /// The first parameter whose gradient is not finite, and its unit.
    pub first_bad: Option<(String, String)>,
}

/// The blocks of all parameters of a model, in its order, by which norms are summed.
pub(super) struct Blocks {
    pub n: usize,
    /// The first of each parameter, its name and that of its unit.
    of: Vec<(usize, String, String)>,
}

impl Blocks {
    pub fn of(units: &[UnitParams], builder: &GroupBuilder<'_>) -> Blocks {
        let params = units.iter().flat_map(|unit| unit.params.iter().map(move |named| (named, &unit.name)));
        let first = |named: &NamedParam| builder.first_blocks.get(&named.param.id()).copied().unwrap_or(0);
        let mut of: Vec<_> =
            params.map(|(named, unit)| (first(named), named.name.clone(), unit.clone())).collect();
        of.sort_unstable_by_key(|(first, ..)| *first);
        Blocks { n: builder.n_blocks, of }
    }

    /// The unit and the parameter of a block.
    pub fn owner(&self, block: usize) -> Option<(String, String)> {
        let (_, param, unit) = self.of.iter().rev().find(|(first, ..)| *first <= block)?;
        Some((unit.clone(), param.clone()))
    }
}
