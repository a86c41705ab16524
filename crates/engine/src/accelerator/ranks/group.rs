//! The ranks of a run, on the axes on which work is divided among them.

use std::sync::atomic::AtomicBool;

use oarlock_comm::Communicator;

use crate::accelerator::settings::config::AcceleratorConfig;
use crate::parallel::sequence_parallel::{SequenceParallel, check_ranks};
use crate::shard::{Axis, Mesh, ShardingConfig, Topology, check_sharding, check_stage};
use crate::{Error, Result};

/// The ranks of an accelerator.
pub(crate) struct Ranks {
    pub comm: Communicator,
    /// The same ranks as they met, without NCCL.
    pub on_host: Communicator,
    /// By axes: stages of a pipeline, data, parts of sequences.
    pub mesh: Mesh,
    /// Those that divide sequences among them, where some do.
    pub sequence: Option<SequenceParallel>,
    /// Raised by `set_trigger` until the next check.
    pub trigger: AtomicBool,
}

impl Ranks {
    /// The ranks on the axes that a configuration asks for.
    pub fn new(
        (comm, on_host): (Communicator, Communicator),
        config: &AcceleratorConfig,
        options: &ShardingConfig,
    ) -> Result<Ranks> {
        let mesh = mesh(&comm, config, options)?;
        let sequence = mesh.get(Axis::Sequence).map(SequenceParallel::new);
        Ok(Ranks { comm, on_host, mesh, sequence, trigger: AtomicBool::new(false) })
    }

    /// The ranks that see different data: all, or those of one stage of a pipeline.
    pub fn data(&self) -> &Communicator {
        self.mesh.get(Axis::Data).unwrap_or(&self.comm)
    }

    /// The ranks with NCCL, where they have it, and as they met without it.
    pub fn both(&self) -> (Communicator, Communicator) {
        (self.comm.clone(), self.on_host.clone())
    }
}

/// The ranks on the axes that a configuration asks for.
fn mesh(comm: &Communicator, config: &AcceleratorConfig, options: &ShardingConfig) -> Result<Mesh> {
    let (args, size, world) = (&config.pipeline, config.sequence_parallel_size, comm.world_size());
    let mut mesh = Mesh::new(comm);
    if args.is_on() {
        if !world.is_multiple_of(args.stages) {
            return Err(Error::Usage(format!(
                "pipeline: {} stages must divide the {world} ranks; start a multiple of {} ranks",
                args.stages, args.stages
            )));
        }
        check_stage(options)?;
        let grid = Topology::new(&[(Axis::Pipe, args.stages), (Axis::Data, world / args.stages)]);
        mesh.divide(&grid, &[Axis::Data, Axis::Pipe])?;
    }
    check_sharding(options, mesh.get(Axis::Data).unwrap_or(comm).world_size())?;
    if size > 1 {
        check_ranks(world, size)?;
        if args.is_on() {
            return Err(Error::Usage(format!(
                "sequence_parallel_size={size} divides sequences over ranks, which the stages of a pipeline cannot do: take one \
                 of the two"
            )));
        }
        let grid = Topology::new(&[(Axis::Data, world / size), (Axis::Sequence, size)]);
        match size == world {
            true => mesh.put_all_on(Axis::Sequence),
            false => mesh.divide(&grid, &[Axis::Sequence])?,
        }
    }
    Ok(mesh)
}
