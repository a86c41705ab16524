//! Collectives and messages: what they take, checked before NCCL sees it.

use std::ffi::c_int;

use super::api::{Api, Code, Handle, call};
use super::comm::Comm;
use crate::Element;
use crate::driver::{Slice, Stream};
use crate::error::{Error, Result};

/// How the elements of the ranks become one. Floats of 16 bits may be rounded at every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their product.
    Product,
    /// The largest one.
    Max,
    /// The smallest one.
    Min,
    /// Their sum, divided by the number of ranks.
    Average,
}

impl Reduction {
    /// `ncclRedOp_t`.
    fn code(self) -> c_int {
        match self {
            Reduction::Sum => 0,
            Reduction::Product => 1,
            Reduction::Max => 2,
            Reduction::Min => 3,
            Reduction::Average => 4,
        }
    }
}

/// `ncclDataType_t`; none where NCCL has no such type.
fn type_code(element: Element) -> Option<c_int> {
    Some(match element {
        Element::I8 => 0,
        Element::U8 => 1,
        Element::I32 => 2,
        Element::U32 => 3,
        Element::U64 => 5,
        Element::F16 => 6,
        Element::F32 => 7,
        Element::F64 => 8,
        Element::BF16 => 9,
        Element::Walk | Element::Pieces => return None,
    })
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    AllReduce(Reduction),
    ReduceScatter(Reduction),
    AllGather,
    Broadcast { root: usize },
    Reduce { by: Reduction, root: usize },
    Send { to: usize },
    Recv { from: usize },
}

impl Kind {
    fn call(self) -> &'static str {
        match self {
            Kind::AllReduce(_) => "ncclAllReduce",
            Kind::ReduceScatter(_) => "ncclReduceScatter",
            Kind::AllGather => "ncclAllGather",
            Kind::Broadcast { .. } => "ncclBroadcast",
            Kind::Reduce { .. } => "ncclReduce",
            Kind::Send { .. } => "ncclSend",
            Kind::Recv { .. } => "ncclRecv",
        }
    }
}

/// One call, with what it reads and writes.
#[derive(Clone, Copy)]
pub(super) struct Op<'a> {
    kind: Kind,
    from: Option<Slice<'a>>,
    to: Option<Slice<'a>>,
    /// Elements of what all ranks have alike: the smaller side.
    count: usize,
    element: Element,
    type_code: c_int,
    /// The other rank, or the root.
    peer: c_int,
}

fn wrong(kind: Kind, reason: String) -> Error {
    Error::Collective { call: kind.call(), reason }
}

