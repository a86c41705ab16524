//! The time of a step of one rank: the engine's own schedule ([`Schedule`]), carried out with a clock. Computations follow one
//! another; collectives block, or proceed on a thread of their own in the order of their calls until they are waited for.

use std::convert::Infallible;
use std::sync::Arc;

use oarlock_config::config::ShardingConfig;
use oarlock_engine::shard::{DryRun, Executor, GradientUse, GroupUse, Plan, Schedule, UnitUse};

use super::network::{Call, CallKind, Over};

/// A unit of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unit {
    /// Seconds of its forward pass over a micro-batch.
    pub forward: f64,
    /// Seconds of its backward pass.
    pub backward: f64,
    /// The groups of parameters that it uses.
    pub uses: Vec<usize>,
    /// Those whose gradients are complete when it has run backward.
    pub completes: Vec<usize>,
}

/// Parameters that are gathered and reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Elements.
    pub elems: usize,
    /// Bytes of a working element.
    pub element_bytes: usize,
    /// Whether it is trained.
    pub is_trained: bool,
    /// Whether its weights are gathered for each use.
    pub is_gathered: bool,
}

impl Group {
    /// Bytes of its weights.
    fn bytes(&self) -> u64 {
        (self.elems * self.element_bytes) as u64
    }
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The units in the order of the forward pass.
    pub units: Vec<Unit>,
    /// The groups that units name.
    pub groups: Vec<Group>,
    /// Micro-batches.
    pub micro_batches: usize,
    /// Whether gradients are sharded, and so reduced in every micro-batch.
    pub shards_gradients: bool,
    /// Whether the optimizer's state is sharded, so that each rank updates a part.
    pub shards_optimizer: bool,
    /// How the model is sharded.
    pub sharding: ShardingConfig,
    /// Elements of a reduction.
    pub bucket_elems: usize,
    /// Whether sums are reduced across groups of ranks at the end, of which each holds the whole state; the ranks of a group.
    pub replicas_of: Option<usize>,
    /// Whether collectives proceed beside computations.
    pub overlaps: bool,
    /// Blocks of the model, by which its norm is summed.
    pub n_blocks: usize,
    /// Seconds of adding a reduced element to the sums of the step.
    pub accumulate: f64,
    /// Seconds of the gradient norm.
    pub norm: f64,
    /// Seconds of the optimizer.
    pub update: f64,
    /// Seconds of all else.
    pub rest: f64,
}

/// What a step comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Seconds of the step.
    pub seconds: f64,
    /// Seconds that collectives take.
    pub communication: f64,
    /// Seconds that the rank waits for them.
    pub exposed: f64,
    /// The collectives, in their order.
    pub calls: Vec<Call>,
}

/// The bytes of a value that ranks add up.
const VALUE: u64 = 8;

impl Step {
    /// Goes through a step that follows another; `time_of` says how long a collective takes, `lost_to` how much longer what is
    /// computed beside it.
    pub fn run(&self, time_of: &dyn Fn(Call) -> f64, lost_to: &dyn Fn(Call) -> f64) -> Account {
        let plan = Arc::new(self.plan());
        let mut schedule = Schedule::new(plan.clone());
        let mut clock = Clock {
            step: self,
            time_of,
            lost_to,
            lost: 0.0,
            now: 0.0,
            wire: 0.0,
            account: Account::default(),
            gathered: vec![None; self.groups.len()],
            published: vec![0.0; self.groups.len()],
            in_flight: vec![0.0; self.groups.len()],
            across: vec![0.0; self.groups.len()],
            plan,
        };
        clock.step(&mut schedule);
        let begin = clock.now;
        clock.account = Account::default();
        clock.step(&mut schedule);
        Account { seconds: clock.now - begin, ..clock.account }
    }

    /// What its order depends on.
    fn plan(&self) -> Plan {
        let is_in_unit = |group: usize| self.units.iter().any(|unit| unit.completes.contains(&group));
        let gradients = |(index, group): (usize, &Group)| match self.shards_gradients {
            _ if !group.is_trained => GradientUse::None,
            // What is in no unit leaves only where groups of ranks sum across each other.
            true if is_in_unit(index) || self.replicas_of.is_some() => {
                GradientUse::Sharded { across: self.replicas_of.is_some() }
            }
            _ => GradientUse::Whole,
        };
        let in_step = |(index, group): (usize, &Group)| GroupUse {
            elems: group.elems,
            is_gathered: group.is_gathered,
            gradients: gradients((index, group)),
        };
        let unit = |unit: &Unit| UnitUse { groups: unit.uses.clone(), completes: unit.completes.clone() };
        let units = self.units.iter().map(unit).collect();
        let groups = self.groups.iter().enumerate().map(in_step).collect();
        Plan { overlaps: self.overlaps, ..Plan::new(units, groups, &self.sharding) }
    }
}

/// Carries out a schedule in time.
struct Clock<'a> {
    step: &'a Step,
    plan: Arc<Plan>,
    time_of: &'a dyn Fn(Call) -> f64,
    lost_to: &'a dyn Fn(Call) -> f64,
    /// By how much collectives will still prolong computations.
    lost: f64,
    /// Until when the rank has computed, and the link is busy.
    now: f64,
    wire: f64,
    account: Account,
    /// When the weights of a group are there, of those that are gathered.
    gathered: Vec<Option<f64>>,
    /// When its new weights are there, of those that are not.
    published: Vec<f64>,
    /// When its gradients are sums, and sums over all groups of ranks.
    in_flight: Vec<f64>,
    across: Vec<f64>,
}

