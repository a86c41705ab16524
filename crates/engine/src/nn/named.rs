//! Parameters and buffers of a model by the names under which it shows them.

use std::collections::HashSet;

use oarlock_tensor::{Init, IntoShape, Param, Result};

use super::buffer::Buffer;
use super::leaf::{Leaf, each_leaf};
use super::module::Module;
use super::stored_names::StoredNames;

/// One parameter as a model shows it.
#[derive(Clone, Debug)]
pub struct NamedParam {
    /// Its full path.
    pub name: String,
    /// The parameter.
    pub param: Param,
}

/// One buffer as a model shows it.
#[derive(Clone, Debug)]
pub struct NamedBuffer {
    /// Its full path.
    pub name: String,
    /// The buffer.
    pub buffer: Buffer,
}

/// A model's buffers, each under every name by which the model shows it.
pub fn buffers(model: &dyn Module) -> Vec<NamedBuffer> {
    let mut found = Vec::new();
    each_leaf(model, &mut |path, name, leaf| {
        if let Leaf::Buffer(buffer) = leaf {
            found.push(NamedBuffer { name: join(path, name), buffer: buffer.clone() });
        }
    });
    found
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

/// A parameter of a custom module; ops take it as [`parameter`](crate::nn::parameter) on the tape of another tensor.
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

impl StoredNames {
    /// Those of a whole model, if any module in it says how it is stored.
    pub fn of(model: &dyn Module) -> Option<StoredNames> {
        let mut below: Vec<(String, StoredNames)> = Vec::new();
        each_leaf(model, &mut |path, name, leaf| {
            if let Leaf::StoredNames(names) = leaf {
                below.push((join(path, name), names.clone()));
            }
        });
        if below.is_empty() {
            return None;
        }
        let in_model = move |name: &str| {
            let renamed = below.iter().find_map(|(path, names)| match path.as_str() {
                "" => Some(names.stored(name)),
                path => {
                    let inner = name.strip_prefix(path)?.strip_prefix('.')?;
                    Some(format!("{path}.{}", names.stored(inner)))
                }
            });
            renamed.unwrap_or_else(|| name.to_owned())
        };
        Some(StoredNames::new(in_model))
    }
}

/// The name of a leaf with the path of its module.
pub(super) fn join(path: &[String], name: &str) -> String {
    path.iter()
        .map(String::as_str)
        .chain([name])
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(".")
}
