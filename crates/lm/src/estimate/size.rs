//! The sizes of a model's units: all that model states depend on.

use oarlock_engine::nn::{Module, Wrap, wrapped_units_of};
use oarlock_engine::shard::{Grain, Layout};
use oarlock_engine::{Error, Result};
use oarlock_tensor::{DType, Param, Shape};

use super::settings::Settings;

/// Parameters of a unit that the engine holds alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitGroup {
    /// Elements with padding.
    pub elems: usize,
    /// Bytes of a working element.
    pub element_bytes: usize,
    /// Blocks by which norms are summed.
    pub n_blocks: usize,
    pub is_trained: bool,
    /// Whether its weights are gathered for each use.
    pub is_gathered: bool,
}

/// The units of a model, as the engine lays them out.
#[derive(Clone, Debug)]
pub struct ModelSize {
    /// For each unit its groups by dtype of the working copy.
    pub(super) units: Vec<Vec<(DType, Layout)>>,
    /// Whether each of these groups is frozen.
    frozen: Vec<Vec<bool>>,
    /// Whether the first of them is what no unit holds: its weights stay, and each rank has a whole buffer of its gradients.
    pub(super) has_root: bool,
    /// For each unit the earlier ones whose weights it uses, too.
    pub(super) shared: Vec<Vec<usize>>,
    /// Whether units and shapes are those of a model; otherwise only the count is known.
    pub(super) known: bool,
}

impl ModelSize {
    /// Of a model that computes in `dtype`, with all units that it declares.
    pub fn of(model: &dyn Module, dtype: DType) -> ModelSize {
        ModelSize::wrapped(model, dtype, &Wrap::Declared)
    }

    /// Of a model whose units follow a policy.
    pub fn wrapped(model: &dyn Module, dtype: DType, wrap: &Wrap) -> ModelSize {
        let layout = |params: &[oarlock_engine::nn::NamedParam]| {
            // Weight decay applies to all but vectors.
            let group = |shape: &Shape| usize::from(shape.sizes().len() < 2);
            let of = |p: &oarlock_engine::nn::NamedParam| {
                (p.name.clone(), *p.param.shape(), group(p.param.shape()))
            };
            Layout::new(params.iter().map(of), Grain::Blocks)
        };
        let mut found = wrapped_units_of(model, wrap);
        // What no unit holds is there from the first to the last, as if all units shared it.
        let root = found.pop_if(|unit| unit.run.is_none());
        let has_root = root.is_some();
        found.splice(..0, root);
        let groups: Vec<_> = found.iter().map(|unit| unit.by_dtype(dtype)).collect();
        let units = groups.iter().map(|groups| {
            groups.iter().map(|(dtype, params)| (*dtype, layout(params))).collect::<Vec<(DType, Layout)>>()
        });
        let is_frozen =
            |params: &[oarlock_engine::nn::NamedParam]| params.iter().any(|named| named.param.is_frozen());
        let frozen = groups.iter().map(|groups| groups.iter().map(|(_, params)| is_frozen(params)).collect());
        let home = |param: &Param| {
            found.iter().position(|unit| unit.params.iter().any(|own| own.param.id() == param.id()))
        };
        let shared = found.iter().enumerate().map(|(index, unit)| {
            let mut homes: Vec<usize> = unit.shared.iter().filter_map(home).collect();
            if has_root && index > 0 && !homes.contains(&0) {
                homes.push(0);
            }
            homes
        });
        ModelSize {
            units: units.collect(),
            frozen: frozen.collect(),
            has_root,
            shared: shared.collect(),
            known: true,
        }
    }

    /// With the units of a second model behind its own.
    pub(super) fn and(mut self, second: ModelSize) -> ModelSize {
        let first = self.units.len();
        self.units.extend(second.units);
        self.frozen.extend(second.frozen);
        let moved = |homes: Vec<usize>| homes.into_iter().map(|home| first + home).collect();
        self.shared.extend(second.shared.into_iter().map(moved));
        self
    }

    /// Of `n_params` parameters of which nothing else is known but perhaps the size of the largest unit.
    ///
    /// # Errors
    /// More parameters than there are numbers for, or a unit larger than all.
    pub fn of_count(n_params: usize, largest_unit: Option<usize>, dtype: DType) -> Result<ModelSize> {
        let largest = largest_unit.unwrap_or(n_params);
        if n_params == 0 || largest == 0 || largest > n_params || n_params > 1 << 50 {
            return Err(Error::Usage(format!(
                "a model of {n_params} parameters whose largest unit has {largest} is none that can be trained"
            )));
        }
        let unit = |n: usize| -> Result<_> {
            Ok(vec![(dtype, Layout::new([(String::new(), Shape::new(&[n])?, 0)], Grain::Blocks))])
        };
        let mut units = vec![unit(largest)?];
        if n_params > largest {
            units.push(unit(n_params - largest)?);
        }
        Ok(ModelSize {
            shared: vec![Vec::new(); units.len()],
            frozen: vec![vec![false]; units.len()],
            units,
            has_root: false,
            known: false,
        })
    }

    /// The same without the parameters that are frozen, which have no gradients and no states.
    pub(super) fn trained(&self) -> ModelSize {
        let mut size = self.clone();
        for (unit, frozen) in size.units.iter_mut().zip(&mut size.frozen) {
            let mut flags = frozen.iter();
            unit.retain(|_| flags.next() == Some(&false));
            frozen.retain(|frozen| !frozen);
        }
        size
    }

