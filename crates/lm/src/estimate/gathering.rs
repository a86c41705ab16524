//! The buffers into which a step gathers sharded weights: taken and given back in the order of the engine's passes.

use oarlock_config::config::Lifetime;
use oarlock_engine::shard::{Grain, Layout};
use oarlock_tensor::DType;

use super::settings::Settings;
use super::size::ModelSize;

/// Bytes of the buffers that the steps of a run take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gathered {
    /// Those of the ranks over which parameters are sharded.
    pub first: u64,
    /// Those of the ranks over which the second copy is sharded.
    pub second: u64,
}

impl ModelSize {
    /// The sizes of the groups of each unit that are gathered; parameters of fewer than `persistence` elements stay.
    pub(super) fn gathered_groups(&self, persistence: usize) -> Vec<Vec<(DType, usize)>> {
        let moves = |(dtype, layout): &(DType, Layout)| {
            let params = layout.params().iter().filter(|param| param.place.shape.n_elems() >= persistence);
            let params = params.map(|param| (String::new(), param.place.shape, param.param_group));
            (*dtype, Layout::new(params, Grain::Blocks).n_elems())
        };
        let of = |(index, unit): (usize, &Vec<(DType, Layout)>)| match self.has_root && index == 0 {
            true => Vec::new(),
            false => unit.iter().map(moves).filter(|(_, elems)| *elems > 0).collect(),
        };
        self.units.iter().enumerate().map(of).collect()
    }

    /// What gathering takes in the steps of a run.
    pub(super) fn gathered(&self, settings: &Settings) -> Gathered {
        let mut passes = Passes::new(self, settings);
        // A second step finds the buffers of the first, perhaps in another order.
        for _ in 0..2 {
            passes.step();
        }
        let [first, second] = passes.pools.map(|pool| pool.bytes);
        Gathered { first, second }
    }
}

/// Buffers that are used again, as the engine's are.
#[derive(Default)]
struct Pool {
    free: Vec<u64>,
    bytes: u64,
}

impl Pool {
    /// The size of the smallest free buffer that is large enough, but not of twice the size; of a new one otherwise.
    fn take(&mut self, bytes: u64) -> u64 {
        let fits = |size: &u64| (bytes..=2 * bytes).contains(size);
        let found =
            self.free.iter().enumerate().filter(|(_, size)| fits(size)).min_by_key(|(_, size)| **size);
        match found.map(|(index, _)| index) {
            Some(index) => self.free.remove(index),
            None => {
                self.bytes += bytes;
                bytes
            }
        }
    }
}

/// Which weights are gathered at a point of a step.
struct Passes<'a> {
    settings: &'a Settings,
    /// The groups that each unit uses.
    units: Vec<Vec<usize>>,
    /// Elements and bytes of each group.
    groups: Vec<(usize, u64)>,
    holds: Vec<bool>,
    n_holds: Vec<usize>,
    /// The buffer of a gathered group, and the pool that it is of.
    open: Vec<Option<(u64, usize)>>,
    pools: [Pool; 2],
}

impl Passes<'_> {
    fn new<'a>(size: &ModelSize, settings: &'a Settings) -> Passes<'a> {
        let (mut groups, mut own) = (Vec::new(), Vec::new());
        for unit in size.gathered_groups(settings.sharding.persistence_elems) {
            let first = groups.len();
            groups.extend(unit.into_iter().map(|(dtype, elems)| (elems, (dtype.size() * elems) as u64)));
            own.push(first..groups.len());
        }
        let uses = |(unit, shared): (usize, &Vec<usize>)| {
            std::iter::once(&unit).chain(shared).flat_map(|&home| own[home].clone()).collect()
        };
        let units = size.shared.iter().enumerate().map(uses).skip(usize::from(size.has_root)).collect();
        let n = groups.len();
        Passes {
            settings,
            holds: vec![false; size.units.len()],
            n_holds: vec![0; n],
            open: vec![None; n],
            pools: Default::default(),
            units,
            groups,
        }
    }

    fn step(&mut self) {
        let n = self.units.len();
        for unit in 0..n {
            self.enter(unit, true);
            let stays = self.settings.sharding.lifetime == Lifetime::ForwardToBackward || unit + 1 == n;
            if !stays {
                self.release(unit);
            }
        }
        for unit in (0..n).rev() {
            self.enter(unit, false);
            self.release(unit);
        }
    }

    /// Gathers a unit, and as much ahead of its use as is allowed.
    fn enter(&mut self, unit: usize, forward: bool) {
        self.hold(unit, forward);
        let is_open = |group: usize| self.open[group].is_some();
        let elems = |group: usize| self.groups[group].0;
        let mut live: usize = (0..self.groups.len()).filter(|&group| is_open(group)).map(elems).sum();
        let mut ahead = 0;
        let next: Vec<usize> =
            if forward { (unit + 1..self.units.len()).collect() } else { (0..unit).rev().collect() };
        for unit in next {
            let closed = self.units[unit].iter().copied().filter(|&group| self.open[group].is_none());
            let more: usize = closed.map(|group| self.groups[group].0).sum();
            live += more;
            if ahead >= self.settings.sharding.prefetch_elems || live > self.settings.sharding.max_live_elems
            {
                break;
            }
            ahead += more;
            self.hold(unit, forward);
        }
    }

    fn hold(&mut self, unit: usize, forward: bool) {
        if std::mem::replace(&mut self.holds[unit], true) {
            return;
        }
        // In the backward pass weights come from the second copy, where there is one.
        let pool = usize::from(!forward && self.settings.sharding.secondary.is_some());
        for &group in &self.units[unit] {
            self.n_holds[group] += 1;
            if self.open[group].is_none() {
                self.open[group] = Some((self.pools[pool].take(self.groups[group].1), pool));
            }
        }
    }

    fn release(&mut self, unit: usize) {
        if !std::mem::replace(&mut self.holds[unit], false) {
            return;
        }
        for &group in &self.units[unit] {
            self.n_holds[group] -= 1;
            if self.n_holds[group] == 0
                && let Some((bytes, pool)) = self.open[group].take()
            {
                self.pools[pool].free.push(bytes);
            }
        }
    }
}
