//! The passes of a step: what happens before and after the forward and the backward pass of each unit.
//!
//! `nn/unit.rs` calls [`UnitPasses`] there: weights are gathered before a unit runs and released after it (`gather`), and
//! its gradients leave when they are complete (`reduce`). All ranks do the same in the same order, the order in which the
//! model declares its units. A rank that skips units (a branch not taken) joins in when it comes to a later one, or at
//! the end of the pass. Where the weights are always there and gradients stay, nothing of this moves anything.
//!
//! Over transports that work in the background ([`Core::overlaps`]) a collective is begun here and taken up later: a gather
//! when its unit is entered, a reduction when the backward pass is a unit further, or before the step.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use oarlock_comm::{Ready, Scalar, Sharing};
use oarlock_tensor::{
    ActiveTapes, DType, Device, FlatBuffer, FlatParams, Result as TensorResult, Tape, UnitHook,
};

use crate::shard::group::{Grads, Group, Weights};
use crate::shard::leaving::{Early, Leaving, UnitUse};
use crate::shard::mesh::Mesh;
use crate::shard::placement::{Lifetime, Placement, ShardingConfig, updates_beside};
use crate::shard::pool::{BufferPool, Gathered, PoolBuffer};
use crate::shard::quantized::Exchanges;
use crate::{Error, Result};

/// The groups of a model, and what is open of them.
pub(super) struct Core {
    pub mesh: Mesh,
    pub device: Device,
    /// What runs the optimizer: the device, or the CPU beside a GPU that does not hold the optimizer's state.
    pub updater: Device,
    pub options: ShardingConfig,
    pub groups: Vec<Group>,
    pub units: Vec<UnitUse>,
    /// The passes that are being recorded.
    pub active: Arc<ActiveTapes>,
    /// Whether units compute while collectives proceed.
    pub(super) overlaps: bool,
    /// Bytes of a 16-bit copy of a group's gradients, where they are reduced so; else 0.
    pub(super) staging_bytes: usize,
    /// The new weights of each group on their way.
    pub(super) in_flight: Mutex<Vec<Option<Ready>>>,
    pass: Mutex<PassState>,
}

/// Where the pass is.
pub(super) struct PassState {
    /// The unit that the forward pass comes to next.
    forward: usize,
    /// Whether a backward pass will follow.
    trains: bool,
    /// The unit that the backward pass has left last; `None` outside of one.
    backward: Option<usize>,
    /// Units that hold their groups open.
    pub(super) holds: Vec<bool>,
    pub(super) groups: Vec<GroupPass>,
    pub(super) pool: BufferPool,
    pub(super) secondary_pool: Option<BufferPool>,
    /// Weights that came in 8 bits.
    pub(super) decoded: BufferPool,
    pub(super) slots: BufferPool,
    /// 16-bit copies of gradients on their way.
    pub(super) staging: BufferPool,
    pub(super) exchanges: Option<Exchanges>,
    /// Gradients on their way, in the order in which they left.
    pub(super) leaving: VecDeque<Leaving>,
    /// How often a backward pass has left a unit.
    pub(super) n_left: u64,
    pub(super) early: Early,
}

#[derive(Default)]
pub(super) struct GroupPass {
    /// Units that hold it open.
    pub(super) n_holds: usize,
    /// Where it is gathered.
    pub(super) gathered: Option<Gathered>,
    /// This rank's part of the second copy.
    pub(super) secondary: Option<FlatBuffer>,
    /// Where gradients come together.
    pub(super) slot: Option<PoolBuffer>,
    /// Whether the sums hold something of this step.
    pub(super) summed: bool,
    /// The parameters that this rank has touched since the last step.
    touched: Vec<bool>,
}

impl GroupPass {
    /// Notes which parameters have gradients, before the others' are filled with zeros.
    pub(super) fn note_touched(&mut self, params: &FlatParams) {
        self.touched.resize(params.places().len(), false);
        for (index, touched) in self.touched.iter_mut().enumerate() {
            *touched |= params.touched(index);
        }
    }
}

