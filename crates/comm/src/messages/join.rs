//! Joining: each rank tells the others where it runs, and all must have the same build.

use std::sync::Arc;
use std::time::Duration;

use super::library::Library;
use super::member::{Group, Member};
use super::rank_info::RankInfo;
use super::transport::Messages;
use super::world::World;
use crate::call::Request;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::launched::Launched;
use crate::operation::Operation;
use crate::patience::Patience;
use crate::program::named;

/// Joins the ranks of a world in which `place` is this one's. `start` starts the library the first time in a process; the
/// ranks then wait for each other for `limit`. The group of all of them.
pub(crate) fn join(
    place: &Launched,
    limit: Duration,
    start: impl FnOnce() -> Result<Box<dyn Library>>,
) -> Result<Communicator> {
    let world = World::get(start)?;
    let (name, rank, size) = (world.library.name(), world.library.rank(), world.library.size());
    if (rank, size) != (place.rank, place.world_size) {
        return Err(Error::Join(format!(
            "{} says rank {} of {}, but the {name} library of this program says rank {rank} of {size}; start it with the \
             mpirun of the MPI it was built with, and with srun say --mpi=pmix or what else that library speaks",
            place.launcher, place.rank, place.world_size
        )));
    }
    let session = world.begin()?;
    let member = Arc::new(Member::new(world, limit));
    let mine = RankInfo::of_this_process(name, World::next_channel());
    let request = Request {
        sequence: session,
        operation: Operation::Agree,
        elements: 0,
        dtype: None,
        subject: "the start",
        detail: 0,
        site: std::panic::Location::caller(),
    };
    let first = Group::new(member, 0, (0..size).collect(), rank);
    let (_, all) = first.exchange_headers(&request, bytemuck::bytes_of(&mine))?;
    let read = |bytes: &Vec<u8>| bytemuck::try_pod_read_unaligned::<RankInfo>(bytes).ok();
    let infos: Vec<RankInfo> = all.iter().filter_map(read).collect();
    if infos.len() != size || infos.iter().any(|info| info.protocol != mine.protocol) {
        return Err(Error::Join(
            "the ranks are different versions of this program; start one build on all machines".into(),
        ));
    }
    if let Some(other) = infos.iter().position(|info| info.build != infos[0].build) {
        let [first, its] = [0, other].map(|rank| named(infos[rank].build));
        return Err(Error::Join(format!(
            "rank {other} is build {its} of this program, and rank 0 is build {first}; start one build on all machines"
        )));
    }
    let channel = infos.iter().map(|info| info.next_channel).max().unwrap_or(1) as usize;
    World::take_channel(channel);
    world.set_infos(infos);
    first.member.patience.set_limit(Patience::LIMIT);
    let group = Group::new(first.member, channel, first.ranks, rank);
    Ok(Communicator::new(Arc::new(Messages::new(group))))
}
