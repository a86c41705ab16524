//! The engine: the units of a model with their weights, gradients and optimizer state, and what a step does to them.
//!
//! Where ranks share memory, weights lie in one buffer that all of them see, of which each updates its part: the
//! gather after a step then moves nothing. Gradients lie in buffers of each rank's own that the others read in place.
//! Sums over elements go by the layout's blocks, sums over ranks by a fixed tree, so the bits of a step do not depend
//! on the placement.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use oarlock_comm::{Communicator, Scalar};
use oarlock_tensor::ops::optimizer::{Part, Role, Rule};
use oarlock_tensor::ops::{transfer, update};
use oarlock_tensor::{ActiveTapes, Device, FlatBuffer, ParamHome, UnitHook};

use crate::nn::{self, Module, NamedParam, parameters, wrapped_units_of};
use crate::shard::compressed::one_bit::OneBitSteps;
use crate::shard::finite::check_range;
use crate::shard::group::{Grads, Group, GroupBuilder, Kind, Weights, offload_file};
use crate::shard::hooks::{TapePass, UnitPasses};
use crate::shard::layout::{BLOCK, in_order_on, runs};
use crate::shard::mesh::{Mesh, ranks_per_machine};
use crate::shard::norm::{Blocks, GradNorm};
use crate::shard::passes::Core;
use crate::shard::placement::{
    Placement, Quantized, ShardingConfig, Untouched, check_sharding, check_stage, on_device,
};
use crate::shard::plan::UnitUse;
use crate::shard::reduce::Home;
use crate::shard::source::{ParamSlice, WeightSource};
use crate::shard::stage::{Stage, StageUnits};
use crate::shard::state::{self, Slice, Snapshot};
use crate::shard::step::{CHUNK, ParamGroup};
use crate::shard::topology::Axis;
use crate::{Error, Result};

/// A model on one rank.
pub struct Engine {
    pub(super) core: Arc<Core>,
    pub(super) rule: Rule,
    /// The whole model of which this rank may hold a part.
    blocks: Blocks,
    /// The ranks that hold the other parts.
    pub(super) pipe: Option<Communicator>,
    /// Optimizer steps done.
    pub(super) n_steps: u64,
    /// For each group and parameter, the steps that have left it out.
    left_out: Vec<Vec<u64>>,
    pub(super) reduced: bool,
    /// Whether this rank steps on its own gradients, which no other adds to.
    pub(super) local: bool,
    /// Of a 1-bit optimizer.
    pub(super) one_bit: Option<OneBitSteps>,
    /// The hyperparameters of its last step.
    pub(super) last_hyperparameters: Vec<ParamGroup>,
}

/// Bytes of a rank by what they are for; memory that all ranks see counts in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Working copies at rest.
    pub parameters: usize,
    /// Gradients and their sums.
    pub gradients: usize,
    /// Master weights and the optimizer's states.
    pub optimizer: usize,
    /// Buffers in which weights are gathered.
    pub gathered: usize,
    /// Buffers through which gradients leave.
    pub leaving: usize,
}

/// The mesh with what quantized gradients need, and what is quantized on it: nothing on a rank alone, and no gradients on one
/// machine, as in DeepSpeed.
fn quantized_mesh(mut mesh: Mesh, asked: Quantized) -> Result<(Mesh, Quantized)> {
    if mesh.shard().world_size() == 1 {
        return Ok((mesh, Quantized::NONE));
    }
    if asked.gradients {
        mesh.add_machines(asked.machine)?;
    }
    let gradients = mesh.get(Axis::InsideMachine).is_some();
    Ok((mesh, Quantized { gradients, ..asked }))
}

