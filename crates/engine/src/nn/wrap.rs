//! Which of a model's declared units an engine takes as units: the auto-wrap policies of FSDP.

use oarlock_tensor::Param;

use super::module::{Module, Visitor};
use super::named::parameters;
use super::unit_run::UnitRun;
pub use oarlock_config::config::Wrap;

/// What to say of a class that no unit of the model is of: which, and the classes that there are.
pub fn missing_class(wrap: &Wrap, model: &dyn Module) -> Option<String> {
    let Wrap::Transformer(classes) = wrap else { return None };
    let mut declared = Declared(Vec::new());
    model.visit(&mut declared);
    let missing = classes.iter().find(|class| !declared.0.contains(&class.as_str()))?;
    Some(format!(
        "could not find the transformer layer class {missing} in the model; its units are of the classes {}",
        declared.0.join(", ")
    ))
}

/// Whether a declared unit stays one.
pub(super) fn keeps(wrap: &Wrap, inside: &dyn Module) -> bool {
    match wrap {
        Wrap::Declared => true,
        Wrap::Transformer(kinds) => kinds.iter().any(|kind| kind == inside.kind()),
        Wrap::Size(least) => {
            let params = parameters(inside);
            params.iter().map(|named| named.param.shape().n_elems()).sum::<usize>() >= *least
        }
        Wrap::None => false,
    }
}

/// The classes of a model's declared units, each once.
struct Declared(Vec<&'static str>);

impl Visitor for Declared {
    fn param(&mut self, _name: &str, _param: &Param) {}

    fn child(&mut self, _name: &str, child: &dyn Module) {
        child.visit(self);
    }

    fn unit(&mut self, _unit: &UnitRun, inside: &dyn Module) {
        if !self.0.contains(&inside.kind()) {
            self.0.push(inside.kind());
        }
        inside.visit(self);
    }
}
