//! The prediction of one choice: its step, its memory, its traffic.

use std::ops::Range;

use oarlock_config::config::{Lifetime, ShardingConfig};
use oarlock_engine::parallel::pipeline::partition;
use oarlock_engine::{Error, Result};

use crate::estimate::{Settings, Stage, estimate, model_states};

use super::choice::Choice;
use super::facts::Facts;
use super::network::{Call, CallKind, Network, Over, Ranks};
use super::pipeline::{Part, passes};
use super::profile::{PassTimes, Profile};
use super::step::{Account, Group, Step, Unit};

/// Machines that are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// Machines.
    pub machines: usize,
    /// Ranks of each.
    pub ranks: usize,
    /// The links between them. `None` only where there is one.
    pub network: Option<Network>,
    /// Bytes of memory of each.
    pub memory: u64,
}

impl Cluster {
    /// Ranks of all machines.
    pub fn n_ranks(&self) -> usize {
        self.machines * self.ranks
    }

    /// The ranks of one of the groups of `n` neighboring ranks.
    fn neighbors(&self, n: usize, sum_bytes: usize) -> Ranks {
        let per_machine = n.min(self.ranks);
        let (machines, groups) = ((n / per_machine).max(1), (self.ranks / per_machine).max(1));
        Ranks { machines, per_machine, groups, sum_bytes }
    }
}

/// What is predicted of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Of what.
    pub choice: Choice,
    /// Seconds of a step.
    pub seconds: f64,
    /// Tokens of all ranks in a second.
    pub tokens_per_second: f64,
    /// Seconds of a step that collectives take, and those of them that the rank waits.
    pub communication: f64,
    /// Of these, those that a rank waits.
    pub exposed: f64,
    /// Seconds in which stages of a pipeline are idle.
    pub idle: f64,
    /// Bytes that a machine sends to others in a step.
    pub sent: f64,
    /// The collectives of a rank in a step.
    pub calls: Vec<Call>,
    /// Bytes of memory of the rank with the largest share.
    pub memory: u64,
    /// Bytes of memory of a machine.
    pub machine_memory: u64,
    /// Whether it fits.
    pub fits: bool,
    /// Seconds to the end of the run, where its steps are known.
    pub to_the_end: Option<f64>,
    /// Joules of the processors of all machines to the end.
    pub energy: Option<f64>,
}

/// Predicts a choice from measurements. `watts` are those of a machine.
///
/// # Errors
/// Micro-batches that were not measured, and numbers of stages or micro-batches that are impossible.
pub fn predict(
    facts: &Facts,
    profile: &Profile,
    cluster: &Cluster,
    choice: Choice,
    watts: Option<f64>,
) -> Result<Prediction> {
    let measured = profile.passes(choice.batch, choice.recompute).ok_or_else(|| {
        Error::Usage(format!("micro-batches of {} sequences were not measured", choice.batch))
    })?;
    let costs = Costs { facts, profile, cluster, choice, data_ranks: cluster.n_ranks() / choice.stages };
    let (account, idle, boundary_bytes) = match choice.stages {
        1 => (costs.step(&costs.units(measured), None)?, 0.0, 0.0),
        _ => costs.pipeline(measured)?,
    };
    let sent = account.calls.iter().map(|&call| costs.ranks(call).sent(call)).sum::<f64>() + boundary_bytes;
    let (memory, machine_memory) = costs.memory()?;
    let tokens = (facts.global_batch * facts.len) as f64;
    let to_the_end = facts.steps.map(|steps| steps as f64 * account.seconds);
    Ok(Prediction {
        choice,
        seconds: account.seconds,
        tokens_per_second: tokens / account.seconds,
        communication: account.communication,
        exposed: account.exposed,
        idle,
        sent,
        calls: account.calls,
        memory,
        machine_memory,
        fits: machine_memory <= cluster.memory,
        to_the_end,
        energy: to_the_end.zip(watts).map(|(seconds, watts)| seconds * watts * cluster.machines as f64),
    })
}