impl<'a> Op<'a> {
    /// Checks what one call takes.
    pub(super) fn new(
        comm: &Comm,
        kind: Kind,
        from: Option<Slice<'a>>,
        to: Option<Slice<'a>>,
        element: Element,
    ) -> Result<Op<'a>> {
        let (rank, world) = (comm.rank(), comm.world());
        let no_type = || wrong(kind, format!("NCCL has no elements of type {element}"));
        let type_code = type_code(element).ok_or_else(no_type)?;
        let peer = match kind {
            Kind::Broadcast { root: peer } | Kind::Reduce { root: peer, .. } => peer,
            Kind::Send { to: peer } | Kind::Recv { from: peer } => peer,
            _ => 0,
        };
        if peer >= world {
            return Err(wrong(kind, format!("there is no rank {peer} of {world}")));
        }
        let size = element.size();
        for memory in [from, to].into_iter().flatten() {
            comm.context().expect_same(memory.context(), "the memory of a collective")?;
            if !memory.bytes().is_multiple_of(size) || !memory.address().is_multiple_of(size as u64) {
                return Err(memory.wrong(0..memory.bytes(), &format!("elements of type {element}")));
            }
        }
        let n = |memory: Option<Slice>| memory.map_or(0, |memory| memory.bytes() / size);
        let (n_from, n_to) = (n(from), n(to));
        let (fits, count) = match kind {
            Kind::AllReduce(_) | Kind::Broadcast { .. } | Kind::Reduce { .. } => (n_from == n_to, n_from),
            Kind::ReduceScatter(_) => (Some(n_from) == n_to.checked_mul(world), n_to),
            Kind::AllGather => (Some(n_to) == n_from.checked_mul(world), n_from),
            Kind::Send { .. } => (true, n_from),
            Kind::Recv { .. } => (true, n_to),
        };
        if !fits {
            return Err(wrong(kind, format!("{n_from} elements to {n_to} among {world} ranks")));
        }
        if let (Some(from), Some(to)) = (from, to) {
            // Where it is allowed to be in place.
            let bytes = (rank * count * size) as u64;
            let (in_from, in_to) = match kind {
                Kind::ReduceScatter(_) => (from.address() + bytes, to.address()),
                Kind::AllGather => (from.address(), to.address() + bytes),
                _ => (from.address(), to.address()),
            };
            if count > 0 && from.overlaps(&to) && in_from != in_to {
                return Err(wrong(
                    kind,
                    "what it reads overlaps what it writes, and not as it may in place".into(),
                ));
            }
        }
        // A rank of the communicator, which has an int for it.
        let peer = c_int::try_from(peer).unwrap_or_default();
        Ok(Op { kind, from, to, count, element, type_code, peer })
    }

    /// Checks what is to run at the same time.
    pub(super) fn check_together(comm: &Comm, ops: &[Op<'_>]) -> Result<()> {
        for (i, op) in ops.iter().enumerate() {
            let Some(to) = op.to.filter(|_| op.count > 0) else { continue };
            let others = ops.iter().enumerate().filter(|(j, other)| *j != i && other.count > 0);
            for (_, other) in others {
                if [other.from, other.to].into_iter().flatten().any(|memory| memory.overlaps(&to)) {
                    let reason =
                        format!("another part of the group ({}) uses what it writes", other.kind.call());
                    return Err(wrong(op.kind, reason));
                }
            }
        }
        // Messages to oneself are matched in their order.
        let own = |is_own: fn(Kind, usize) -> bool| {
            let of_own = ops.iter().filter(move |op| op.count > 0 && is_own(op.kind, comm.rank()));
            of_own.map(|op| (op.count, op.element)).collect::<Vec<_>>()
        };
        let sent = own(|kind, rank| kind == Kind::Send { to: rank });
        let received = own(|kind, rank| kind == Kind::Recv { from: rank });
        if sent != received {
            let reason = "a message of a rank to itself needs both sides in the same group".to_string();
            return Err(Error::Collective { call: "ncclSend", reason });
        }
        Ok(())
    }

    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Gives it to NCCL.
    ///
    /// # Safety
    /// The communicator is live and has the context of the stream and the memory.
    pub(super) unsafe fn run(&self, api: &Api, comm: Handle, stream: &Stream) -> (&'static str, Code) {
        let at = |memory: Option<Slice>| memory.map_or(0, |memory| memory.address());
        let (from, to, n, of, on) = (at(self.from), at(self.to), self.count, self.type_code, stream.handle());
        // SAFETY: the caller's; both sides have as many elements as `new` has checked, and live until the GPU is done with
        // them, since their end waits for it.
        unsafe {
            match self.kind {
                Kind::AllReduce(by) => call!(api, all_reduce(from, to, n, of, by.code(), comm, on)),
                Kind::ReduceScatter(by) => call!(api, reduce_scatter(from, to, n, of, by.code(), comm, on)),
                Kind::AllGather => call!(api, all_gather(from, to, n, of, comm, on)),
                Kind::Broadcast { .. } => call!(api, broadcast(from, to, n, of, self.peer, comm, on)),
                Kind::Reduce { by, .. } => {
                    call!(api, reduce(from, to, n, of, by.code(), self.peer, comm, on))
                }
                Kind::Send { .. } => call!(api, send(from, n, of, self.peer, comm, on)),
                Kind::Recv { .. } => call!(api, recv(to, n, of, self.peer, comm, on)),
            }
        }
    }
}