impl Engine {
    /// Gives every parameter of the model a home. `param_group` says which of the optimizer's groups a parameter is in,
    /// `role` what it is to the optimizer.
    ///
    /// # Errors
    /// No memory, options that contradict themselves, or a model that belongs to an engine already.
    pub fn new(
        model: &dyn Module,
        comm: &Communicator,
        device: &Device,
        options: ShardingConfig,
        rule: Rule,
        param_group: &dyn Fn(&NamedParam) -> usize,
        role: &dyn Fn(&NamedParam) -> Role,
    ) -> Result<Engine> {
        Engine::of_stage(model, comm, device, options, rule, param_group, role, None)
    }

    /// As [`Engine::new`], for a model of which this rank holds the part of its stage: parameters of other stages have no
    /// home here. `comm` are the ranks of the stage.
    ///
    /// # Errors
    /// As [`Engine::new`]; gradients or parameters that are sharded.
    pub fn of_stage(
        model: &dyn Module,
        comm: &Communicator,
        device: &Device,
        options: ShardingConfig,
        rule: Rule,
        param_group: &dyn Fn(&NamedParam) -> usize,
        role: &dyn Fn(&NamedParam) -> Role,
        stage: Option<Stage>,
    ) -> Result<Engine> {
        check_sharding(&options, comm.world_size())?;
        if stage.is_some() {
            check_stage(&options)?;
        }
        let options = on_device(options, device);
        if let Some(missing) = nn::missing_class(&options.wrap, model) {
            return Err(Error::Model(missing));
        }
        let group = match options.by_machine && options.group.is_none() {
            true => Some(ranks_per_machine(&comm.machines(), "hybrid sharding shards")?),
            false => options.group,
        };
        let (mut mesh, quantized) =
            quantized_mesh(Mesh::of_state(comm, group, options.secondary)?, options.quantized)?;
        let options = ShardingConfig { quantized, ..options };
        let is_sharded = options.placements.optimizer == Placement::Sharded && mesh.shard().world_size() > 1;
        if is_sharded && options.overlap {
            mesh.publish_behind()?;
        }
        let shares_memory = comm.shares_memory();
        let found = wrapped_units_of(model, &options.wrap);
        let held = match &stage {
            Some(stage) => StageUnits::of_stage(&found, stage)?,
            None => StageUnits::whole(found.clone()),
        };
        let mut builder = GroupBuilder {
            mesh: &mesh,
            device,
            options: &options,
            rule: &rule,
            optimizer_file: offload_file(options.offload_optimizer.as_ref())?,
            params_file: offload_file(options.offload_params.as_ref())?,
            first_blocks: HashMap::new(),
            n_blocks: 0,
            ties: &held.ties,
        };
        // In the order of the model, so that no sum of blocks depends on what is a unit.
        builder.count(&parameters(model));
        let blocks = Blocks::of(&found, &builder);
        let (mut groups, mut units, mut homes) = (Vec::new(), Vec::new(), Vec::new());
        for unit in &held.units {
            let mut kinds: Vec<(Kind, Vec<NamedParam>)> = Vec::new();
            for named in &unit.params {
                let tie = held.tie_of.get(&named.param.id()).copied();
                let kind = Kind::of(named, &options, shares_memory, unit.run.is_some(), tie);
                match kinds.iter_mut().find(|(other, _)| *other == kind) {
                    Some((_, params)) => params.push(named.clone()),
                    None => kinds.push((kind, vec![named.clone()])),
                }
            }
            let first = groups.len();
            for (kind, params) in kinds {
                let params = in_order_on(device, params);
                homes.extend(params.iter().enumerate().map(|(i, p)| (p.param.clone(), groups.len(), i)));
                let in_unit = unit.run.is_some();
                groups.push(builder.group(groups.len(), kind, &params, in_unit, param_group, role)?);
            }
            if unit.run.is_some() {
                let own: Vec<usize> = (first..groups.len()).collect();
                let mut used = own.clone();
                for shared in &unit.shared {
                    let home = homes.iter().find(|(param, ..)| param.id() == shared.id());
                    used.extend(home.map(|&(_, group, _)| group).filter(|group| !used.contains(group)));
                }
                units.push(UnitUse { groups: used, completes: own });
            }
        }
        let core = Arc::new(Core::new(vec![mesh], device.clone(), options, groups, units)?);
        let home = |(group, of): (usize, &Group)| -> Arc<dyn ParamHome> {
            Arc::new(Home { core: Arc::downgrade(&core), group, params: of.params.clone() })
        };
        let of_groups: Vec<_> = core.groups.iter().enumerate().map(home).collect();
        for (param, group, index) in homes {
            param.settle(of_groups[group].clone(), index);
        }
        let runs = held.units.iter().filter_map(|unit| Some((&unit.name, unit.run.as_ref()?)));
        for (unit, (name, run)) in runs.enumerate() {
            if run.attach(Arc::new(UnitPasses { core: Arc::downgrade(&core), unit })).is_err() {
                return Err(Error::Usage(format!("unit \"{name}\" belongs to another engine already")));
            }
        }
        let left_out = core.groups.iter().map(|group| vec![0; group.layout.params().len()]).collect();
        let one_bit = OneBitSteps::of(&rule, &core, stage.is_some())?;
        Ok(Engine {
            core,
            rule,
            blocks,
            pipe: stage.map(|stage| stage.pipe),
            n_steps: 0,
            left_out,
            reduced: false,
            local: false,
            one_bit,
            last_hyperparameters: Vec::new(),
        })
    }

