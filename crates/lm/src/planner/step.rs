//! A step of one rank as the engine goes through it (`shard/passes`, `shard/gather`, `shard/reduce`): computations one after
//! another, and collectives that block, or proceed on a thread of their own in the order of their calls until they are
//! waited for.

use oarlock_config::config::Lifetime;

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
    /// How long gathered weights live.
    pub lifetime: Lifetime,
    /// Elements that are gathered ahead of their use.
    pub prefetch_elems: usize,
    /// Elements beyond which nothing is gathered ahead.
    pub max_live_elems: usize,
    /// Elements of a reduction.
    pub bucket_elems: usize,
    /// Bytes of an element of a reduction.
    pub reduce_bytes: usize,
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
        let mut run = Run {
            step: self,
            time_of,
            lost_to,
            lost: 0.0,
            now: 0.0,
            wire: 0.0,
            account: Account::default(),
            holds: vec![false; self.units.len()],
            n_holds: vec![0; self.groups.len()],
            gathered: vec![None; self.groups.len()],
            published: vec![0.0; self.groups.len()],
            in_flight: Vec::new(),
            n_left: 0,
        };
        run.once();
        let begin = run.now;
        run.account = Account::default();
        run.once();
        Account { seconds: run.now - begin, ..run.account }
    }
}

/// A reduction in flight.
struct ReductionInFlight {
    group: usize,
    end: f64,
    /// How often a backward pass had left a unit.
    left: u64,
}

struct Run<'a> {
    step: &'a Step,
    time_of: &'a dyn Fn(Call) -> f64,
    lost_to: &'a dyn Fn(Call) -> f64,
    /// By how much collectives will still prolong computations.
    lost: f64,
    /// Until when the rank has computed, and the link is busy.
    now: f64,
    wire: f64,
    account: Account,
    holds: Vec<bool>,
    n_holds: Vec<usize>,
    /// When the weights of a group are there, of those that are gathered.
    gathered: Vec<Option<f64>>,
    /// When its new weights are there, of those that are not.
    published: Vec<f64>,
    in_flight: Vec<ReductionInFlight>,
    n_left: u64,
}

