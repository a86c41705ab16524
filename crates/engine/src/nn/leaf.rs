//! What stands at the ends of a model's paths, one after the other.

use oarlock_tensor::Param;

use super::buffer::Buffer;
use super::mode::Mode;
use super::module::{Module, Visitor};
use super::stored_names::StoredNames;
use super::unit_run::UnitRun;

/// The end of a path.
pub(super) enum Leaf<'a> {
    Param(&'a Param),
    Buffer(&'a Buffer),
    Mode(&'a Mode),
    StoredNames(&'a StoredNames),
}

/// Shows every leaf of a model with the path of its module and its own name; units are modules like others.
pub(super) fn each_leaf(model: &dyn Module, f: &mut dyn FnMut(&[String], &str, Leaf<'_>)) {
    model.visit(&mut Leaves { path: Vec::new(), f });
}

struct Leaves<'a> {
    path: Vec<String>,
    f: &'a mut dyn FnMut(&[String], &str, Leaf<'_>),
}

impl Visitor for Leaves<'_> {
    fn param(&mut self, name: &str, param: &Param) {
        (self.f)(&self.path, name, Leaf::Param(param));
    }

    fn child(&mut self, name: &str, child: &dyn Module) {
        self.path.push(name.to_owned());
        child.visit(self);
        self.path.pop();
    }

    fn unit(&mut self, _unit: &UnitRun, inside: &dyn Module) {
        inside.visit(self);
    }

    fn mode(&mut self, mode: &Mode) {
        (self.f)(&self.path, "", Leaf::Mode(mode));
    }

    fn stored_names(&mut self, names: &StoredNames) {
        (self.f)(&self.path, "", Leaf::StoredNames(names));
    }

    fn buffer(&mut self, name: &str, buffer: &Buffer) {
        (self.f)(&self.path, name, Leaf::Buffer(buffer));
    }
}
