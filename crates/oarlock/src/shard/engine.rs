//! The engine: the units of a model with their weights, gradients and optimizer state, and what a step does to them.
//!
//! Weights lie in one buffer that all ranks of the machine see where the optimizer state is sharded (the all-gather
//! after a step then moves nothing), and in a buffer of each rank's own where it is whole. Gradients lie in buffers of
//! each rank's own that the others read in place. Sums over elements go by the layout's blocks, sums over ranks by a
//! fixed tree, so the bits of a step do not depend on the placement.

use std::ops::Range;
use std::sync::Arc;

use oarlock_comm::{Communicator, Ownership, Ready, Region, Scalar, Sharing};
use oarlock_tensor::cpu::adamw::AdamW;
use oarlock_tensor::ops::update;
use oarlock_tensor::{
    DType, Device, FlatBuffer, FlatParams, Init, Place, Result as TensorResult, Shape, UnitHook,
};

use crate::error::{Error, Result};
use crate::nn::{Module, units_of};
use crate::shard::layout::{BLOCK, Layout};
use crate::shard::placement::Placement;
use crate::shard::snapshot::{Held, HeldUnit, Snapshot};
use crate::shard::state::{KINDS, Slice, WeightSource};

/// How the engine holds a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The dtype of the working copies and of the arithmetic on them.
    pub dtype: DType,
    /// Where master weights and moments lie.
    pub optimizer: Placement,
}

/// The units of a model on one rank, each as one group of flat buffers for each dtype of working copy.
pub struct Engine {
    comm: Communicator,
    device: Device,
    options: Options,
    units: Vec<EngineUnit>,
    /// Optimizer steps done.
    n_steps: u64,
    reduced: bool,
    held: Arc<Held>,
}

struct EngineUnit {
    layout: Layout,
    inits: Vec<Init>,
    params: Arc<FlatParams>,
    weights: Region,
    grads: Region,
    /// The elements that this rank updates, and the state for them.
    updated: Range<usize>,
    /// The elements that each rank owns in sums and gathers.
    owners: Ownership,
    /// f32 master weights where the working copy is not f32 itself.
    master: Option<FlatBuffer>,
    exp_avg: FlatBuffer,
    exp_avg_sq: FlatBuffer,
}

/// The global norm of the gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradNorm {
    /// The L2 norm over all parameters.
    pub norm: f64,
    /// The index of the first unit whose gradients are not finite.
    pub first_bad_unit: Option<usize>,
}

/// What the tape calls around a unit's backward pass. With whole parameters there is nothing to gather or to free.
struct WholeUnit;

impl UnitHook for WholeUnit {
    fn before_backward(&self) -> TensorResult<()> {
        Ok(())
    }
    fn after_backward(&self) -> TensorResult<()> {
        Ok(())
    }
}

impl Engine {
    /// Gives every parameter of the model a home. `decays` says whether weight decay applies to a parameter.
    ///
    /// # Errors
    /// No memory, or a model that belongs to an engine already.
    pub fn new(
        model: &dyn Module,
        comm: &Communicator,
        device: &Device,
        options: Options,
        decays: impl Fn(&str, &Shape) -> bool,
    ) -> Result<Engine> {
        let mut units = Vec::new();
        for unit in units_of(model) {
            if let Some(run) = &unit.run
                && run.attach(Arc::new(WholeUnit)).is_err()
            {
                return Err(Error::Usage(format!(
                    "unit \"{}\" belongs to another engine already",
                    unit.name
                )));
            }
            for (dtype, params) in unit.by_dtype(options.dtype) {
                let layout = Layout::new(
                    params
                        .iter()
                        .map(|p| (p.name.clone(), *p.param.shape(), decays(&p.name, p.param.shape()))),
                );
                let inits = params.iter().map(|p| p.param.init()).collect();
                let group =
                    EngineUnit::new(units.len(), layout, inits, comm, device, Options { dtype, ..options })?;
                for (index, named) in params.iter().enumerate() {
                    named.param.settle(group.params.clone(), index);
                }
                units.push(group);
            }
        }
        Ok(Engine {
            comm: comm.clone(),
            device: device.clone(),
            options,
            units,
            n_steps: 0,
            reduced: false,
            held: Arc::default(),
        })
    }