impl Core {
    pub fn new(
        mesh: Mesh,
        device: Device,
        options: ShardingConfig,
        groups: Vec<Group>,
        units: Vec<UnitUse>,
    ) -> Result<Core> {
        let overlaps = options.overlap && mesh.shard.works_in_background();
        let most = groups.iter().filter(|g| g.trainable).map(|g| g.layout.n_elems()).max().unwrap_or(0);
        let mut staging = BufferPool::new(&mesh.shard, &device, Sharing::PerRank, "16-bit gradients");
        let staging_bytes = match options.reduces_in() {
            DType::F32 => 0,
            dtype => most * dtype.size(),
        };
        if staging_bytes > 0 {
            let first = staging.take(staging_bytes)?;
            staging.give_back(first)?;
        }
        let pass = PassState {
            forward: 0,
            trains: false,
            backward: None,
            holds: vec![false; units.len()],
            groups: groups.iter().map(|_| GroupPass::default()).collect(),
            pool: BufferPool::new(&mesh.shard, &device, Sharing::Replicated, "gathered weights"),
            secondary_pool: mesh
                .secondary
                .as_ref()
                .map(|comm| BufferPool::new(comm, &device, Sharing::Replicated, "gathered weights")),
            decoded: BufferPool::new(&mesh.shard, &device, Sharing::PerRank, "decoded weights"),
            slots: BufferPool::new(&mesh.shard, &device, Sharing::PerRank, "gradients on their way"),
            staging,
            exchanges: mesh.hops.as_ref().map(|hops| Exchanges::new(hops, &device)),
            leaving: VecDeque::new(),
            n_left: 0,
            early: Early::new(&units, groups.len()),
        };
        let active = Arc::default();
        let updater = if updates_beside(&options, &device) { device.beside() } else { device.clone() };
        let (pass, in_flight) = (Mutex::new(pass), Mutex::default());
        Ok(Core {
            mesh,
            device,
            updater,
            options,
            groups,
            units,
            active,
            overlaps,
            staging_bytes,
            in_flight,
            pass,
        })
    }

    pub(super) fn pass(&self) -> MutexGuard<'_, PassState> {
        // After a panic inside of a pass the ranks no longer agree on where they are, and the next collective says so.
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether whole gradients may leave during the last backward pass of a step.
    pub(super) fn reduces_early(&self) -> bool {
        self.overlaps && self.options.placements.gradients == Placement::Whole
    }

    /// Whether nothing moves during a pass.
    pub(super) fn is_still(&self) -> bool {
        !self.reduces_early()
            && self.groups.iter().all(|group| {
                matches!(group.weights, Weights::Resident(_)) && !matches!(group.grads, Grads::Sharded { .. })
            })
    }

    /// Bytes of the pool: for weights, for gradients.
    pub fn pool_bytes(&self) -> (usize, usize) {
        let pass = self.pass();
        let second = pass.secondary_pool.as_ref().map_or(0, BufferPool::bytes);
        let exchanges = pass.exchanges.as_ref().map_or(0, Exchanges::bytes);
        let gathered = pass.pool.bytes() + second + pass.decoded.bytes();
        (gathered, pass.slots.bytes() + pass.staging.bytes() + exchanges)
    }

    fn before_forward(&self, unit: usize, trains: bool) -> Result<()> {
        let mut pass = self.pass();
        self.finish_backward_in(&mut pass)?;
        if unit < pass.forward || pass.trains != trains && pass.forward > 0 {
            self.finish_forward_in(&mut pass)?;
            pass.forward = 0;
        }
        pass.trains = trains;
        if trains {
            pass.early.recorded(unit);
        }
        while pass.forward < unit {
            let skipped = pass.forward;
            self.enter(&mut pass, skipped, true)?;
            self.leave_forward(&mut pass, skipped)?;
        }
        self.enter(&mut pass, unit, true)
    }

    fn after_forward(&self, unit: usize) -> Result<()> {
        self.leave_forward(&mut self.pass(), unit)
    }

    fn before_backward(&self, unit: usize) -> Result<()> {
        let mut pass = self.pass();
        self.finish_forward_in(&mut pass)?;
        if pass.backward.is_some_and(|left| unit >= left) {
            self.finish_backward_in(&mut pass)?;
        }
        if pass.backward.is_none() {
            // What left in the pass before had all the time since.
            self.finish_earlier(&mut pass, 0)?;
        }
        for skipped in (unit + 1..pass.backward.unwrap_or(self.units.len())).rev() {
            self.enter(&mut pass, skipped, false)?;
            self.leave_backward(&mut pass, skipped)?;
        }
        pass.backward = Some(unit + 1);
        pass.early.ran(unit);
        self.enter(&mut pass, unit, false)
    }

    fn after_backward(&self, unit: usize) -> Result<()> {
        let mut pass = self.pass();
        self.leave_backward(&mut pass, unit)?;
        if unit == 0 {
            self.end_backward(&mut pass);
        }
        Ok(())
    }

    /// Joins in what the others may have done in the units that this rank has skipped.
    pub fn finish_backward(&self) -> Result<()> {
        self.finish_backward_in(&mut self.pass())
    }

    pub(super) fn finish_backward_in(&self, pass: &mut PassState) -> Result<()> {
        let Some(left) = pass.backward else { return Ok(()) };
        for unit in (0..left).rev() {
            self.enter(pass, unit, false)?;
            self.leave_backward(pass, unit)?;
        }
        self.end_backward(pass);
        Ok(())
    }

    fn end_backward(&self, pass: &mut PassState) {
        pass.backward = None;
        pass.forward = 0;
        pass.trains = false;
    }

