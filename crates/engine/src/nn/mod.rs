//! What models are made of: modules that name their parameters, layers under torch's names, losses, buffers, and units.
//!
//! A model is a struct with `#[derive(Module)]`, whose fields are layers and other modules; its parameters are found by
//! their fields' names. `Unit` around a field makes what is in it move together when state is divided. [`nested`] are the values that hold tensors: batches, and what
//! models return.

mod activation;
mod attention;
mod buffer;
mod conv;
mod conv_transpose;
mod dropout;
mod flatten;
mod layers;
mod leaf;
mod loss;
pub mod nested;
mod norm;
mod pool;
mod quantized;
mod recurrent;
mod resample;
mod scope;
mod sequential;
mod stored_names;
mod training;
mod unit;
mod wrap;

pub use activation::{
    Elu, Gelu, GeluTanh, Glu, Hardsigmoid, Hardswish, Hardtanh, LeakyRelu, LogSigmoid, LogSoftmax, Mish,
    PRelu, Relu, Relu6, Selu, Sigmoid, Silu, Softmax, Softplus, Softsign, Tanh,
};
pub use attention::{AttentionMasks, MultiHeadAttention};
pub use buffer::{Buffer, BufferValues, NamedBuffer, buffers};
pub use conv::{Conv, Conv1d, Conv2d, IntoSizes};
pub use conv_transpose::{ConvTranspose, ConvTranspose1d, ConvTranspose2d};
pub use dropout::{ChannelDropout, Dropout, Dropout1d, Dropout2d};
pub use flatten::{Flatten, Identity, Unflatten};
pub use layers::{Activation, Embedding, Linear, Mlp};
pub use loss::{
    BCELoss, BCEWithLogitsLoss, CosineEmbeddingLoss, CrossEntropyLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss,
    NLLLoss, SmoothL1Loss, bce_with_logits, cosine_similarity, cross_entropy, kl_div, mse_loss,
};
pub use norm::{GroupNorm, LayerNorm, RmsNorm};
pub use oarlock_config::config::{Direction, Pattern, SparsityConfig};
pub use oarlock_derive::Module;
pub use oarlock_tensor::cpu::quantized::{Code as FourBitCode, Format as QuantizedFormat};
pub use oarlock_tensor::cpu::rope::RopeStyle;
pub use oarlock_tensor::ops::{
    BlockMask, CustomOp, CustomOps, IGNORE_INDEX, Interpolation, KlReduction, KlTarget, Mask, Reduction,
    Rope, custom, custom_outputs, parameter,
};
/// The ops that layers are made of, under the name of torch's `nn.functional`.
pub use oarlock_tensor::{Fan, Init, Nonlinearity, Param, Result, RopeScaling, Yarn, ops as functional};
pub use pool::{AdaptiveAvgPool1d, AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d};
pub use quantized::LinearQuantized;
pub use recurrent::{Gru, Lstm, Rnn};
pub use resample::{PixelShuffle, PixelUnshuffle, Upsample};
pub use scope::{in_scope, time_of};
pub use sequential::{Layer, Sequential};
pub use stored_names::StoredNames;
pub use training::{Mode, n_passes, set_passes, set_training};
pub(crate) use training::{begin_pass, has_modes, seed_layers};
pub use unit::{Unit, UnitRun, is_trained};
pub use wrap::{Wrap, missing_class};

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use oarlock_tensor::{DType, IntoShape, Tensor};

use self::leaf::{Leaf, each_leaf};

/// A part of a model that can list its parameters.
///
/// ```
/// use oarlock::nn::{Linear, Module};
///
/// #[derive(Module)]
/// struct Net {
///     layers: Vec<Linear>,
///     #[module(skip)]
///     eps: f32,
/// }
/// ```
///
/// A field that is not a module is an error at the field:
///
/// ```compile_fail,E0277
/// use oarlock::nn::{Linear, Module};
///
/// #[derive(Module)]
/// struct Net {
///     layers: Vec<Linear>,
///     eps: f32,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    label = "this is not a layer, `Param`, `Buffer` or other module",
    note = "modules are layers, `Param`, `Buffer`, structs with `#[derive(Module)]`, and `Vec`, `Option`, `Box`, `BTreeMap` or `Unit` of modules",
    note = "`#[module(skip)]` leaves a field out that holds no parameter, such as a number"
)]
pub trait Module: Send + Sync + 'static {
    /// Shows every parameter, in a fixed order, with its path below this module ("mlp.up_proj.weight").
    fn visit(&self, visitor: &mut dyn Visitor);

    /// The name of its type, for reports.
    fn kind(&self) -> &'static str {
        let path = std::any::type_name::<Self>();
        path.split('<').next().unwrap_or(path).rsplit("::").next().unwrap_or(path)
    }
}

/// A forward pass from an input to an output: what a prepared model's `forward` calls.
pub trait Forward<I> {
    /// What comes out.
    type Output;

