//! The buffers that a step takes: those into which sharded weights are gathered, and those through which sharded gradients leave.
//! The engine's own schedule ([`Schedule`]) is carried out with the sizes of buffers alone.

use std::convert::Infallible;
use std::sync::Arc;

use oarlock_engine::shard::{
    DryRun, Executor, GradientUse, Grain, GroupUse, Layout, Plan, Schedule, ShardingConfig, UnitUse,
};
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
        let groups = self.gathered_groups(settings.sharding.persistence_elems);
        let n_groups: Vec<usize> = groups.iter().map(Vec::len).collect();
        let in_step = |&(_, elems): &(DType, usize)| GroupUse {
            elems,
            is_gathered: true,
            gradients: GradientUse::None,
        };
        let mut buffers = Buffers {
            weights: groups.iter().flatten().map(|(dtype, elems)| dtype.size() * elems).collect(),
            ..Buffers::default()
        };
        let groups = groups.iter().flatten().map(in_step).collect();
        let keeps_second_copy = settings.sharding.secondary.is_some();
        let plan = Plan::new(self.units_of(&n_groups), groups, &settings.sharding);
        buffers.take(Plan { keeps_second_copy, ..plan });
        let [first, second] =
            buffers.pools.map(|pool| pool.sizes.iter().map(|&bytes| bytes as u64).sum::<u64>());
        Gathered { first, second }
    }

    /// The buffers in which f32 gradients are reduced in a backward pass, each with the groups that it serves, first the one
    /// that it was made for. With `overlaps` those of a unit are still in flight while the next unit's are written.
    pub(super) fn leaving(&self, overlaps: bool) -> Vec<Vec<&Layout>> {
        let (root, units) = self.units.split_at(usize::from(self.has_root));
        let n_groups: Vec<usize> = root.iter().map(|_| 0).chain(units.iter().map(Vec::len)).collect();
        let layouts: Vec<&Layout> = units.iter().flatten().map(|(_, layout)| layout).collect();
        let in_step = |layout: &&Layout| GroupUse {
            elems: layout.n_elems(),
            is_gathered: false,
            gradients: GradientUse::Sharded { across: false },
        };
        let units = self.units_of(&n_groups);
        let mut buffers = Buffers {
            gradients: layouts.iter().map(|layout| layout.n_elems()).collect(),
            written: units.iter().map(written).collect(),
            ..Buffers::default()
        };
        let groups = layouts.iter().map(in_step).collect();
        buffers.take(Plan { overlaps, ..Plan::new(units, groups, &ShardingConfig::default()) });
        let served = |groups: Vec<usize>| groups.into_iter().map(|group| layouts[group]).collect();
        // What no unit holds has buffers of its own, from the first to the last.
        let own = root.iter().flatten().map(|(_, layout)| vec![layout]);
        own.chain(buffers.served.into_iter().map(served)).collect()
    }

    /// The groups of each unit that has passes, where units have so many.
    fn units_of(&self, n_groups: &[usize]) -> Vec<UnitUse> {
        let first: Vec<usize> = n_groups
            .iter()
            .scan(0, |end, n| {
                *end += n;
                Some(*end - n)
            })
            .collect();
        let own = |unit: usize| first[unit]..first[unit] + n_groups[unit];
        let of = |(unit, shared): (usize, &Vec<usize>)| UnitUse {
            groups: std::iter::once(&unit).chain(shared).flat_map(|&home| own(home)).collect(),
            completes: own(unit).collect(),
        };
        self.shared.iter().enumerate().map(of).skip(usize::from(self.has_root)).collect()
    }
}

/// The groups in the order in which the backward pass of a unit writes their gradients.
fn written(unit: &UnitUse) -> Vec<usize> {
    let (own, shared) = unit.groups.split_at(unit.completes.len());
    [shared, own].concat()
}