impl Clock<'_> {
    /// A step as a trainer takes it: the passes and their sums, the norm, the update, the new weights for all.
    fn step(&mut self, schedule: &mut Schedule) {
        let step = self.step;
        self.values(VALUE, Over::All);
        let Ok(()) = schedule.dry_step(step.micro_batches, self);
        self.compute(step.norm);
        self.values(VALUE * step.n_blocks as u64, Over::Shard);
        self.values(VALUE, Over::All);
        let Ok(()) = schedule.begin_step(self);
        self.compute(step.update);
        self.publish();
        self.compute(step.rest);
    }

    fn compute(&mut self, seconds: f64) {
        if seconds > 0.0 {
            self.now += seconds + std::mem::take(&mut self.lost);
        }
    }

    /// Counts a collective; returns how long it takes.
    fn call(&mut self, operation: CallKind, bytes: u64, over: Over) -> f64 {
        let call = Call { operation, bytes, over };
        let time = (self.time_of)(call);
        self.account.calls.push(call);
        self.account.communication += time;
        if self.step.overlaps {
            self.lost += (self.lost_to)(call);
        }
        time
    }

    /// Begins a collective; returns when it is over.
    fn begin(&mut self, operation: CallKind, bytes: u64, over: Over) -> f64 {
        let time = self.call(operation, bytes, over);
        self.wire = self.wire.max(self.now) + time;
        if !self.step.overlaps {
            self.wait(self.wire);
        }
        self.wire
    }

    fn wait(&mut self, end: f64) {
        // A rank that waits has a core for what collectives do.
        self.lost = (self.lost - (end - self.now).max(0.0)).max(0.0);
        self.account.exposed += (end - self.now).max(0.0);
        self.now = self.now.max(end);
    }

    /// A few values, which the rank waits for.
    fn values(&mut self, bytes: u64, over: Over) {
        let end = self.begin(CallKind::Values, bytes, over);
        self.wait(end);
    }

    /// Shows the new weights to all: beside the next step, where collectives proceed beside computations.
    fn publish(&mut self) {
        if !self.step.shards_optimizer {
            return;
        }
        let (plan, mut wire) = (self.plan.clone(), self.now);
        for index in plan.published().filter(|&index| self.step.groups[index].is_trained) {
            let group = self.step.groups[index];
            wire += self.call(CallKind::AllGather, group.bytes(), Over::Shard);
            self.published[index] = wire;
        }
        if !self.step.overlaps {
            self.wait(wire);
        }
    }
}

impl Executor for Clock<'_> {
    type Error = Infallible;

    fn gather(&mut self, group: usize, _second_copy: bool) -> Result<(), Infallible> {
        let bytes = self.step.groups[group].bytes();
        self.gathered[group] = Some(self.begin(CallKind::AllGather, bytes, Over::Shard));
        Ok(())
    }

    fn await_weights(&mut self, group: usize) -> Result<(), Infallible> {
        self.wait(self.gathered[group].unwrap_or(self.published[group]));
        Ok(())
    }

    fn release(&mut self, group: usize) -> Result<(), Infallible> {
        self.gathered[group] = None;
        Ok(())
    }

    fn keep_second_copy(&mut self, _group: usize) -> Result<(), Infallible> {
        Ok(())
    }

    fn drop_second_copy(&mut self, _group: usize) {}

    fn reduce(&mut self, group: usize, _adds: bool) -> Result<(), Infallible> {
        let Step { shards_optimizer, bucket_elems, .. } = *self.step;
        let reduce_bytes = self.step.sharding.reduces_in().size();
        let operation = if shards_optimizer { CallKind::ReduceScatter } else { CallKind::AllReduce };
        let elems = self.step.groups[group].elems;
        self.in_flight[group] = self.now;
        for start in (0..elems).step_by(bucket_elems.max(1)) {
            let bucket = (elems - start).min(bucket_elems);
            self.in_flight[group] = self.begin(operation, (bucket * reduce_bytes) as u64, Over::Shard);
        }
        Ok(())
    }

    fn finish_reduction(&mut self, group: usize) -> Result<(), Infallible> {
        self.wait(self.in_flight[group]);
        if let GradientUse::Sharded { .. } = self.plan.groups[group].gradients {
            self.compute(self.step.accumulate * self.step.groups[group].elems as f64);
        }
        Ok(())
    }

    fn reduce_across(&mut self, group: usize) -> Result<(), Infallible> {
        let owned = self.step.groups[group].elems / self.step.replicas_of.unwrap_or(1);
        self.across[group] = self.begin(CallKind::AllReduce, 4 * owned as u64, Over::Replicas);
        Ok(())
    }

    fn finish_across(&mut self, group: usize) -> Result<(), Infallible> {
        self.wait(self.across[group]);
        Ok(())
    }
}

impl DryRun for Clock<'_> {
    fn forward(&mut self, unit: usize) {
        self.compute(self.step.units[unit].forward);
    }

    fn backward(&mut self, unit: usize) {
        self.compute(self.step.units[unit].backward);
    }
}