    /// Computes it. Ops on tensors that are on a tape are recorded.
    ///
    /// # Errors
    /// What an op reports.
    fn forward(&self, input: &I) -> Result<Self::Output>;
}

// Layers with a method `forward` for those who take any layer.
macro_rules! layers {
    ($($layer:ident)*) => {
        $(impl Forward<Tensor> for $layer {
            type Output = Tensor;
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.forward(x)
            }
        })*
    };
}
layers!(Linear Embedding Mlp MultiHeadAttention RmsNorm LayerNorm GroupNorm Dropout ChannelDropout);

/// Walks over a model's parameters.
pub trait Visitor {
    /// A parameter of the module that is being visited.
    fn param(&mut self, name: &str, param: &Param);

    /// A module below the one that is being visited.
    fn child(&mut self, name: &str, child: &dyn Module);

    /// Everything that `inside` shows belongs to this unit.
    fn unit(&mut self, unit: &UnitRun, inside: &dyn Module);

    /// What tells a layer whether it trains.
    fn mode(&mut self, _mode: &Mode) {}

    /// What files of other programs call the parameters of the module.
    fn stored_names(&mut self, _names: &StoredNames) {}

    /// A tensor of the module that is not a parameter.
    fn buffer(&mut self, _name: &str, _buffer: &Buffer) {}
}

impl Module for Param {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("", self);
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        for (index, child) in self.iter().enumerate() {
            visitor.child(&index.to_string(), child);
        }
    }
}

/// `torch.nn.ModuleDict`: the children by their keys.
impl<M: Module> Module for BTreeMap<String, M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        for (name, child) in self {
            visitor.child(name, child);
        }
    }
}

// A module behind a pointer is that module.
macro_rules! pointers {
    ($($pointer:ident)*) => {
        $(impl<M: Module + ?Sized> Module for $pointer<M> {
            fn visit(&self, visitor: &mut dyn Visitor) {
                (**self).visit(visitor);
            }

            fn kind(&self) -> &'static str {
                (**self).kind()
            }
        })*
    };
}

pointers!(Box Arc);

impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        if let Some(module) = self {
            module.visit(visitor);
        }
    }
}

/// One parameter as a model shows it.
#[derive(Clone, Debug)]
pub struct NamedParam {
    /// Its full path.
    pub name: String,
    /// The parameter.
    pub param: Param,
}

/// A unit of a model: what is gathered, reduced and stepped together.
#[derive(Clone, Debug)]
pub struct UnitParams {
    /// The path of the unit's module; empty for the parameters outside any unit.
    pub name: String,
    /// Its parameters, each only once and only in the first unit that shows it.
    pub params: Vec<NamedParam>,
    /// Parameters that it shows as well, but that an earlier unit has shown first.
    pub shared: Vec<Param>,
    /// Where the engine attaches itself; absent for the parameters outside any unit.
    pub run: Option<UnitRun>,
}

impl UnitParams {
    /// The parameters by the dtype of their working copies in a model that computes in `dtype`, frozen ones apart from those
    /// that are trained, each group in order.
    pub fn by_dtype(&self, dtype: DType) -> Vec<(DType, Vec<NamedParam>)> {
        let mut groups: Vec<(DType, Vec<NamedParam>)> = Vec::new();
        for named in &self.params {
            let (working, frozen) = (named.param.working_dtype(dtype), named.param.is_frozen());
            let is_alike = |(group, params): &&mut (DType, Vec<NamedParam>)| {
                *group == working && params[0].param.is_frozen() == frozen
            };
            match groups.iter_mut().find(is_alike) {
                Some((_, params)) => params.push(named.clone()),
                None => groups.push((working, vec![named.clone()])),
            }
        }
        groups
    }
}

/// A model's units in the order in which it shows them; shared parameters stay with the first.
pub fn units_of(model: &dyn Module) -> Vec<UnitParams> {
    wrapped_units_of(model, &Wrap::Declared)
}

/// As [`units_of`], of the declared units only those that a policy keeps.
pub fn wrapped_units_of(model: &dyn Module, wrap: &Wrap) -> Vec<UnitParams> {
    let mut collect = Collect {
        path: Vec::new(),
        units: Vec::new(),
        rest: Vec::new(),
        inside: false,
        seen: HashSet::new(),
        wrap,
    };
    model.visit(&mut collect);
    let mut units = collect.units;
    if !collect.rest.is_empty() {
        units.push(UnitParams { name: String::new(), params: collect.rest, shared: Vec::new(), run: None });
    }
    units.retain(|unit| !unit.params.is_empty() || unit.run.is_some());
    units
}

/// A model's parameters, each once, under the first name that the model shows it by.
pub fn parameters(model: &dyn Module) -> Vec<NamedParam> {
    let mut seen = HashSet::new();
    names_of(model).into_iter().filter(|named| seen.insert(named.param.id())).collect()
}

