//! What models are made of: modules that name their parameters, units, and the layers of a decoder.

mod activation;
mod attention;
mod buffer;
mod dropout;
mod latency;
mod layers;
mod loss;
mod norm;
mod sequential;
mod training;
mod unit;
mod wrap;

pub use latency::Latency;
pub use layers::{Embedding, Linear, RmsNorm};
pub use oarlock_derive::Module;
pub use oarlock_tensor::Result;
pub(crate) use training::begin_pass;
pub use training::{Mode, set_training};
pub use unit::{Unit, UnitRun, is_trained};

use oarlock_tensor::{DType, Param};

/// A part of a model that can list its parameters.
pub trait Module: Send + Sync + 'static {
    /// Shows every parameter, in a fixed order, with its path below this module ("mlp.up_proj.weight").
    fn visit(&self, visitor: &mut dyn Visitor);

    /// The name of its type, for reports.
    fn kind(&self) -> &'static str {
        let path = std::any::type_name::<Self>();
        path.split('<').next().unwrap_or(path).rsplit("::").next().unwrap_or(path)
    }

    /// The size of its hidden states, where it has one: `"auto"` sizes of a DeepSpeed configuration follow from it.
    fn hidden_size(&self) -> Option<usize> {
        None
    }

    /// Where its forward passes are timed, if they are.
    fn latency(&self) -> Option<&Latency> {
        None
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
    /// The parameters by the dtype of their working copies in a model that computes in `dtype`, each group in order.
    pub fn by_dtype(&self, dtype: DType) -> Vec<(DType, Vec<NamedParam>)> {
        let mut groups: Vec<(DType, Vec<NamedParam>)> = Vec::new();
        for named in &self.params {
            let working = named.param.working_dtype(dtype);
            match groups.iter_mut().find(|(group, _)| *group == working) {
                Some((_, params)) => params.push(named.clone()),
                None => groups.push((working, vec![named.clone()])),
            }
        }
        groups
    }
}

/// A model's units in the order in which it shows them; shared parameters stay with the first.
pub fn units_of(model: &dyn Module) -> Vec<UnitParams> {
    let mut collect =
        Collect { path: Vec::new(), units: Vec::new(), rest: Vec::new(), inside: false, seen: Vec::new() };
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
    let mut seen = std::collections::HashSet::new();
    names_of(model).into_iter().filter(|named| seen.insert(named.param.id())).collect()
}

/// Every name under which a model shows a parameter, shared ones as often as they are shown.
pub fn names_of(model: &dyn Module) -> Vec<NamedParam> {
    let mut names = Names { path: Vec::new(), names: Vec::new() };
    model.visit(&mut names);
    names.names
}

struct Collect {
    path: Vec<String>,
    units: Vec<UnitParams>,
    rest: Vec<NamedParam>,
    inside: bool,
    seen: Vec<usize>,
}

fn join(path: &[String], name: &str) -> String {
    path.iter()
        .map(String::as_str)
        .chain([name])
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(".")
}

impl Visitor for Collect {
    fn param(&mut self, name: &str, param: &Param) {
        if self.seen.contains(&param.id()) {
            if let Some(unit) = self.units.last_mut().filter(|_| self.inside)
                && !unit.params.iter().any(|own| own.param.id() == param.id())
            {
                unit.shared.push(param.clone());
            }
            return;
        }
        self.seen.push(param.id());
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
        if self.inside {
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

struct Names {
    path: Vec<String>,
    names: Vec<NamedParam>,
}

impl Visitor for Names {
    fn param(&mut self, name: &str, param: &Param) {
        self.names.push(NamedParam { name: join(&self.path, name), param: param.clone() });
    }

    fn child(&mut self, name: &str, child: &dyn Module) {
        self.path.push(name.to_string());
        child.visit(self);
        self.path.pop();
    }

    fn unit(&mut self, _unit: &UnitRun, inside: &dyn Module) {
        inside.visit(self);
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
        let embed = Embedding::new(10, 4, 0.02).unwrap();
        let head = Linear::with_weight(embed.weight.clone());
        let model = Model {
            blocks: vec![
                Unit::new(Linear::new(4, 4, true, 0.02).unwrap()),
                Unit::new(Linear::new(4, 4, false, 0.02).unwrap()),
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
    }
}
