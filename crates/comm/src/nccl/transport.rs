//! The transport: requests are compared by the ranks' host transport, collectives are work of NCCL's stream.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use oarlock_cuda::Element;
use oarlock_cuda::nccl::{Comm, Group, Nccl, Patience as NcclPatience, Reduction};
use oarlock_tensor::{DType, Device, FlatBuffer, PendingLaunches, SideStream};

use super::connect::connect;
use super::pending::InStream;
use super::watch::Watch;
use crate::call::Request;
use crate::collective::Collective;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::ledger::RankStatus;
use crate::ownership::Ownership;
use crate::patience::Patience;
use crate::ready::Ready;
use crate::region::{Region, Sharing};
use crate::transport::Transport;

/// How long a rank that ends waits for its own collectives, and for the others to end.
const END: Duration = Duration::from_secs(10);

/// What the arena calls regions in its accounts.
const REGIONS: &str = "buffers of collectives";

/// One rank in one group of ranks with GPUs.
pub(super) struct NcclTransport {
    /// How the ranks have met. It is kept: the rank has joined by it.
    host: Communicator,
    /// None once the transport ends.
    comm: Option<Arc<Comm>>,
    nccl: Nccl,
    /// One for all groups of a rank, so that their collectives run in the order in which all ranks call them.
    side: Arc<SideStream>,
    device: Device,
    watch: Arc<Watch>,
    version: String,
}

impl NcclTransport {
    pub fn new(
        host: Communicator,
        comm: Comm,
        nccl: Nccl,
        side: Arc<SideStream>,
        device: &Device,
        watch: Arc<Watch>,
        version: &str,
    ) -> NcclTransport {
        let comm = Arc::new(comm);
        watch.add_comm(&comm);
        let (device, version) = (device.clone(), version.to_string());
        NcclTransport { host, comm: Some(comm), nccl, side, device, watch, version }
    }

    fn host(&self) -> &dyn Transport {
        &**self.host.transport()
    }

    /// Ends the run because of something that only this rank has seen.
    fn failed(&self, error: impl std::fmt::Display) -> Error {
        self.watch.fail(&error.to_string())
    }

    /// A collective of NCCL on elements of regions: when all ranks have come to it, it is put into the stream behind what
    /// `after` says.
    fn start(
        &self,
        request: &Request,
        flats: &[&FlatBuffer],
        after: Ready,
        build: impl for<'a> FnOnce(&mut Group<'a>, &[Elements<'a>]) -> oarlock_cuda::Result<()>,
    ) -> Result<Ready> {
        self.watch.check()?;
        // Compares the calls, and waits for all ranks with the failures that have names.
        self.host().barrier(request)?;
        match after.into_pending::<PendingLaunches>() {
            Ok(launches) => {
                if !self.side.follow(&launches).map_err(|error| self.failed(error))? {
                    launches.wait().map_err(|error| self.failed(error))?;
                }
            }
            // What is in this stream already has its place, and launches that come after it are not needed here.
            Err(other) => match other.into_pending::<InStream>() {
                Ok(_) => {}
                Err(other) => other.wait().map_err(|error| self.failed(error))?,
            },
        }
        let Some(comm) = &self.comm else { return Err(self.failed("the group has ended")) };
        let (element, size) = element(request.dtype);
        let mut elements = Vec::with_capacity(flats.len());
        for flat in flats {
            let all = self.side.slice(flat, 0..flat.len_bytes()).map_err(|error| self.failed(error))?;
            elements.push(Elements { all, element, size });
        }
        let put = comm.group(self.side.stream(), |group| build(group, &elements));
        put.map_err(|error| self.watch.fail_of_nccl(&error))?;
        let event = Arc::new(self.side.stream().mark().map_err(|error| self.failed(error))?);
        let of =
            if request.subject.is_empty() { String::new() } else { format!(" on {:?}", request.subject) };
        self.watch.add(&event, format!("{}{of} (call {})", request.operation.name(), request.sequence));
        let memory = flats.iter().copied().cloned().collect();
        let (side, watch) = (self.side.clone(), self.watch.clone());
        Ok(Ready::after(InStream { side, event, watch, memory, is_ordered: false }))
    }
}

/// A region's memory on the GPU.
struct Elements<'a> {
    all: oarlock_cuda::driver::Slice<'a>,
    element: Element,
    size: usize,
}