/// What the parts of a step cost.
struct Costs<'a> {
    facts: &'a Facts,
    profile: &'a Profile,
    cluster: &'a Cluster,
    choice: Choice,
    /// Ranks that see different data: those of one stage.
    data_ranks: usize,
}

impl Costs<'_> {
    /// Whether ranks are in one memory, where a gather moves nothing.
    fn shares_memory(&self) -> bool {
        self.cluster.machines == 1
    }

    /// Ranks that divide a state among them.
    fn shard_ranks(&self) -> usize {
        if self.choice.by_machine { self.cluster.ranks } else { self.data_ranks }
    }

    /// The ranks of a collective.
    fn ranks(&self, call: Call) -> Ranks {
        let sum_bytes = self.facts.settings.sharding.reduces_in().size();
        match call.over {
            Over::Shard => self.cluster.neighbors(self.shard_ranks(), sum_bytes),
            Over::All => self.cluster.neighbors(self.data_ranks, sum_bytes),
            Over::Replicas => {
                let Cluster { machines, ranks, .. } = *self.cluster;
                Ranks { machines, per_machine: 1, groups: ranks, sum_bytes }
            }
        }
    }

    /// The time of a collective.
    fn time(&self, call: Call) -> f64 {
        let ranks = self.ranks(call);
        if ranks.n() == 1 {
            return 0.0;
        }
        match self.cluster.network.filter(|_| !self.shares_memory()) {
            Some(network) => ranks.time(call, network, self.profile.message),
            None => {
                let elems = (call.bytes / 4) as f64;
                match call.operation {
                    CallKind::ReduceScatter => self.profile.reduce_scatter.at(elems),
                    CallKind::AllReduce => self.profile.all_reduce.at(elems),
                    // They are a part of what was measured of norm and optimizer.
                    CallKind::AllGather | CallKind::Values => 0.0,
                }
            }
        }
    }

    /// The computation that a rank loses to a collective beside it.
    fn lost_to(&self, call: Call) -> f64 {
        let network = self.cluster.network.filter(|_| !self.shares_memory());
        network.map_or(0.0, |network| network.overhead * self.ranks(call).sent_by_rank(call))
    }

    /// The groups of each unit of the model.
    fn groups(&self) -> Vec<Vec<crate::estimate::UnitGroup>> {
        let gathers = self.choice.stage == Stage::Parameters && !self.shares_memory();
        self.facts.size.unit_groups(gathers.then_some(self.facts.settings.sharding.persistence_elems))
    }

    /// The units with their times, and without their groups: embedding, blocks, and a head, which has the time of both ends.
    /// Other units, as a wrap policy makes them, have time in proportion to their elements.
    fn units(&self, passes: &PassTimes) -> Vec<(f64, f64)> {
        let elems: Vec<usize> =
            self.groups().iter().map(|groups| groups.iter().map(|group| group.elems).sum()).collect();
        let first = usize::from(self.facts.size.has_root());
        let n = elems.len() - first;
        let (forward, backward) = (passes.forward, passes.backward);
        if first == 0 && n == self.facts.unit_weights.len() && n > 2 {
            let block = (n - 2) as f64;
            let mut units = vec![(forward.blocks / block, backward.blocks / block); n];
            units[0] = (0.0, 0.0);
            units[n - 1] = (forward.ends, backward.ends);
            return units;
        }
        if n == 0 {
            // What no unit holds computes all.
            return vec![(forward.sum(), backward.sum()); first];
        }
        let all: usize = elems[first..].iter().sum();
        let share = |index: usize| if index < first { 0.0 } else { elems[index] as f64 / all.max(1) as f64 };
        (0..elems.len()).map(|index| (share(index) * forward.sum(), share(index) * backward.sum())).collect()
    }

    /// A step of one stage, which holds the units of `part`; without a part of all. With a part the passes are left out.
    fn step(&self, times: &[(f64, f64)], part: Option<&Range<usize>>) -> Result<Account> {
        let (size, groups) = (&self.facts.size, self.groups());
        let is_here = |unit: usize| part.is_none_or(|part| part.contains(&unit));
        let mut first = vec![0; groups.len()];
        let mut all: Vec<Group> = Vec::new();
        let mut n_blocks = 0;
        for (unit, own) in groups.iter().enumerate() {
            first[unit] = all.len();
            n_blocks += own.iter().map(|group| group.n_blocks).sum::<usize>();
            // A stage has a copy of what an earlier one shares with it.
            let is_used = (0..groups.len())
                .any(|user| is_here(user) && (user == unit || size.shared_units()[user].contains(&unit)));
            let own = own.iter().filter(|_| is_used);
            all.extend(own.map(|group| Group {
                elems: group.elems,
                element_bytes: group.element_bytes,
                is_trained: group.is_trained,
                is_gathered: group.is_gathered,
            }));
        }
        let of = |unit: usize| first[unit]..first.get(unit + 1).copied().unwrap_or(all.len());
        let unit = |index: usize| {
            let (forward, backward) = if part.is_none() { times[index] } else { (0.0, 0.0) };
            if size.has_root() && index == 0 {
                // What no unit holds is around all passes, and its gradients stay.
                return Unit { forward, backward, ..Unit::default() };
            }
            let shared = size.shared_units()[index].iter().flat_map(|&home| of(home));
            Unit {
                forward,
                backward,
                uses: of(index).chain(shared).collect(),
                completes: of(index).collect(),
            }
        };
        let units = (0..groups.len()).map(unit).collect();
        let Choice { stage, accumulation, by_machine, .. } = self.choice;
        let settings = &self.facts.settings;
        let trained: usize = all.iter().filter(|group| group.is_trained).map(|group| group.elems).sum();
        let shard = self.shard_ranks();
        let owned = trained as f64 / shard as f64;
        let updated = if stage == Stage::Whole { trained as f64 } else { owned };
        let shards_gradients = stage >= Stage::Gradients;
        let step = Step {
            units,
            groups: all,
            micro_batches: if part.is_some() { 1 } else { accumulation },
            shards_gradients,
            shards_optimizer: stage >= Stage::Optimizer,
            sharding: settings.sharding.clone(),
            bucket_elems: self.facts.bucket_elems,
            replicas_of: by_machine.then_some(shard),
            // The passes of a pipeline are over when its gradients leave.
            overlaps: settings.sharding.overlap && !self.shares_memory() && part.is_none(),
            n_blocks,
            accumulate: if self.data_ranks > 1 || shards_gradients {
                self.profile.accumulate / shard as f64
            } else {
                0.0
            },
            norm: self.profile.norm.at(owned),
            update: self.profile.update.at(updated),
            rest: self.profile.rest,
        };
        Ok(step.run(&|call| self.time(call), &|call| self.lost_to(call)))
    }

    /// A step of a pipeline: its account, the idle time of a stage, and the bytes that a machine sends to another stage.
    fn pipeline(&self, measured: &PassTimes) -> Result<(Account, f64, f64)> {
        let Facts { partition: method, unit_weights, hidden_size, len, .. } = self.facts;
        let Choice { stages, batch, accumulation, .. } = self.choice;
        let (times, ranges) = (self.units(measured), partition(method, unit_weights, stages)?);
        let part = |range: &Range<usize>| {
            let sum = |of: fn(&(f64, f64)) -> f64| times[range.clone()].iter().map(of).sum::<f64>();
            Part { forward: sum(|times| times.0), backward: sum(|times| times.1) }
        };
        let parts: Vec<Part> = ranges.iter().map(part).collect();
        let bytes = (batch * len * hidden_size * self.facts.settings.sharding.dtype.size()) as f64;
        // Neighboring ranks are in the same stage.
        let machine_of = |stage: usize| stage * self.data_ranks / self.cluster.ranks;
        let crossing = self.data_ranks.min(self.cluster.ranks) as f64;
        let message = |from: usize, to: usize| match self.cluster.network {
            // A header, an agreement and the data; all ranks of a stage send at the same time.
            Some(network) if machine_of(from) != machine_of(to) => {
                3.0 * network.latency + crossing * bytes / network.bandwidth
            }
            _ => self.profile.message.at(bytes),
        };
        let passed = passes(stages, &parts, accumulation, &message)?;
        let mut slowest = Account::default();
        for range in &ranges {
            let end = self.step(&times, Some(range))?;
            if end.seconds > slowest.seconds {
                slowest = end;
            }
        }
        slowest.seconds += passed.seconds;
        let work = parts.iter().map(|part| part.forward + part.backward).sum::<f64>() / stages as f64;
        let idle = passed.seconds - work * accumulation as f64;
        let has_boundary = (1..stages).any(|stage| machine_of(stage) != machine_of(stage - 1));
        let mut sent = if has_boundary { 2.0 * accumulation as f64 * crossing * bytes } else { 0.0 };
        if let Some(tied) = self.tied_bytes(&ranges) {
            // The first and the last stage hold shared embeddings, whose gradients are added up over both.
            let call = Call { operation: CallKind::AllReduce, bytes: tied, over: Over::Shard };
            let machines = if machine_of(0) == machine_of(stages - 1) { 1 } else { 2 };
            let groups = crossing as usize;
            let pair = Ranks { machines, per_machine: 2 / machines, groups, sum_bytes: 4 };
            sent += pair.sent(call);
            slowest.seconds += match self.cluster.network.filter(|_| machines > 1) {
                Some(network) => pair.time(call, network, self.profile.message),
                None => self.profile.all_reduce.at((tied / 4) as f64),
            };
        }
        Ok((slowest, idle, sent))
    }

    /// Bytes of the gradients of what several stages hold.
    fn tied_bytes(&self, ranges: &[Range<usize>]) -> Option<u64> {
        let stage_of = |unit: usize| ranges.iter().position(|range| range.contains(&unit));
        let shared = self.facts.size.shared_units().iter().enumerate();
        let mut tied: Vec<usize> = shared
            .flat_map(|(unit, homes)| homes.iter().filter(move |&&home| stage_of(home) != stage_of(unit)))
            .copied()
            .collect();
        tied.sort_unstable();
        tied.dedup();
        let groups = self.groups();
        let elems: usize = tied.iter().flat_map(|&unit| &groups[unit]).map(|group| group.elems).sum();
        (elems > 0).then_some(4 * elems as u64)
    }

    /// Bytes of a rank, and of a machine.
    fn memory(&self) -> Result<(u64, u64)> {
        let Choice { stage, stages, recompute, batch, accumulation, by_machine } = self.choice;
        let missing = || Error::Usage(format!("the memory of micro-batches of {batch} sequences is unknown"));
        let known = self.facts.micro_batch(batch, recompute).ok_or_else(missing)?;
        let apart = (!self.shares_memory()).then_some(self.cluster.ranks);
        let settings = Settings {
            stage,
            ranks: self.data_ranks,
            group: if by_machine { self.cluster.ranks } else { self.data_ranks },
            apart,
            sharding: ShardingConfig {
                lifetime: if stage == Stage::Parameters {
                    self.facts.settings.sharding.lifetime
                } else {
                    Lifetime::OneUse
                },
                ..self.facts.settings.sharding.clone()
            },
            ..self.facts.settings.clone()
        };
        if stages == 1 {
            let estimate = estimate(&self.facts.size, &settings, Some(&known.run), known.program);
            return Ok((estimate.rank(), estimate.machine()));
        }
        // A stage has the state of its units, and the activations of its share of them for each micro-batch in flight.
        let ranges = partition(&self.facts.partition, &self.facts.unit_weights, stages)?;
        let n_units = self.facts.unit_weights.len() as u64;
        let (mut rank, mut ranks_of_all) = (0, 0);
        for (index, range) in ranges.iter().enumerate() {
            let states = model_states(&self.facts.size.of_units(range), &settings, None);
            let in_flight = (stages - index).min(accumulation) as u64;
            let activations = known.run.pool_bytes * range.len() as u64 * in_flight / n_units;
            let own = states.iter().map(|part| part.rank).sum::<u64>() + activations + known.program;
            rank = rank.max(own);
            ranks_of_all += own * self.data_ranks as u64;
        }
        // Machines have neighboring stages; the mean stands for each where there are several.
        Ok((rank, ranks_of_all / self.cluster.machines as u64))
    }
}