    /// Fills the weights; each rank reads what it owns.
    ///
    /// # Errors
    /// What the source reports.
    pub fn initialize(&mut self, source: &mut dyn WeightSource) -> Result<()> {
        for unit in &mut self.units {
            unit.initialize(source, &self.device)?;
        }
        self.publish()
    }

    /// The number of parameters.
    pub fn n_params(&self) -> usize {
        self.units.iter().flat_map(|u| u.layout.params()).map(|p| p.place.shape.n_elems()).sum()
    }

    /// The optimizer steps done.
    pub fn n_steps(&self) -> u64 {
        self.n_steps
    }

    /// How the model is held.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Forgets all gradients.
    pub fn clear_grads(&mut self) {
        self.units.iter().for_each(|unit| unit.params.clear_grads());
        self.reduced = false;
    }

    /// Sums the gradients over all ranks; each rank then holds the sums of what it updates. A parameter that no rank
    /// touched has a zero gradient. Doing it twice between two steps does nothing.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn reduce_grads(&mut self) -> Result<()> {
        if self.reduced {
            return Ok(());
        }
        for unit in &self.units {
            unit.params.zero_untouched()?;
            let ready = match self.options.optimizer {
                Placement::Sharded => {
                    self.comm.reduce_scatter(&unit.grads, DType::F32, &unit.owners, Ready::now())?
                }
                Placement::Whole => {
                    self.comm.all_reduce(&unit.grads, DType::F32, 0..unit.layout.n_elems(), Ready::now())?
                }
            };
            ready.wait()?;
        }
        self.reduced = true;
        Ok(())
    }

    /// The norm of the summed gradients, the same bits on every rank and for every placement.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn grad_norm(&mut self) -> Result<GradNorm> {
        self.reduce_grads()?;
        let n_blocks: usize = self.units.iter().map(|u| u.layout.n_blocks()).sum();
        let mut squares = vec![0.0; n_blocks];
        let mut first = 0;
        for unit in &self.units {
            // Each block's sum comes from its one owner; the others hold zeros, so the sum over ranks is exact.
            let owned = unit.layout.owned(self.comm.rank(), self.comm.world_size());
            let blocks = first + owned.start / BLOCK..first + owned.end.div_ceil(BLOCK);
            if let Some(grads) = unit.params.grads() {
                update::squared_norms(
                    &self.device,
                    &grads.read()?.slice::<f32>()[owned],
                    &mut squares[blocks],
                );
            }
            first += unit.layout.n_blocks();
        }
        self.comm.all_reduce_f64(&mut squares, Scalar::Sum)?;
        let mut first_bad_unit = None;
        let mut start = 0;
        for (index, unit) in self.units.iter().enumerate() {
            let end = start + unit.layout.n_blocks();
            if squares[start..end].iter().any(|s| !s.is_finite()) {
                first_bad_unit = Some(index);
                break;
            }
            start = end;
        }
        Ok(GradNorm { norm: update::tree_sum(&squares).sqrt(), first_bad_unit })
    }

    /// The name of a unit, for messages.
    pub fn unit_name(&self, index: usize) -> &str {
        self.units[index].layout.params().first().map_or("", |p| p.name.as_str())
    }

    /// One AdamW step on what this rank updates, then the new weights for all. `adamw.step` and its `weight_decay`
    /// (for parameters that decay) are used as given; gradients are forgotten afterwards.
    ///
    /// # Errors
    /// When a rank failed, or somebody still holds weights.
    pub fn step(&mut self, adamw: AdamW) -> Result<()> {
        self.reduce_grads()?;
        self.n_steps += 1;
        let adamw = AdamW { step: self.n_steps, ..adamw };
        for (index, unit) in self.units.iter_mut().enumerate() {
            self.held.wait(index);
            unit.step(&adamw, &self.device)?;
        }
        self.publish()?;
        self.clear_grads();
        Ok(())
    }

    /// Makes the weights that each rank has written visible to all.
    fn publish(&self) -> Result<()> {
        for unit in &self.units {
            if self.options.optimizer == Placement::Sharded {
                self.comm
                    .all_gather(&unit.weights, unit.params.dtype(), &unit.owners, Ready::now())?
                    .wait()?;
            }
        }
        Ok(())
    }

    /// All state that this rank should save, held constant: the next step waits for it, unit by unit.
    ///
    /// # Errors
    /// None here; an engine whose state lies in files may fail.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.held.hold(self.units.len());
        let held = |unit: &EngineUnit| {
            let owned = unit.layout.owned(self.comm.rank(), self.comm.world_size());
            Some(HeldUnit {
                kinds: KINDS.iter().map(|&kind| unit.buffer(kind)).collect(),
                slices: unit.placed_slices(owned),
            })
        };
        Ok(Snapshot { units: self.units.iter().map(held).collect(), held: self.held.clone() })
    }

    /// What a load must fill on this rank.
    pub fn needed_slices(&self) -> Vec<Slice> {
        let slices = |unit: &EngineUnit| unit.placed_slices(unit.updated.clone());
        self.units.iter().flat_map(slices).map(|(slice, _)| slice).collect()
    }

    /// Copies a slice of state in; the weights reach all ranks with [`Engine::finish_load`].
    ///
    /// # Errors
    /// When the slice is not on this rank.
    pub fn write_state(&mut self, slice: &Slice, values: &[f32]) -> Result<()> {
        for (index, unit) in self.units.iter().enumerate() {
            if let Some(param) = unit.layout.params().iter().find(|p| p.name == slice.name) {
                let range = param.place.first + slice.elements.start..param.place.first + slice.elements.end;
                if unit.updated.start <= range.start && range.end <= unit.updated.end {
                    self.held.wait(index);
                    let (_, flat, shift) = unit.buffer(slice.kind);
                    let mut lease = flat.write()?;
                    let out = &mut lease.slice_mut::<f32>()[range.start - shift..range.end - shift];
                    out.copy_from_slice(values);
                    return Ok(());
                }
            }
        }
        Err(Error::Usage(format!("elements {:?} of \"{}\" are not on this rank", slice.elements, slice.name)))
    }

    /// After all state was written: working copies from master weights, and the number of steps done.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn finish_load(&mut self, n_steps: u64) -> Result<()> {
        for unit in &self.units {
            unit.refresh_working_copy(&self.device)?;
        }
        self.n_steps = n_steps;
        self.clear_grads();
        self.publish()
    }
}