    /// Fills the weights; each rank reads what it needs, and no more of it at a time than a buffer holds. Parameters that
    /// the source lacks stay as they are.
    ///
    /// # Errors
    /// What the source reports.
    pub fn initialize(&mut self, source: &mut dyn WeightSource) -> Result<()> {
        self.core.await_published()?;
        let mut values = Vec::new();
        for group in &self.core.groups {
            let state = &group.state;
            state.gate.wait();
            for (index, part) in group.layout.parts(state.updated.clone()) {
                let param = &group.layout.params()[index];
                if !source.has(&param.name) {
                    continue;
                }
                for flat in runs(part, CHUNK) {
                    let elements = flat.start - param.place.first..flat.end - param.place.first;
                    values.resize(flat.len(), 0.0f32);
                    let (shape, init) = (param.place.shape, group.inits[index]);
                    source.read(&ParamSlice { name: &param.name, shape, init, elements }, &mut values)?;
                    check_range(&param.name, shape.n_elems(), &values, state.weights.dtype)?;
                    for column in std::iter::once(&state.weights).chain(&state.master) {
                        column.write(&self.core.device, column.at(index, &flat).start, &values)?;
                    }
                }
            }
        }
        self.core.publish(|_| true)?;
        self.core.await_published()
    }

    /// The number of parameters, frozen ones included.
    pub fn n_params(&self) -> usize {
        let params = self.core.groups.iter().flat_map(|group| group.layout.params());
        params.map(|p| p.place.shape.n_elems()).sum()
    }