/// Buffers that are used again, as the engine's are. A buffer serves the next group of its size or at least half of it.
#[derive(Default)]
struct Pool {
    sizes: Vec<usize>,
    free: Vec<usize>,
}

impl Pool {
    /// The number of the smallest free buffer that is large enough, but not of twice the size; of a new one otherwise.
    fn take(&mut self, size: usize) -> usize {
        let fits = |buffer: &usize| (size..=2 * size).contains(&self.sizes[*buffer]);
        let found = self.free.iter().copied().enumerate().filter(|(_, buffer)| fits(buffer));
        match found.min_by_key(|(_, buffer)| self.sizes[*buffer]) {
            Some((index, buffer)) => {
                self.free.remove(index);
                buffer
            }
            None => {
                self.sizes.push(size);
                self.sizes.len() - 1
            }
        }
    }
}

/// Carries out a schedule in memory.
#[derive(Default)]
struct Buffers {
    /// Bytes of the weights of each group, and elements of its gradients.
    weights: Vec<usize>,
    gradients: Vec<usize>,
    /// The groups whose gradients each unit writes.
    written: Vec<Vec<usize>>,
    /// Where weights are gathered into, from the first copy and from the second.
    pools: [Pool; 2],
    slots: Pool,
    /// The buffer of a gathered group, and the pool that it is of.
    open: Vec<Option<(usize, usize)>>,
    /// The buffer of the gradients of a group, those of groups that leave, and the groups that each has served.
    slot: Vec<Option<usize>>,
    leaving: Vec<Option<usize>>,
    served: Vec<Vec<usize>>,
}

impl Buffers {
    /// Takes what the steps of a run take.
    fn take(&mut self, plan: Plan) {
        let n = plan.groups.len();
        (self.open, self.slot, self.leaving) = (vec![None; n], vec![None; n], vec![None; n]);
        let mut schedule = Schedule::new(Arc::new(plan));
        // A second step finds the buffers of the first, perhaps in another order.
        for _ in 0..2 {
            let Ok(()) = schedule.dry_step(1, self);
            let Ok(()) = schedule.begin_step(self);
        }
    }
}

impl Executor for Buffers {
    type Error = Infallible;

    fn gather(&mut self, group: usize, second_copy: bool) -> Result<(), Infallible> {
        let pool = usize::from(second_copy);
        self.open[group] = Some((self.pools[pool].take(self.weights[group]), pool));
        Ok(())
    }

    fn await_weights(&mut self, _group: usize) -> Result<(), Infallible> {
        Ok(())
    }

    fn release(&mut self, group: usize) -> Result<(), Infallible> {
        if let Some((buffer, pool)) = self.open[group].take() {
            self.pools[pool].free.push(buffer);
        }
        Ok(())
    }

    fn keep_second_copy(&mut self, _group: usize) -> Result<(), Infallible> {
        Ok(())
    }

    fn drop_second_copy(&mut self, _group: usize) {}

    fn reduce(&mut self, group: usize, _adds: bool) -> Result<(), Infallible> {
        self.leaving[group] = self.slot[group].take();
        Ok(())
    }

    fn finish_reduction(&mut self, group: usize) -> Result<(), Infallible> {
        self.slots.free.extend(self.leaving[group].take());
        Ok(())
    }

    fn reduce_across(&mut self, _group: usize) -> Result<(), Infallible> {
        Ok(())
    }

    fn finish_across(&mut self, _group: usize) -> Result<(), Infallible> {
        Ok(())
    }
}

impl DryRun for Buffers {
    fn forward(&mut self, _unit: usize) {}

    fn backward(&mut self, unit: usize) {
        for &group in self.written.get(unit).into_iter().flatten() {
            if self.slot[group].is_none() {
                let buffer = self.slots.take(self.gradients[group]);
                self.slot[group] = Some(buffer);
                self.served.resize(self.slots.sizes.len(), Vec::new());
                self.served[buffer].push(group);
            }
        }
    }
}