    fn finish_forward_in(&self, pass: &mut PassState) -> Result<()> {
        while pass.forward > 0 && pass.forward < self.units.len() {
            let skipped = pass.forward;
            self.enter(pass, skipped, true)?;
            self.leave_forward(pass, skipped)?;
        }
        Ok(())
    }

    fn leave_forward(&self, pass: &mut PassState, unit: usize) -> Result<()> {
        pass.forward = unit + 1;
        let last = unit + 1 == self.units.len();
        // The backward pass begins with the unit that the forward pass ends with.
        let keep = pass.trains && (self.options.lifetime == Lifetime::ForwardToBackward || last);
        if pass.trains && pass.secondary_pool.is_some() {
            for &group in &self.units[unit].groups {
                self.keep_second_copy(pass, group)?;
            }
        }
        if keep { Ok(()) } else { self.release(pass, unit) }
    }

    fn leave_backward(&self, pass: &mut PassState, unit: usize) -> Result<()> {
        pass.backward = Some(unit);
        pass.n_left += 1;
        self.reduce_early(pass, unit)?;
        for &group in &self.units[unit].completes {
            if matches!(self.groups[group].grads, Grads::Sharded { .. }) {
                self.reduce(pass, group)?;
            }
        }
        self.release(pass, unit)?;
        for &group in &self.units[unit].completes {
            pass.groups[group].secondary = None;
        }
        Ok(())
    }

    /// For each group and parameter, whether any rank has touched it since the last step: the same answer on all. To be
    /// asked after gradients are reduced.
    pub fn touched(&self) -> Result<Vec<Vec<bool>>> {
        let pass = self.pass();
        let sizes = || self.groups.iter().map(|group| group.layout.params().len());
        let here = |group: usize, param: usize| pass.groups[group].touched.get(param) == Some(&true);
        let mut flags: Vec<f64> = sizes()
            .enumerate()
            .flat_map(|(group, n)| (0..n).map(move |param| (group, param)))
            .map(|(group, param)| f64::from(u8::from(here(group, param))))
            .collect();
        self.mesh.shard.all_reduce_f64(&mut flags, Scalar::Max)?;
        if let Some(replica) = &self.mesh.replica {
            replica.all_reduce_f64(&mut flags, Scalar::Max)?;
        }
        let mut flags = flags.into_iter().map(|flag| flag != 0.0);
        Ok(sizes().map(|n| flags.by_ref().take(n).collect()).collect())
    }

    /// After a step: every gathered copy is stale, and gradients begin again from zero.
    pub fn begin_step(&self) -> Result<()> {
        let mut pass = self.pass();
        let pass = &mut *pass;
        self.finish_leaving(pass)?;
        pass.early.begin_step();
        for unit in 0..self.units.len() {
            self.release(pass, unit)?;
        }
        self.end_backward(pass);
        for (group, pass) in self.groups.iter().zip(&mut pass.groups) {
            group.params.clear_grads();
            (pass.summed, pass.secondary) = (false, None);
            pass.touched.clear();
        }
        Ok(())
    }
}

/// What a unit calls around its passes: its engine. A tape calls it again in the backward pass.
pub(super) struct UnitPasses {
    pub core: Weak<Core>,
    pub unit: usize,
}

impl UnitHook for UnitPasses {
    fn before_forward(&self, trains: bool) -> TensorResult<()> {
        call(&self.core, |core| core.before_forward(self.unit, trains))
    }

    fn after_forward(&self, _trains: bool) -> TensorResult<()> {
        call(&self.core, |core| core.after_forward(self.unit))
    }

    fn before_backward(&self) -> TensorResult<()> {
        call(&self.core, |core| core.before_backward(self.unit))
    }

    fn after_backward(&self) -> TensorResult<()> {
        call(&self.core, |core| core.after_backward(self.unit))
    }

    fn active_tape(&self) -> Option<Tape> {
        self.core.upgrade()?.active.current()
    }
}

/// What a tape calls around a whole pass.
pub(super) struct TapePass(pub Weak<Core>);

impl UnitHook for TapePass {
    fn before_forward(&self, _trains: bool) -> TensorResult<()> {
        Ok(())
    }

    fn after_forward(&self, _trains: bool) -> TensorResult<()> {
        Ok(())
    }

    fn before_backward(&self) -> TensorResult<()> {
        Ok(())
    }

    fn after_backward(&self) -> TensorResult<()> {
        call(&self.0, Core::finish_backward)
    }
}

/// Runs `f` on a core where anything moves at all.
fn call(core: &Weak<Core>, f: impl FnOnce(&Core) -> Result<()>) -> TensorResult<()> {
    let Some(core) = core.upgrade() else {
        return Err(oarlock_tensor::Error::Usage("the model's optimizer is gone".to_string()));
    };
    if core.is_still() {
        return Ok(());
    }
    f(&core).map_err(|error| match error {
        Error::Tensor(error) => error,
        error => oarlock_tensor::Error::Hook(Box::new(error)),
    })
}