    /// The name of every parameter, and whether it is trained.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, bool)> {
        let groups = self.core.groups.iter();
        groups.flat_map(|group| group.layout.params().iter().map(|p| (p.name.as_str(), group.trainable)))
    }

    /// The optimizer steps done.
    pub fn n_steps(&self) -> u64 {
        self.n_steps
    }

    /// How the model is held.
    pub fn options(&self) -> &ShardingConfig {
        &self.core.options
    }

    /// The kind of rule by which gradients change the weights; a step takes its hyperparameters from the parameter groups.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// What is in memory of the model's state.
    pub fn resident(&self) -> Resident {
        let (gathered, leaving) = self.core.pool_bytes();
        let mut resident = Resident { gathered, leaving, ..Resident::default() };
        for group in &self.core.groups {
            resident.parameters += match &group.weights {
                Weights::Resident(region) => region.bytes(),
                Weights::Gathered => group.state.weights.memory_bytes(),
            };
            resident.gradients += match &group.grads {
                Grads::None => 0,
                Grads::Whole(region) => region.bytes(),
                Grads::Sharded { sums, .. } => sums.len_bytes(),
            };
            let state = &group.state;
            let columns = state.master.iter().chain(state.moments.iter().map(|(column, _)| column));
            resident.optimizer += columns.map(|column| column.memory_bytes()).sum::<usize>();
        }
        resident
    }

    /// Forgets all gradients.
    ///
    /// # Errors
    /// While a tensor of a unit is held outside of it.
    pub fn clear_grads(&mut self) -> Result<()> {
        self.reduced = false;
        self.core.begin_step()
    }

    /// The forward passes of the model that are being recorded.
    pub fn active_tapes(&self) -> Arc<ActiveTapes> {
        self.core.active.clone()
    }

    /// What a tape calls around a whole pass: after a backward pass, gradients of units that this rank has skipped
    /// leave as zeros.
    pub fn pass_hook(&self) -> Arc<dyn UnitHook> {
        Arc::new(TapePass(Arc::downgrade(&self.core)))
    }

    /// Sums the gradients over all ranks; each rank then holds the sums of what it updates. A parameter that no rank
    /// touched has a zero gradient. Doing it twice between two steps does nothing.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn reduce_grads(&mut self) -> Result<()> {
        if !self.reduced {
            if self.steps_alone() {
                self.core.complete_all()?
            } else {
                self.core.reduce_all()?;
                self.core.reduce_ties()?;
            }
            self.reduced = true;
        }
        Ok(())
    }

    /// Whether no other rank adds to the gradients of the coming step.
    fn steps_alone(&self) -> bool {
        self.local || self.one_bit.as_ref().is_some_and(|one_bit| !one_bit.sums_gradients())
    }

    /// Says that a step follows the backward passes that are recorded by now, and that no other adds to its gradients: they
    /// leave unit by unit while those passes run, where [`ShardingConfig::overlap`] and the transport allow it. Without it,
    /// whole gradients (DDP, ZeRO-1) leave after the last pass, with the same bits.
    pub fn expect_step(&self) {
        if !self.steps_alone() && !self.reduced {
            self.core.expect_step();
        }
    }

    /// Multiplies the summed gradients by `scale`, which makes averages of them, and cuts their elements off at
    /// `-value` and `value`. Each rank does that to what it updates.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn clip_grad_value(&mut self, scale: f32, value: f32) -> Result<()> {
        if self.one_bit.is_some() {
            return Err(Error::Usage(format!(
                "clip_grad_value with {}: ranks have no common gradients to cut off; clip by norm",
                self.rule.name()
            )));
        }
        self.reduce_grads()?;
        for group in self.core.groups.iter().filter(|group| group.trainable) {
            let (updated, device) = (group.state.updated.clone(), &self.core.device);
            match &group.grads {
                Grads::Sharded { sums, .. } => {
                    update::scale_clamp(device, sums, 0..updated.len(), scale, value)?;
                }
                _ => {
                    let Some(grads) = group.params.grads() else { continue };
                    update::scale_clamp(device, &grads, updated, scale, value)?;
                }
            }
        }
        Ok(())
    }

    /// The norm of the summed gradients, the same bits on every rank and for every placement. Where ranks exchange signs
    /// instead of sums it is the root mean square of the norms that the sum would have if all ranks had each rank's
    /// gradients.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn grad_norm(&mut self) -> Result<GradNorm> {
        self.reduce_grads()?;
        let shard = self.core.mesh().shard();
        let groups = || self.core.groups.iter().filter(|group| group.trainable);
        let n_blocks = self.blocks.n;
        let (device, bytes) = (&self.core.device, n_blocks * size_of::<f64>());
        let sums = FlatBuffer::borrowed(device, bytes, "gradient norm")?;
        transfer::zero(device, &sums)?;
        let mut parts = Vec::new();
        let counted = |group: &&Group| group.tied.as_ref().is_none_or(|tied| tied.tie.is_first);
        for group in groups().filter(counted) {
            // Each block's sum comes from its one owner; the others hold zeros, so the sum over ranks is exact.
            let owned = match self.steps_alone() {
                true => 0..group.layout.n_elems(),
                false => {
                    let shard = self.core.meshes[group.mesh].shard();
                    group.layout.owned(shard.rank(), shard.world_size())
                }
            };
            let (grads, base) = match &group.grads {
                Grads::Sharded { sums, .. } => (sums.clone(), owned.start),
                _ => match group.params.grads() {
                    Some(grads) => (grads, 0),
                    None => continue,
                },
            };
            for (index, part) in group.layout.parts(owned) {
                let from_start = part.start - group.layout.params()[index].place.first;
                let first = group.first_blocks[index] + from_start / BLOCK;
                let range = first..first + part.len().div_ceil(BLOCK);
                parts.push((grads.clone(), part.start - base..part.end - base, range));
            }
        }
        let part = |flat, range: &Range<usize>| Part { flat, range: range.clone() };
        let pairs = parts.iter().map(|(flat, values, blocks)| (part(flat, values), part(&sums, blocks)));
        let pairs: Vec<_> = pairs.collect();
        update::all_squared_norms(device, &pairs)?;
        if (self.local || shard.world_size() == 1) && self.pipe.is_none() {
            let sum = update::sum_f64(device, &sums, n_blocks)?;
            if sum.is_finite() {
                return Ok(GradNorm { norm: sum.sqrt(), first_bad: None });
            }
        }
        let mut squares = transfer::read_with(&sums, 0..n_blocks, <[f64]>::to_vec)?;
        if !self.local {
            shard.all_reduce_f64(&mut squares, Scalar::Sum)?;
        }
        if let Some(pipe) = &self.pipe {
            // Those of other stages are zeros here.
            pipe.all_reduce_f64(&mut squares, Scalar::Sum)?;
        }
        let bad = squares.iter().position(|sum| !sum.is_finite());
        let first_bad = bad.and_then(|block| self.blocks.owner(block));
        let n_alike = match self.steps_alone() && !self.local {
            true => shard.world_size() as f64,
            false => 1.0,
        };
        Ok(GradNorm { norm: (n_alike * update::tree_sum(&squares)).sqrt(), first_bad })
    }

    fn one_bit_step(&mut self, param_groups: &[ParamGroup], grad_scale: f32) -> Result<()> {
        self.core.begin_step()?;
        self.n_steps += 1;
        if let Some(one_bit) = &mut self.one_bit {
            one_bit.step(&self.core, param_groups, grad_scale)?;
        }
        self.last_hyperparameters = param_groups.to_vec();
        self.reduced = false;
        Ok(())
    }

    /// One optimizer step on what this rank updates, with the hyperparameters of each parameter group, then the new weights for
    /// all; gradients are multiplied with `grad_scale`, and forgotten afterward. The number of the step is counted here.
    ///
    /// # Errors
    /// When a rank failed, somebody still holds weights, or a parameter group is missing or has another kind of rule.
    pub fn step(&mut self, param_groups: &[ParamGroup], grad_scale: f32) -> Result<()> {
        self.check_param_groups(param_groups)?;
        self.reduce_grads()?;
        if self.one_bit.is_some() {
            return self.one_bit_step(param_groups, grad_scale);
        }
        let touched = match self.core.options.untouched {
            Untouched::Zero => None,
            Untouched::Skip => Some(self.core.touched()?),
        };
        self.core.begin_step()?;
        self.n_steps += 1;
        if let Some(touched) = &touched {
            for (left_out, touched) in self.left_out.iter_mut().flatten().zip(touched.iter().flatten()) {
                *left_out += u64::from(!touched);
            }
        }
        let step = |group: usize, param: usize| {
            let takes_part = touched.as_ref().is_none_or(|touched| touched[group][param]);
            takes_part.then(|| self.n_steps.saturating_sub(self.left_out[group][param]))
        };
        self.core.await_published()?;
        self.core.update(param_groups, grad_scale, &step)?;
        self.reduced = false;
        // The ops of the next step wait for what they use. Frozen weights are as they were.
        self.core.publish(|group| group.trainable)
    }

    /// Each parameter has its hyperparameters, and its state is that of its rule.
    fn check_param_groups(&self, param_groups: &[ParamGroup]) -> Result<()> {
        let last =
            self.core.groups.iter().flat_map(|group| group.layout.params()).map(|p| p.param_group).max();
        if let Some(last) = last.filter(|last| *last >= param_groups.len()) {
            return Err(Error::Usage(format!(
                "the model has parameters of the parameter group {last}, and a step has hyperparameters for {} groups",
                param_groups.len()
            )));
        }
        match param_groups.iter().map(|group| &group.rule).find(|rule| !rule.is_like(&self.rule)) {
            Some(other) => Err(Error::Usage(format!(
                "the optimizer {} cannot step as {} with the state that it has",
                self.rule.name(),
                other.name()
            ))),
            None => Ok(()),
        }
    }

    /// With [`Untouched::Skip`], the steps that have left out each parameter, where there were any.
    pub fn left_out_steps(&self) -> BTreeMap<String, u64> {
        let params = self.core.groups.iter().flat_map(|group| group.layout.params());
        let counts = params.zip(self.left_out.iter().flatten());
        counts.filter(|(_, n)| **n > 0).map(|(param, n)| (param.name.clone(), *n)).collect()
    }

    /// Goes on from the counts of [`Engine::left_out_steps`].
    pub fn resume_left_out_steps(&mut self, counts: &BTreeMap<String, u64>) {
        let params = self.core.groups.iter().flat_map(|group| group.layout.params());
        for (param, n) in params.zip(self.left_out.iter_mut().flatten()) {
            *n = counts.get(&param.name).copied().unwrap_or(0);
        }
    }

    /// All state that this rank saves, held constant: the next step waits for it, unit by unit.
    pub fn snapshot(&self) -> Snapshot {
        // Weights that are in flight are lent. If they do not arrive they stay so, which whoever reads them is told, and
        // every later collective fails.
        drop(self.core.await_published());
        Snapshot::new(self.core.groups.iter().map(|group| group.state.clone()).collect())
    }

    /// The slices that a load must fill on this rank.
    pub fn needed_slices(&self) -> Vec<Slice> {
        self.core.groups.iter().flat_map(|group| group.state.slices(&group.state.updated)).collect()
    }

    /// Copies a slice that this rank updates out; `out` has its length.
    ///
    /// # Errors
    /// When the slice is not on this rank.
    pub fn read_state(&self, slice: &Slice, out: &mut [f32]) -> Result<()> {
        self.core.await_published()?;
        let (column, range) = state::find(self.core.groups.iter().map(|group| &group.state), slice)?;
        column.read(range.start, out)
    }

    /// Copies values into a slice; the weights reach all ranks with [`Engine::finish_load`].
    ///
    /// # Errors
    /// When the slice is not on this rank.
    pub fn write_state(&mut self, slice: &Slice, values: &[f32]) -> Result<()> {
        self.core.await_published()?;
        let states = || self.core.groups.iter().map(|group| &group.state);
        // What is being saved stays as it is until it is written.
        states()
            .filter(|state| state.layout.index_of(&slice.name).is_some())
            .for_each(|state| state.gate.wait());
        let (column, range) = state::find(states(), slice)?;
        column.write(&self.core.device, range.start, values)
    }

    /// After all state was written: working copies from master weights, and the number of steps done.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn finish_load(&mut self, n_steps: u64) -> Result<()> {
        self.core.await_published()?;
        for group in &self.core.groups {
            self.core.refresh_working_copy(&self.core.device, group)?;
        }
        self.n_steps = n_steps;
        if let Some(one_bit) = &mut self.one_bit {
            one_bit.resume(n_steps)?;
        }
        self.clear_grads()?;
        self.core.publish(|_| true)?;
        self.core.await_published()
    }
}