impl<'a> Elements<'a> {
    fn part(&self, range: &Range<usize>) -> oarlock_cuda::Result<oarlock_cuda::driver::Slice<'a>> {
        self.all.part(range.start * self.size..range.end * self.size)
    }
}

/// What NCCL calls elements; bytes where there is no dtype.
fn element(dtype: Option<DType>) -> (Element, usize) {
    let element = match dtype {
        Some(DType::F32) => Element::F32,
        Some(DType::BF16) => Element::BF16,
        Some(DType::F16) => Element::F16,
        Some(DType::I32) => Element::I32,
        _ => Element::U8,
    };
    (element, dtype.map_or(1, |dtype| dtype.size()))
}

/// The elements of all ranks together and those of one, if each owns as many and they lie in the order of the ranks: what the
/// collectives of NCCL take that have no owners.
fn in_equal_parts(owners: &Ownership, rank: usize) -> Option<(Range<usize>, Range<usize>)> {
    let part = |rank| match owners.of(rank) {
        [range] => Some(range.clone()),
        _ => None,
    };
    let first = part(0)?;
    let nth = |rank: usize| first.start + rank * first.len()..first.start + (rank + 1) * first.len();
    let n_ranks = owners.world_size();
    let fits = (0..n_ranks).all(|rank| part(rank) == Some(nth(rank)));
    fits.then(|| (first.start..nth(n_ranks).start, nth(rank)))
}

/// Sums over ranks; each owner gets the sums of its ranges.
fn reduce_scatter<'a>(
    group: &mut Group<'a>,
    elements: &Elements<'a>,
    owners: &Ownership,
    rank: usize,
) -> oarlock_cuda::Result<()> {
    if let Some((all, own)) = in_equal_parts(owners, rank) {
        let (all, own) = (elements.part(&all)?, elements.part(&own)?);
        return group.reduce_scatter(all, own, elements.element, Reduction::Sum);
    }
    for root in 0..owners.world_size() {
        for range in owners.of(root) {
            let part = elements.part(range)?;
            group.reduce(part, part, elements.element, Reduction::Sum, root)?;
        }
    }
    Ok(())
}

/// Brings each owner's ranges to all ranks.
fn all_gather<'a>(
    group: &mut Group<'a>,
    elements: &Elements<'a>,
    owners: &Ownership,
    rank: usize,
) -> oarlock_cuda::Result<()> {
    if let Some((all, own)) = in_equal_parts(owners, rank) {
        let (all, own) = (elements.part(&all)?, elements.part(&own)?);
        return group.all_gather(own, all, elements.element);
    }
    for root in 0..owners.world_size() {
        for range in owners.of(root) {
            group.broadcast(elements.part(range)?, elements.element, root)?;
        }
    }
    Ok(())
}

impl Transport for NcclTransport {
    fn rank(&self) -> usize {
        self.host().rank()
    }

    fn world_size(&self) -> usize {
        self.host().world_size()
    }

    fn shares_memory(&self) -> bool {
        false
    }

    fn reaches_gpus(&self) -> bool {
        true
    }

    fn works_in_background(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        format!("NCCL {}", self.version)
    }

    fn sharing_cores(&self) -> (usize, usize) {
        self.host().sharing_cores()
    }

    fn machines(&self) -> Vec<usize> {
        self.host().machines()
    }

    fn allocate(&self, request: &Request, sharing: Sharing) -> Result<Region> {
        self.watch.check()?;
        self.host().barrier(request)?;
        let flat = FlatBuffer::pooled(&self.device, request.elements, REGIONS);
        let flat = flat.map_err(|error| self.failed(error))?;
        Region::on_gpu(request.subject, request.elements, sharing, flat)
    }

