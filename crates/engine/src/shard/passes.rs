//! The groups of a model on a rank, and what is open of them during the passes of a step.
//!
//! A [`Schedule`] says in which order weights come and go and gradients leave; the rank carries that out as [`Work`]: `gather`
//! has what happens to weights, `reduce` to gradients. `hooks` brings both together, where units and engines call.
//!
//! Over transports that work in the background ([`Plan::overlaps`]) a collective is begun here and taken up later: a gather
//! when its unit is entered, a reduction when the backward pass is a unit further, or before the step.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_comm::{Ready, Scalar, Sharing};
use oarlock_tensor::{ActiveTapes, DType, Device, FlatBuffer, FlatParams};

use crate::Result;
use crate::shard::compressed::quantized::Exchanges;
use crate::shard::group::Group;
use crate::shard::in_flight::ReductionInFlight;
use crate::shard::mesh::Mesh;
use crate::shard::placement::{ShardingConfig, updates_beside};
use crate::shard::plan::{Plan, UnitUse};
use crate::shard::pool::{BufferPool, Gathered, PoolBuffer};
use crate::shard::schedule::Schedule;
use crate::shard::topology::Axis;

/// The groups of a model, and what is open of them.
pub(super) struct Core {
    /// What groups live on; the first has all ranks of the model.
    pub meshes: Vec<Mesh>,
    pub device: Device,
    /// What runs the optimizer: the device, or the CPU beside a GPU that does not hold the optimizer's state.
    pub updater: Device,
    pub options: ShardingConfig,
    pub groups: Vec<Group>,
    /// What the order of a step depends on.
    pub plan: Arc<Plan>,
    /// The passes that are being recorded.
    pub active: Arc<ActiveTapes>,
    /// Bytes of a 16-bit copy of a group's gradients, where they are reduced so; else 0.
    pub(super) staging_bytes: usize,
    /// The new weights of each group in flight.
    pub(super) in_flight: Mutex<Vec<Option<Ready>>>,
    pass: Mutex<Pass>,
}

/// Where a step is, and what is open for it.
pub(super) struct Pass {
    pub(super) schedule: Schedule,
    pub(super) buffers: Buffers,
}

/// What is open for a step.
pub(super) struct Buffers {
    pub(super) groups: Vec<GroupBuffers>,
    /// What the ranks of each mesh meet in.
    pub(super) pools: Vec<Pools>,
    /// Gradients in flight, in the order in which they left.
    pub(super) in_flight: VecDeque<ReductionInFlight>,
    /// Sums in flight to other groups of ranks.
    pub(super) across: VecDeque<Ready>,
}

/// The buffers of a mesh.
pub(super) struct Pools {
    weights: BufferPool,
    secondary: Option<BufferPool>,
    /// Weights that came in 8 bits.
    pub(super) decoded: BufferPool,
    pub(super) gradients: BufferPool,
    /// 16-bit copies of gradients in flight.
    pub(super) staging: BufferPool,
    pub(super) exchanges: Option<Exchanges>,
}

impl Pools {
    fn new(mesh: &Mesh, device: &Device) -> Pools {
        let of = |comm, sharing, what| BufferPool::new(comm, device, sharing, what);
        let (shard, own, seen) = (mesh.shard(), Sharing::PerRank, Sharing::Replicated);
        let machines = [Axis::InsideMachine, Axis::AcrossMachines].map(|axis| mesh.get(axis));
        Pools {
            weights: of(shard, seen, "gathered weights"),
            secondary: mesh.get(Axis::Secondary).map(|comm| of(comm, seen, "gathered weights")),
            decoded: of(shard, own, "decoded weights"),
            gradients: of(shard, own, "gradients in flight"),
            staging: of(shard, own, "16-bit gradients"),
            exchanges: match machines {
                [Some(inside), Some(across)] => Some(Exchanges::new(inside, across, device)),
                _ => None,
            },
        }
    }

    /// Those that collectives of the secondary group, or of all, gather into.
    pub(super) fn weights(&mut self, secondary: bool) -> &mut BufferPool {
        match &mut self.secondary {
            Some(pool) if secondary => pool,
            _ => &mut self.weights,
        }
    }

    /// All bytes: for weights, for gradients.
    fn bytes(&self) -> (usize, usize) {
        let second = self.secondary.as_ref().map_or(0, BufferPool::bytes);
        let exchanges = self.exchanges.as_ref().map_or(0, Exchanges::bytes);
        let gradients = self.gradients.bytes() + self.staging.bytes() + exchanges;
        (self.weights.bytes() + second + self.decoded.bytes(), gradients)
    }
}