impl EngineUnit {
    fn new(
        index: usize,
        layout: Layout,
        inits: Vec<Init>,
        comm: &Communicator,
        device: &Device,
        options: Options,
    ) -> Result<EngineUnit> {
        let (n_elems, world_size) = (layout.n_elems(), comm.world_size());
        let (sharing, updated) = match options.optimizer {
            Placement::Sharded => (Sharing::Replicated, layout.owned(comm.rank(), world_size)),
            Placement::Whole => (Sharing::PerRank, 0..n_elems),
        };
        let weights = comm.allocate(&format!("weights {index}"), n_elems * options.dtype.size(), sharing)?;
        let grads = comm.allocate(&format!("gradients {index}"), n_elems * 4, Sharing::PerRank)?;
        let places: Vec<Place> = layout.params().iter().map(|p| p.place).collect();
        let params = FlatParams::new(
            places,
            options.dtype,
            FlatBuffer::over(Box::new(weights.clone())),
            Some(FlatBuffer::over(Box::new(grads.clone()))),
            device,
        )?;
        let state = |what| FlatBuffer::pooled(device, updated.len() * 4, what);
        let master = if options.dtype == DType::F32 { None } else { Some(state("master weights")?) };
        let owners =
            Ownership::new((0..world_size).map(|rank| vec![layout.owned(rank, world_size)]).collect())?;
        Ok(EngineUnit {
            inits,
            params: Arc::new(params),
            weights,
            grads,
            owners,
            master,
            exp_avg: state("first moments")?,
            exp_avg_sq: state("second moments")?,
            updated,
            layout,
        })
    }

