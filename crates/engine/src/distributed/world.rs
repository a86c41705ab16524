//! The default process group of a rank, and its collectives as functions.

use oarlock_tensor::Tensor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::group::ProcessGroup;
use super::rank;
use super::reduce_op::ReduceOp;
use crate::{Error, Result};

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

/// Methods of [`ProcessGroup`] as functions over the default group.
macro_rules! over_all_ranks {
    ($($name:ident $(<$type:ident>)? ($($arg:ident: $of:ty),*) -> $returned:ty;)*) => {$(
        #[doc = concat!("[`ProcessGroup::", stringify!($name), "`] of the default process group: all ranks.")]
        ///
        /// # Errors
        /// As the method; without a default process group.
        #[track_caller]
        pub fn $name $(<$type: Serialize + DeserializeOwned>)? ($($arg: $of),*) -> Result<$returned> {
            world()?.$name($($arg),*)
        }
    )*};
}

over_all_ranks! {
    new_group(ranks: &[usize]) -> Option<ProcessGroup>;
    barrier() -> ();
    all_reduce(tensor: &mut Tensor, op: ReduceOp) -> ();
    reduce(tensor: &mut Tensor, dst: usize, op: ReduceOp) -> ();
    reduce_scatter(tensors: &[Tensor], op: ReduceOp) -> Tensor;
    all_gather(tensor: &Tensor) -> Vec<Tensor>;
    gather(tensor: &Tensor, dst: usize) -> Option<Vec<Tensor>>;
    broadcast(tensor: &mut Tensor, src: usize) -> ();
    all_to_all(tensors: &[Tensor]) -> Vec<Tensor>;
    scatter(tensor: &mut Tensor, tensors: Option<&[Tensor]>, src: usize) -> ();
    all_gather_object<T>(object: &T) -> Vec<T>;
    broadcast_object_list<T>(objects: &mut Vec<T>, src: usize) -> ();
}
