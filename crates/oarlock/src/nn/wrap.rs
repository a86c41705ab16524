//! Which of a model's declared units an engine takes as units: the auto-wrap policies of FSDP.

use crate::nn::{Module, parameters};

/// Which declared units stay units. What no unit holds moves with the root: it is gathered for the whole step, and its
/// gradients leave at the end. No policy changes a bit of the training.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Wrap {
    /// All that the model declares.
    #[default]
    Declared,
    /// Those whose module is of one of these types: `TRANSFORMER_BASED_WRAP` with
    /// `fsdp_transformer_layer_cls_to_wrap`.
    Transformer(Vec<String>),
    /// Those with at least so many elements: `SIZE_BASED_WRAP` with `fsdp_min_num_params`.
    Size(usize),
    /// None: `NO_WRAP`.
    None,
}

impl Wrap {
    /// Whether a declared unit stays one.
    pub(super) fn keeps(&self, inside: &dyn Module) -> bool {
        match self {
            Wrap::Declared => true,
            Wrap::Transformer(kinds) => kinds.iter().any(|kind| kind == inside.kind()),
            Wrap::Size(least) => {
                let params = parameters(inside);
                params.iter().map(|named| named.param.shape().n_elems()).sum::<usize>() >= *least
            }
            Wrap::None => false,
        }
    }
}
