//! Launching from code, process groups and bare collectives: what `torch.multiprocessing` and `torch.distributed` are for,
//! and the launchers that Accelerate has for notebooks.
//!
//! [`spawn`] runs a function in ranks that are threads, [`spawn_processes`] in ranks that are processes. Inside, and in
//! programs that a launcher started, [`init_process_group`] gives the group and its collectives, and
//! [`DistributedDataParallel`](crate::accelerator::DistributedDataParallel) trains a model with it; [`Accelerator::new`](crate::Accelerator::new) needs no group to be
//! made before. [`rank`] says which rank a thread is, and [`launch`] is what launchers of processes share. What a group is belongs to the thread that made it: ranks of one process know nothing of each other.
//!
//! There is no `send` and no `recv`: ranks meet all together in shared memory, and a pair of them has no way of its own.
//! A sub-group of two ([`new_group`]) with `broadcast` does the same.

mod backend;
mod basic_config;
mod collectives;
mod group;
mod init;
pub mod launch;
mod notebook;
mod objects;
mod processes;
pub mod rank;
mod reduce_op;
mod threads;
mod world;

pub use crate::report::error::SpawnError;
pub use backend::Backend;
pub use basic_config::{default_config_file, write_basic_config};
pub use group::ProcessGroup;
pub use init::{InitOptions, init_distributed, init_process_group};
pub use notebook::{NotebookLaunch, debug_launcher, notebook_launcher};
pub use processes::spawn_processes;
pub use reduce_op::ReduceOp;
pub use threads::spawn;
pub use world::{
    all_gather, all_gather_object, all_reduce, all_to_all, barrier, broadcast, broadcast_object_list,
    destroy_process_group, gather, get_rank, get_world_size, is_initialized, new_group, reduce,
    reduce_scatter, scatter, world,
};