    fn barrier(&self, request: &Request) -> Result<()> {
        self.watch.check()?;
        self.host().barrier(request)
    }

    fn run(&self, request: &Request, collective: &Collective, after: Ready) -> Result<Ready> {
        // The communicator has checked that all are in memory of the same kind.
        let Some(flats) = collective.regions().map(|region| region.gpu()).collect::<Option<Vec<_>>>() else {
            return self.host().run(request, collective, after);
        };
        let (rank, n_ranks) = (self.rank(), self.world_size());
        self.start(request, &flats, after, |group, elements| match collective {
            Collective::AllReduce { range, .. } => {
                let part = elements[0].part(range)?;
                group.all_reduce(part, part, elements[0].element, Reduction::Sum)
            }
            Collective::ReduceScatter { owners, .. } => reduce_scatter(group, &elements[0], owners, rank),
            Collective::AllGather { owners, .. } => all_gather(group, &elements[0], owners, rank),
            Collective::Broadcast { range, root, .. } => {
                group.broadcast(elements[0].part(range)?, elements[0].element, *root)
            }
            Collective::SendReceive { range, from, to, .. } => {
                let part = elements[0].part(range)?;
                match rank {
                    _ if range.is_empty() => Ok(()),
                    rank if rank == *from => group.send(part, elements[0].element, *to),
                    rank if rank == *to => group.recv(part, elements[0].element, *from),
                    _ => Ok(()),
                }
            }
            Collective::AllToAll { blocks, .. } => {
                for peer in 0..n_ranks {
                    let (sent, received) = (blocks.sent(rank, peer), blocks.received(rank, peer));
                    if !sent.is_empty() {
                        group.send(elements[0].part(&sent)?, elements[0].element, peer)?;
                    }
                    if !received.is_empty() {
                        group.recv(elements[1].part(&received)?, elements[1].element, peer)?;
                    }
                }
                Ok(())
            }
        })
    }

    fn all_gather_bytes(&self, request: &Request, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.watch.check()?;
        self.host().all_gather_bytes(request, bytes)
    }

    fn split(&self, request: &Request, group: &[usize]) -> Result<Arc<dyn Transport>> {
        self.watch.check()?;
        let host = Communicator::new(self.host().split(request, group)?);
        let joined = connect(&host, &self.nccl, &self.side)
            .and_then(|joined| joined.map_err(|cause| Error::system("connect the GPUs by NCCL", cause)));
        let comm = joined.map_err(|error| self.failed(error))?;
        let (nccl, side, watch) = (self.nccl.clone(), self.side.clone(), self.watch.clone());
        Ok(Arc::new(NcclTransport::new(host, comm, nccl, side, &self.device, watch, &self.version)))
    }

    fn patience(&self) -> &Patience {
        self.host().patience()
    }

    fn set_phase(&self, note: &str) {
        self.host().set_phase(note);
    }

    fn statuses(&self) -> Vec<RankStatus> {
        self.host().statuses()
    }

    fn failure(&self) -> Option<Error> {
        self.watch.check().err().or_else(|| self.host().failure())
    }

    fn abort(&self, cause: &str) {
        self.host().abort(cause);
    }

    fn finish(&self) {
        self.host().finish();
    }
}

impl Drop for NcclTransport {
    fn drop(&mut self) {
        let Some(comm) = self.comm.take() else { return };
        let failure = match self.failure() {
            None if std::thread::panicking() => {
                Some(Error::PeerFailed { rank: self.rank(), cause: "its thread has panicked".to_string() })
            }
            failure => failure,
        };
        if let Some(failure) = failure {
            // Nobody should wait for this rank. Its other groups have collectives in the same stream.
            return self.watch.abort(&failure);
        }
        if comm.synchronize(self.side.stream(), NcclPatience::new(END)).is_err() {
            // It was aborted.
            return;
        }
        self.watch.remove_comm(&comm);
        if let Some(comm) = Arc::into_inner(comm) {
            // Nobody is there to hear of a failure.
            drop(comm.finalize_within(NcclPatience::new(END)));
        }
    }
}