    /// The same, with what ranks own cut at other places.
    pub(super) fn with_grain(&self, grain: Grain) -> ModelSize {
        let cut = |unit: &Vec<(DType, Layout)>| -> Vec<(DType, Layout)> {
            unit.iter().map(|(dtype, layout)| (*dtype, layout.clone().with_grain(grain))).collect()
        };
        ModelSize { units: self.units.iter().map(cut).collect(), ..self.clone() }
    }

    /// All parameters.
    pub fn n_params(&self) -> usize {
        self.layouts().flat_map(|(_, layout)| layout.params()).map(|p| p.place.shape.n_elems()).sum()
    }

    /// The layouts whose gradients are sharded where gradients are: those of units, and where groups of ranks sum across
    /// each other, of what no unit holds as well.
    pub(super) fn divisible(&self, settings: &Settings) -> impl Iterator<Item = &Layout> {
        let stays_whole = self.has_root && settings.replicas() == 1;
        self.units.iter().skip(usize::from(stays_whole)).flatten().map(|(_, layout)| layout)
    }

    /// Parameters of the largest unit.
    pub fn largest_unit(&self) -> usize {
        let count = |unit: &Vec<(DType, Layout)>| {
            unit.iter().flat_map(|(_, layout)| layout.params()).map(|p| p.place.shape.n_elems()).sum()
        };
        // Of a mere count the first is the one that was named; the second is all other units together.
        let n_units = if self.known { self.units.len() } else { 1 };
        self.units.iter().take(n_units).map(count).max().unwrap_or(0)
    }

    /// Parameters of the largest module that holds any itself: what DeepSpeed calls the largest layer.
    pub fn largest_layer(&self) -> usize {
        if !self.known {
            return self.largest_unit();
        }
        let mut layers: Vec<(&str, usize)> = Vec::new();
        for param in self.layouts().flat_map(|(_, layout)| layout.params()) {
            let module = param.name.rsplit_once('.').map_or("", |(module, _)| module);
            match layers.iter_mut().find(|(name, _)| *name == module) {
                Some((_, n)) => *n += param.place.shape.n_elems(),
                None => layers.push((module, param.place.shape.n_elems())),
            }
        }
        layers.into_iter().map(|(_, n)| n).max().unwrap_or(0)
    }

    /// The groups of each unit. With `persistence` the weights of parameters of at least so many elements are gathered,
    /// as those of ZeRO-3 are where ranks share no memory.
    pub(crate) fn unit_groups(&self, persistence: Option<usize>) -> Vec<Vec<UnitGroup>> {
        let part = |params: &[&oarlock_engine::shard::LayoutParam], dtype: DType, is_trained, is_gathered| {
            let params = params.iter().map(|param| (String::new(), param.place.shape, param.param_group));
            let layout = Layout::new(params, Grain::Blocks);
            let (elems, n_blocks) = (layout.n_elems(), layout.n_blocks());
            UnitGroup { elems, element_bytes: dtype.size(), n_blocks, is_trained, is_gathered }
        };
        let of = |(index, unit): (usize, &Vec<(DType, Layout)>)| {
            let is_root = self.has_root && index == 0;
            let groups = unit.iter().zip(&self.frozen[index]).flat_map(|((dtype, layout), frozen)| {
                let is_large = |param: &&oarlock_engine::shard::LayoutParam| {
                    !is_root && persistence.is_some_and(|least| param.place.shape.n_elems() >= least)
                };
                let (large, small): (Vec<_>, Vec<_>) = layout.params().iter().partition(is_large);
                [part(&large, *dtype, !frozen, true), part(&small, *dtype, !frozen, false)]
            });
            groups.filter(|group| group.elems > 0).collect()
        };
        self.units.iter().enumerate().map(of).collect()
    }

    /// For each unit the earlier ones whose weights it uses, too.
    pub(crate) fn shared_units(&self) -> &[Vec<usize>] {
        &self.shared
    }

    /// Whether the first unit is what no unit of the model holds, which has no passes of its own.
    pub(crate) fn has_root(&self) -> bool {
        self.has_root
    }

    /// The part of the model that a stage of a pipeline holds: these units, and those whose weights they use.
    pub(crate) fn of_units(&self, units: &std::ops::Range<usize>) -> ModelSize {
        let mut kept: Vec<usize> =
            units.clone().flat_map(|unit| self.shared[unit].iter().copied().chain([unit])).collect();
        kept.sort_unstable();
        kept.dedup();
        let place = |home: &usize| kept.binary_search(home).ok();
        ModelSize {
            units: kept.iter().map(|&unit| self.units[unit].clone()).collect(),
            frozen: kept.iter().map(|&unit| self.frozen[unit].clone()).collect(),
            has_root: self.has_root && kept.first() == Some(&0),
            shared: kept.iter().map(|&unit| self.shared[unit].iter().filter_map(place).collect()).collect(),
            known: self.known,
        }
    }

    /// Whether activations can be computed, and the largest unit is known.
    pub fn is_known(&self) -> bool {
        self.known
    }

    pub(super) fn layouts(&self) -> impl Iterator<Item = &(DType, Layout)> {
        self.units.iter().flatten()
    }
}
