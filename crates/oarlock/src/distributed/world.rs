//! The default process group of a rank, and its collectives as functions.

use oarlock_tensor::Tensor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::collectives::ReduceOp;
use super::group::ProcessGroup;
use crate::error::{Error, Result};
use crate::rank;

/// Whether this rank has a default process group.
pub fn is_initialized() -> bool {
    rank::default_group().is_some()
}

/// The default process group: all ranks.
///
/// # Errors
/// Before [`init_process_group`](super::init_process_group), or in another thread than that which called it.
pub fn world() -> Result<ProcessGroup> {
    rank::default_group().map(|group| ProcessGroup::over(group.comm)).ok_or_else(|| {
        Error::Usage(
            "this rank has no default process group; call `init_process_group` first, in the same thread"
                .to_owned(),
        )
    })
}

/// Ends the default process group of this rank. Where its process is all that the rank is, this is the end of its part:
/// the others no longer wait for it.
///
/// # Errors
/// Without a default process group.
pub fn destroy_process_group() -> Result<()> {
    let group = rank::take_default_group().ok_or_else(|| {
        Error::Usage("destroy_process_group: this rank has no default process group to end".to_owned())
    })?;
    if group.is_own {
        group.comm.finish();
    }
    Ok(())
}

/// The number of this rank.
///
/// # Errors
/// Without a default process group.
pub fn get_rank() -> Result<usize> {
    Ok(world()?.rank())
}

/// The number of ranks.
///
/// # Errors
/// Without a default process group.
pub fn get_world_size() -> Result<usize> {
    Ok(world()?.world_size())
}

/// [`ProcessGroup::new_group`] of all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn new_group(ranks: &[usize]) -> Result<Option<ProcessGroup>> {
    world()?.new_group(ranks)
}

/// [`ProcessGroup::barrier`] of all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn barrier() -> Result<()> {
    world()?.barrier()
}

/// [`ProcessGroup::all_reduce`] over all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn all_reduce(tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
    world()?.all_reduce(tensor, op)
}

/// [`ProcessGroup::reduce`] over all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn reduce(tensor: &mut Tensor, dst: usize, op: ReduceOp) -> Result<()> {
    world()?.reduce(tensor, dst, op)
}

/// [`ProcessGroup::reduce_scatter`] over all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn reduce_scatter(tensors: &[Tensor], op: ReduceOp) -> Result<Tensor> {
    world()?.reduce_scatter(tensors, op)
}

/// [`ProcessGroup::all_gather`] over all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn all_gather(tensor: &Tensor) -> Result<Vec<Tensor>> {
    world()?.all_gather(tensor)
}

/// [`ProcessGroup::gather`] over all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn gather(tensor: &Tensor, dst: usize) -> Result<Option<Vec<Tensor>>> {
    world()?.gather(tensor, dst)
}

/// [`ProcessGroup::broadcast`] to all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn broadcast(tensor: &mut Tensor, src: usize) -> Result<()> {
    world()?.broadcast(tensor, src)
}

/// [`ProcessGroup::scatter`] to all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn scatter(tensor: &mut Tensor, tensors: Option<&[Tensor]>, src: usize) -> Result<()> {
    world()?.scatter(tensor, tensors, src)
}

/// [`ProcessGroup::all_gather_object`] over all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn all_gather_object<T: Serialize + DeserializeOwned>(object: &T) -> Result<Vec<T>> {
    world()?.all_gather_object(object)
}

/// [`ProcessGroup::broadcast_object_list`] to all ranks.
///
/// # Errors
/// As the method; without a default process group.
#[track_caller]
pub fn broadcast_object_list<T: Serialize + DeserializeOwned>(
    objects: &mut Vec<T>,
    src: usize,
) -> Result<()> {
    world()?.broadcast_object_list(objects, src)
}