    fn initialize(&mut self, source: &mut dyn WeightSource, device: &Device) -> Result<()> {
        let base = self.updated.start;
        let (mut lease, shift) = match &self.master {
            Some(master) => (master.write()?, base),
            None => (self.params.weights().write()?, 0),
        };
        let weights = lease.slice_mut::<f32>();
        for (param, part) in self.layout.parts(self.updated.clone()) {
            let index = self.layout.params().iter().position(|p| p.name == param.name).unwrap_or(0);
            let elements = part.start - param.place.first..part.end - param.place.first;
            let out = &mut weights[part.start - shift..part.end - shift];
            source.read(&param.name, &param.place.shape, self.inits[index], elements, out)?;
        }
        drop(lease);
        self.refresh_working_copy(device)
    }

    /// Rounds the master weights into the working copy; nothing to do where they are the same.
    fn refresh_working_copy(&self, device: &Device) -> Result<()> {
        if let Some(master) = &self.master {
            update::round_into(
                device,
                master,
                self.params.weights(),
                self.updated.clone(),
                self.params.dtype(),
            )?;
        }
        Ok(())
    }

    fn step(&mut self, adamw: &AdamW, device: &Device) -> Result<()> {
        let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
        for (param, part) in self.layout.parts(self.updated.clone()) {
            match runs.last_mut() {
                // Padding between parameters holds zeros and stays zero: it may be stepped over in one run.
                Some((run, decay)) if *decay == param.decay => run.end = part.end,
                _ => runs.push((part, param.decay)),
            }
        }
        let Some(grads) = self.params.grads() else { return Ok(()) };
        for (run, decay) in runs {
            let adamw = AdamW { weight_decay: if decay { adamw.weight_decay } else { 0.0 }, ..*adamw };
            let flat = update::AdamWBuffers {
                weights: self.params.weights(),
                dtype: self.params.dtype(),
                grads,
                master: self.master.as_ref(),
                exp_avg: &self.exp_avg,
                exp_avg_sq: &self.exp_avg_sq,
                state_first: self.updated.start,
            };
            update::adamw(device, &adamw, &flat, run)?;
        }
        Ok(())
    }

    fn placed_slices(&self, range: Range<usize>) -> Vec<(Slice, usize)> {
        let slice = |kind: &'static str, param: &crate::shard::LayoutParam, part: Range<usize>| {
            let elements = part.start - param.place.first..part.end - param.place.first;
            (Slice { kind, name: param.name.clone(), shape: param.place.shape, elements }, part.start)
        };
        let of_kind = |&kind: &'static &'static str| {
            self.layout.parts(range.clone()).map(move |(param, part)| slice(kind, param, part))
        };
        KINDS.iter().flat_map(of_kind).collect()
    }

    fn buffer(&self, kind: &'static str) -> (&'static str, FlatBuffer, usize) {
        let (flat, shift) = match (kind, &self.master) {
            ("exp_avg", _) => (&self.exp_avg, self.updated.start),
            ("exp_avg_sq", _) => (&self.exp_avg_sq, self.updated.start),
            (_, Some(master)) => (master, self.updated.start),
            // Without a copy of their own the master weights are the working copy, which is f32.
            (_, None) => (self.params.weights(), 0),
        };
        (kind, flat.clone(), shift)
    }
}