/// Every name under which a model shows a parameter, shared ones as often as they are shown.
pub fn names_of(model: &dyn Module) -> Vec<NamedParam> {
    let mut names = Vec::new();
    each_leaf(model, &mut |path, name, leaf| {
        if let Leaf::Param(param) = leaf {
            names.push(NamedParam { name: join(path, name), param: param.clone() });
        }
    });
    names
}

/// A parameter of a custom module; ops take it as [`parameter`] on the tape of another tensor.
///
/// # Errors
/// An impossible shape.
pub fn param(shape: impl IntoShape, init: Init) -> Result<Param> {
    Ok(Param::new(shape.into_shape()?, init))
}

/// Leaves the parameters of a module as they are in training: `requires_grad_(False)`. To be said before the model is
/// prepared. Parameters that the module shares with others are frozen there as well.
pub fn freeze(module: &dyn Module) {
    parameters(module).iter().for_each(|named| named.param.freeze());
}

struct Collect<'a> {
    wrap: &'a Wrap,
    path: Vec<String>,
    units: Vec<UnitParams>,
    rest: Vec<NamedParam>,
    inside: bool,
    seen: HashSet<usize>,
}

fn join(path: &[String], name: &str) -> String {
    path.iter()
        .map(String::as_str)
        .chain([name])
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(".")
}

impl Visitor for Collect<'_> {
    fn param(&mut self, name: &str, param: &Param) {
        if !self.seen.insert(param.id()) {
            if let Some(unit) = self.units.last_mut().filter(|_| self.inside)
                && !unit.params.iter().any(|own| own.param.id() == param.id())
            {
                unit.shared.push(param.clone());
            }
            return;
        }
        let named = NamedParam { name: join(&self.path, name), param: param.clone() };
        match self.units.last_mut() {
            Some(unit) if self.inside => unit.params.push(named),
            _ => self.rest.push(named),
        }
    }

    fn child(&mut self, name: &str, child: &dyn Module) {
        self.path.push(name.to_string());
        child.visit(self);
        self.path.pop();
    }

    fn unit(&mut self, unit: &UnitRun, inside: &dyn Module) {
        if self.inside || !wrap::keeps(self.wrap, inside) {
            // A unit inside a unit moves with the outer one.
            return inside.visit(self);
        }
        self.units.push(UnitParams {
            name: self.path.join("."),
            params: Vec::new(),
            shared: Vec::new(),
            run: Some(unit.clone()),
        });
        self.inside = true;
        inside.visit(self);
        self.inside = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Model {
        embed: Unit<Embedding>,
        blocks: Vec<Unit<Linear>>,
        norm: RmsNorm,
        head: Unit<Linear>,
    }

    impl Module for Model {
        fn visit(&self, visitor: &mut dyn Visitor) {
            visitor.child("embed", &self.embed);
            visitor.child("blocks", &self.blocks);
            visitor.child("norm", &self.norm);
            visitor.child("head", &self.head);
        }
    }

    #[test]
    fn units_hold_each_parameter_once_and_names_show_shared_ones_twice() {
        let embed = Embedding::new(10, 4).unwrap();
        let head = Linear::with_weight(embed.weight.clone());
        let model = Model {
            blocks: vec![
                Unit::new(Linear::new(4, 4).unwrap()),
                Unit::new(Linear::new(4, 4).unwrap().no_bias()),
            ],
            norm: RmsNorm::new(4, 1e-5).unwrap(),
            embed: Unit::new(embed),
            head: Unit::new(head),
        };
        let units = units_of(&model);
        let shape: Vec<_> = units.iter().map(|u| (u.name.as_str(), u.params.len())).collect();
        assert_eq!(shape, [("embed", 1), ("blocks.0", 2), ("blocks.1", 1), ("head", 0), ("", 1)]);
        assert_eq!(units[1].params[1].name, "blocks.0.bias");
        assert_eq!(units[3].shared.len(), 1);
        assert!(units[..3].iter().all(|unit| unit.shared.is_empty()));
        let names: Vec<_> = names_of(&model).into_iter().map(|n| n.name).collect();
        assert_eq!(names.first().map(String::as_str), Some("embed.weight"));
        assert_eq!(names.last().map(String::as_str), Some("head.weight"));
        assert_eq!(names.len(), 6);
        let of = |wrap: Wrap| -> Vec<String> {
            wrapped_units_of(&model, &wrap).into_iter().map(|unit| unit.name).collect()
        };
        assert_eq!(of(Wrap::Declared), ["embed", "blocks.0", "blocks.1", "head", ""]);
        assert_eq!(of(Wrap::Transformer(vec!["Linear".into()])), ["blocks.0", "blocks.1", "head", ""]);
        assert_eq!(of(Wrap::Size(20)), ["embed", "blocks.0", "head", ""]);
        assert_eq!(of(Wrap::None), [""]);
    }
}
