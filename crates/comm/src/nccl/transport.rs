//! The transport: requests are compared by the ranks' host transport, collectives are work of NCCL's stream.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use oarlock_cuda::Element;
use oarlock_cuda::nccl::{Comm, Group, Nccl, Patience as NcclPatience, Reduction};
use oarlock_tensor::{DType, Device, FlatBuffer, PendingLaunches, SideStream};

use super::connect::connect;
use super::pending::Collective;
use super::watch::Watch;
use crate::call::Request;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::held::Held;
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
    fn start<const N: usize>(
        &self,
        request: &Request,
        flats: [&FlatBuffer; N],
        after: Ready,
        build: impl for<'a> FnOnce(&mut Group<'a>, &[Elements<'a>; N]) -> oarlock_cuda::Result<()>,
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
            Err(other) => match other.into_pending::<Collective>() {
                Ok(_) => {}
                Err(other) => other.wait().map_err(|error| self.failed(error))?,
            },
        }
        let Some(comm) = &self.comm else { return Err(self.failed("the group has ended")) };
        let (element, size) = element(request.dtype);
        let mut slices = Vec::with_capacity(N);
        for flat in flats {
            slices.push(self.side.slice(flat, 0..flat.len_bytes()).map_err(|error| self.failed(error))?);
        }
        let elements: [Elements; N] = std::array::from_fn(|i| Elements { all: slices[i], element, size });
        let put = comm.group(self.side.stream(), |group| build(group, &elements));
        put.map_err(|error| self.failed(error))?;
        let event = Arc::new(self.side.stream().mark().map_err(|error| self.failed(error))?);
        let of =
            if request.subject.is_empty() { String::new() } else { format!(" on {:?}", request.subject) };
        self.watch.add(&event, format!("{}{of} (call {})", request.operation.name(), request.sequence));
        let (side, watch, memory) =
            (self.side.clone(), self.watch.clone(), flats.map(FlatBuffer::clone).into());
        Ok(Ready::after(Collective { side, event, watch, memory, is_ordered: false }))
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

/// The elements of all ranks together, if each owns as many and they lie in the order of the ranks: what the collectives of
/// NCCL take that have no owners.
fn in_equal_parts(owners: &Ownership) -> Option<(Range<usize>, usize)> {
    let part = |rank| match owners.of(rank) {
        [range] => Some(range.clone()),
        _ => None,
    };
    let first = part(0)?;
    let n = first.len();
    let fits = |rank: usize| {
        part(rank).is_some_and(|range| range == (first.start + rank * n..first.start + (rank + 1) * n))
    };
    let n_ranks = owners.world_size();
    (0..n_ranks).all(fits).then_some((first.start..first.start + n_ranks * n, n))
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

    fn all_reduce(
        &self,
        request: &Request,
        region: &Held,
        range: Range<usize>,
        after: Ready,
    ) -> Result<Ready> {
        let Some(flat) = region.gpu() else { return self.host().all_reduce(request, region, range, after) };
        self.start(request, [flat], after, |group, [elements]| {
            let part = elements.part(&range)?;
            group.all_reduce(part, part, elements.element, Reduction::Sum)
        })
    }

    fn reduce_scatter(
        &self,
        request: &Request,
        region: &Held,
        owners: &Ownership,
        after: Ready,
    ) -> Result<Ready> {
        let Some(flat) = region.gpu() else {
            return self.host().reduce_scatter(request, region, owners, after);
        };
        let (rank, n_ranks) = (self.rank(), self.world_size());
        self.start(request, [flat], after, |group, [elements]| {
            if let Some((all, n)) = in_equal_parts(owners) {
                let own = all.start + rank * n..all.start + (rank + 1) * n;
                let (all, own) = (elements.part(&all)?, elements.part(&own)?);
                return group.reduce_scatter(all, own, elements.element, Reduction::Sum);
            }
            for root in 0..n_ranks {
                for range in owners.of(root) {
                    let part = elements.part(range)?;
                    group.reduce(part, part, elements.element, Reduction::Sum, root)?;
                }
            }
            Ok(())
        })
    }

    fn all_gather(
        &self,
        request: &Request,
        region: &Held,
        owners: &Ownership,
        after: Ready,
    ) -> Result<Ready> {
        let Some(flat) = region.gpu() else { return self.host().all_gather(request, region, owners, after) };
        let (rank, n_ranks) = (self.rank(), self.world_size());
        self.start(request, [flat], after, |group, [elements]| {
            if let Some((all, n)) = in_equal_parts(owners) {
                let own = all.start + rank * n..all.start + (rank + 1) * n;
                let (all, own) = (elements.part(&all)?, elements.part(&own)?);
                return group.all_gather(own, all, elements.element);
            }
            for root in 0..n_ranks {
                for range in owners.of(root) {
                    group.broadcast(elements.part(range)?, elements.element, root)?;
                }
            }
            Ok(())
        })
    }

    fn broadcast(
        &self,
        request: &Request,
        region: &Held,
        range: Range<usize>,
        root: usize,
        after: Ready,
    ) -> Result<Ready> {
        let Some(flat) = region.gpu() else {
            return self.host().broadcast(request, region, range, root, after);
        };
        self.start(request, [flat], after, |group, [elements]| {
            group.broadcast(elements.part(&range)?, elements.element, root)
        })
    }

    fn all_to_all(
        &self,
        request: &Request,
        from: &Held,
        to: &Held,
        range: Range<usize>,
        after: Ready,
    ) -> Result<Ready> {
        // The communicator has checked that both are in memory of the same kind.
        let (Some(from), Some(to)) = (from.gpu(), to.gpu()) else {
            return self.host().all_to_all(request, from, to, range, after);
        };
        let blocks = Ownership::blocks(range, self.world_size());
        self.start(request, [from, to], after, |group, [from, to]| {
            for (peer, block) in blocks.iter().enumerate() {
                group.send(from.part(block)?, from.element, peer)?;
                group.recv(to.part(block)?, to.element, peer)?;
            }
            Ok(())
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