impl Run<'_> {
    fn once(&mut self) {
        let step = self.step;
        self.values(VALUE, Over::All);
        for micro_batch in 0..step.micro_batches {
            self.forward();
            self.backward(micro_batch);
        }
        self.reduce_rest();
        self.compute(step.norm);
        self.values(VALUE * step.n_blocks as u64, Over::Shard);
        self.values(VALUE, Over::All);
        self.compute(step.update);
        self.publish();
        self.compute(step.rest);
    }

    fn compute(&mut self, seconds: f64) {
        if seconds > 0.0 {
            self.now += seconds + std::mem::take(&mut self.lost);
        }
    }

    /// Begins a collective; returns when it is over.
    fn begin(&mut self, operation: CallKind, bytes: u64, over: Over) -> f64 {
        let call = Call { operation, bytes, over };
        let time = (self.time_of)(call);
        self.account.calls.push(call);
        self.account.communication += time;
        self.wire = self.wire.max(self.now) + time;
        match self.step.overlaps {
            true => self.lost += (self.lost_to)(call),
            false => self.wait(self.wire),
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

    fn forward(&mut self) {
        let n = self.step.units.len();
        for unit in 0..n {
            self.enter(unit, true);
            self.compute(self.step.units[unit].forward);
            // The backward pass begins with the unit that the forward pass ends with.
            if self.step.lifetime != Lifetime::ForwardToBackward && unit + 1 < n {
                self.release(unit);
            }
        }
    }

    fn backward(&mut self, micro_batch: usize) {
        let is_last = micro_batch + 1 == self.step.micro_batches;
        self.finish_earlier(0);
        for unit in (0..self.step.units.len()).rev() {
            self.finish_earlier(1);
            self.enter(unit, false);
            self.compute(self.step.units[unit].backward);
            self.n_left += 1;
            if self.step.shards_gradients || is_last && self.step.overlaps {
                for group in self.step.units[unit].completes.clone() {
                    self.reduce(group);
                }
            }
            self.release(unit);
        }
    }

    /// Gathers what a unit uses, waits for it, and begins to gather what the next ones use.
    fn enter(&mut self, unit: usize, forward: bool) {
        let step = self.step;
        self.hold(unit);
        for &group in &step.units[unit].uses {
            self.wait(self.gathered[group].unwrap_or(self.published[group]));
        }
        let elems = |group: usize| if step.groups[group].is_gathered { step.groups[group].elems } else { 0 };
        let open = (0..step.groups.len()).filter(|&group| self.gathered[group].is_some());
        let (mut live, mut ahead): (usize, usize) = (open.map(elems).sum(), 0);
        let next: Vec<usize> =
            if forward { (unit + 1..step.units.len()).collect() } else { (0..unit).rev().collect() };
        for unit in next {
            let closed = step.units[unit].uses.iter().filter(|&&group| self.gathered[group].is_none());
            let more: usize = closed.map(|&group| elems(group)).sum();
            live += more;
            if ahead >= step.prefetch_elems || live > step.max_live_elems {
                break;
            }
            ahead += more;
            self.hold(unit);
        }
    }

    fn hold(&mut self, unit: usize) {
        if std::mem::replace(&mut self.holds[unit], true) {
            return;
        }
        for &group in &self.step.units[unit].uses {
            self.n_holds[group] += 1;
            let Group { elems, element_bytes, is_gathered, .. } = self.step.groups[group];
            if is_gathered && self.gathered[group].is_none() {
                self.gathered[group] =
                    Some(self.begin(CallKind::AllGather, (elems * element_bytes) as u64, Over::Shard));
            }
        }
    }

    fn release(&mut self, unit: usize) {
        if !std::mem::replace(&mut self.holds[unit], false) {
            return;
        }
        for &group in &self.step.units[unit].uses {
            self.n_holds[group] -= 1;
            if self.n_holds[group] == 0 {
                self.gathered[group] = None;
            }
        }
    }

    fn reduce(&mut self, group: usize) {
        let Step { shards_gradients, shards_optimizer, bucket_elems, reduce_bytes, .. } = *self.step;
        let Group { elems, is_trained, .. } = self.step.groups[group];
        if !is_trained {
            return;
        }
        let everywhere = !shards_gradients && !shards_optimizer;
        let operation = if everywhere { CallKind::AllReduce } else { CallKind::ReduceScatter };
        let mut end = self.now;
        for start in (0..elems).step_by(bucket_elems.max(1)) {
            let bucket = (elems - start).min(bucket_elems);
            end = self.begin(operation, (bucket * reduce_bytes) as u64, Over::Shard);
        }
        self.in_flight.push(ReductionInFlight { group, end, left: self.n_left });
        if !self.step.overlaps {
            self.finish_reductions(usize::MAX);
        }
    }

    /// Takes up the reductions of all but the `kept` units left last, where sharded gradients leave through buffers.
    fn finish_earlier(&mut self, kept: u64) {
        let is_earlier = |reduction: &ReductionInFlight| reduction.left + kept <= self.n_left;
        if self.step.shards_gradients
            && let Some(last) = self.in_flight.iter().rposition(is_earlier)
        {
            self.finish_reductions(last + 1);
        }
    }

    fn finish_reductions(&mut self, n: usize) {
        let n = n.min(self.in_flight.len());
        for ReductionInFlight { group, end, .. } in self.in_flight.drain(..n).collect::<Vec<_>>() {
            self.wait(end);
            if self.step.shards_gradients {
                self.compute(self.step.accumulate * self.step.groups[group].elems as f64);
            }
        }
    }

    /// Ends the passes: whole gradients that have not left do so now.
    fn reduce_rest(&mut self) {
        if !self.step.shards_gradients && !self.step.overlaps {
            for group in self.step.units.iter().rev().flat_map(|unit| unit.completes.clone()) {
                self.reduce(group);
            }
        }
        self.finish_reductions(usize::MAX);
        if let Some(ranks) = self.step.replicas_of {
            let trained = self.step.groups.iter().filter(|group| group.is_trained);
            for owned in trained.map(|group| group.elems / ranks).collect::<Vec<_>>() {
                let end = self.begin(CallKind::AllReduce, 4 * owned as u64, Over::Replicas);
                self.wait(end);
            }
        }
    }

    /// Shows the new weights to all: beside the next step, where collectives proceed beside computations.
    fn publish(&mut self) {
        if !self.step.shards_optimizer {
            return;
        }
        let mut wire = self.now;
        let travels = |group: &Group| group.is_trained && !group.is_gathered;
        for (index, group) in self.step.groups.iter().enumerate().filter(|(_, group)| travels(group)) {
            let bytes = (group.elems * group.element_bytes) as u64;
            let call = Call { operation: CallKind::AllGather, bytes, over: Over::Shard };
            let time = (self.time_of)(call);
            self.account.calls.push(call);
            self.account.communication += time;
            if self.step.overlaps {
                self.lost += (self.lost_to)(call);
            }
            wire += time;
            self.published[index] = wire;
        }
        if !self.step.overlaps {
            self.wait(wire);
        }
    }
}
