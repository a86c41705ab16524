//! Modules: what lists its parameters, and who walks over them.

use std::collections::BTreeMap;
use std::sync::Arc;

use oarlock_tensor::{Param, Result};

use super::buffer::Buffer;
use super::mode::Mode;
use super::stored_names::StoredNames;
use super::unit_run::UnitRun;

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

impl Module for Mode {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.mode(self);
    }
}

impl Module for StoredNames {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.stored_names(self);
    }
}

impl Module for Buffer {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.buffer("", self);
    }
}