/// What is open of a group.
#[derive(Default)]
pub(super) struct GroupBuffers {
    /// Where it is gathered.
    pub(super) gathered: Option<Gathered>,
    /// This rank's part of the second copy.
    pub(super) secondary: Option<FlatBuffer>,
    /// Where gradients accumulate.
    pub(super) slot: Option<PoolBuffer>,
    /// The parameters that this rank has touched since the last step.
    pub(super) touched: Vec<bool>,
}

impl GroupBuffers {
    /// Notes which parameters have gradients, before the others' are filled with zeros.
    pub(super) fn note_touched(&mut self, params: &FlatParams) {
        self.touched.resize(params.places().len(), false);
        for (index, touched) in self.touched.iter_mut().enumerate() {
            *touched |= params.touched(index);
        }
    }
}

/// What a schedule works on.
pub(super) struct Work<'a> {
    pub(super) core: &'a Core,
    pub(super) buffers: &'a mut Buffers,
}

impl Core {
    pub fn new(
        meshes: Vec<Mesh>,
        device: Device,
        options: ShardingConfig,
        groups: Vec<Group>,
        units: Vec<UnitUse>,
    ) -> Result<Core> {
        let most = groups.iter().filter(|g| g.trainable).map(|g| g.layout.n_elems()).max().unwrap_or(0);
        let staging_bytes = match options.reduces_in() {
            DType::F32 => 0,
            dtype => most * dtype.size(),
        };
        let mut pools: Vec<Pools> = meshes.iter().map(|mesh| Pools::new(mesh, &device)).collect();
        for Pools { staging, .. } in pools.iter_mut().filter(|_| staging_bytes > 0) {
            let first = staging.take(staging_bytes)?;
            staging.give_back(first)?;
        }
        let works_in_background = meshes.iter().all(|mesh| mesh.shard().works_in_background());
        let plan = Arc::new(Plan {
            overlaps: options.overlap && works_in_background,
            keeps_second_copy: meshes.iter().any(|mesh| mesh.get(Axis::Secondary).is_some()),
            ..Plan::new(units, groups.iter().map(Group::in_step).collect(), &options)
        });
        let buffers = Buffers {
            groups: groups.iter().map(|_| GroupBuffers::default()).collect(),
            pools,
            in_flight: VecDeque::new(),
            across: VecDeque::new(),
        };
        let active = Arc::default();
        let updater = if updates_beside(&options, &device) { device.host_device() } else { device.clone() };
        let pass = Mutex::new(Pass { schedule: Schedule::new(plan.clone()), buffers });
        let in_flight = Mutex::default();
        Ok(Core { meshes, device, updater, options, groups, plan, active, staging_bytes, in_flight, pass })
    }

    pub(super) fn pass(&self) -> MutexGuard<'_, Pass> {
        // After a panic inside of a pass the ranks no longer agree on where they are, and the next collective says so.
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with the schedule.
    pub(super) fn go_on(&self, f: impl FnOnce(&mut Schedule, &mut Work<'_>) -> Result<()>) -> Result<()> {
        let mut pass = self.pass();
        let Pass { schedule, buffers } = &mut *pass;
        f(schedule, &mut Work { core: self, buffers })
    }

    /// The mesh of the model.
    pub(super) fn mesh(&self) -> &Mesh {
        // A core has at least one.
        &self.meshes[0]
    }

    /// Bytes of the buffers: for weights, for gradients.
    pub fn pool_bytes(&self) -> (usize, usize) {
        let pass = self.pass();
        let all = pass.buffers.pools.iter().map(Pools::bytes);
        all.fold((0, 0), |sum, pools| (sum.0 + pools.0, sum.1 + pools.1))
    }

    /// For each group and parameter, whether any rank has touched it since the last step: the same answer on all. To be
    /// asked after gradients are reduced.
    pub fn touched(&self) -> Result<Vec<Vec<bool>>> {
        let pass = self.pass();
        let sizes = || self.groups.iter().map(|group| group.layout.params().len());
        let here = |group: usize, param: usize| pass.buffers.groups[group].touched.get(param) == Some(&true);
        let mut flags: Vec<f64> = sizes()
            .enumerate()
            .flat_map(|(group, n)| (0..n).map(move |param| (group, param)))
            .map(|(group, param)| f64::from(u8::from(here(group, param))))
            .collect();
        self.mesh().shard().all_reduce_f64(&mut flags, Scalar::Max)?;
        if let Some(replica) = self.mesh().get(Axis::Replicate) {
            replica.all_reduce_f64(&mut flags, Scalar::Max)?;
        }
        let mut flags = flags.into_iter().map(|flag| flag != 0.0);
        Ok(sizes().map(|n| flags.by_ref().take(n).collect()).collect())
    }
}
