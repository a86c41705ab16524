//! The units of a model, each with its parameters.

use std::collections::HashSet;

use oarlock_tensor::{DType, Param};

use super::module::{Module, Visitor};
use super::named::{NamedParam, join};
use super::unit_run::UnitRun;
use super::wrap::{self, Wrap};

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

struct Collect<'a> {
    wrap: &'a Wrap,
    path: Vec<String>,
    units: Vec<UnitParams>,
    rest: Vec<NamedParam>,
    inside: bool,
    seen: HashSet<usize>,
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
    use crate::nn::{Embedding, Linear, RmsNorm, Unit, names_of};

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
