//! Groups: collectives and messages that a communicator gets together, and the single ones.

use super::api::{Code, IN_PROGRESS, call};
use super::collective::{Kind, Op, Reduction};
use super::comm::Comm;
use crate::Element;
use crate::driver::{Slice, Stream};
use crate::error::Result;

/// What a communicator is to do together, in one place of a stream. Messages in both directions must be in one group: alone,
/// each would wait for the other.
pub struct Group<'a> {
    comm: &'a Comm,
    ops: Vec<Op<'a>>,
}

/// Each as the method of [`Comm`], whose errors it has.
impl<'a> Group<'a> {
    fn add(
        &mut self,
        kind: Kind,
        from: Option<Slice<'a>>,
        to: Option<Slice<'a>>,
        element: Element,
    ) -> Result<()> {
        let op = Op::new(self.comm, kind, from, to, element)?;
        if !op.is_empty() {
            self.ops.push(op);
        }
        Ok(())
    }

    /// [`Comm::all_reduce`].
    pub fn all_reduce(
        &mut self,
        from: Slice<'a>,
        to: Slice<'a>,
        element: Element,
        by: Reduction,
    ) -> Result<()> {
        self.add(Kind::AllReduce(by), Some(from), Some(to), element)
    }

    /// [`Comm::reduce_scatter`].
    pub fn reduce_scatter(
        &mut self,
        from: Slice<'a>,
        to: Slice<'a>,
        element: Element,
        by: Reduction,
    ) -> Result<()> {
        self.add(Kind::ReduceScatter(by), Some(from), Some(to), element)
    }

    /// [`Comm::all_gather`].
    pub fn all_gather(&mut self, from: Slice<'a>, to: Slice<'a>, element: Element) -> Result<()> {
        self.add(Kind::AllGather, Some(from), Some(to), element)
    }

    /// [`Comm::broadcast`].
    pub fn broadcast(&mut self, memory: Slice<'a>, element: Element, root: usize) -> Result<()> {
        self.add(Kind::Broadcast { root }, Some(memory), Some(memory), element)
    }

    /// [`Comm::reduce`].
    pub fn reduce(
        &mut self,
        from: Slice<'a>,
        to: Slice<'a>,
        element: Element,
        by: Reduction,
        root: usize,
    ) -> Result<()> {
        self.add(Kind::Reduce { by, root }, Some(from), Some(to), element)
    }

    /// [`Comm::send`].
    pub fn send(&mut self, from: Slice<'a>, element: Element, to: usize) -> Result<()> {
        self.add(Kind::Send { to }, Some(from), None, element)
    }

    /// [`Comm::recv`].
    pub fn recv(&mut self, to: Slice<'a>, element: Element, from: usize) -> Result<()> {
        self.add(Kind::Recv { from }, None, Some(to), element)
    }
}

/// Collectives and messages. They run later, in the order of the stream, which must be behind what makes their operands; the
/// host is back as soon as they are in it. Every rank must call the same collectives in the same order, with the same number
/// and type of elements. Memory that is written may be what is read where this is said, else they must not overlap.
///
/// # Errors
/// [`Error::Collective`](crate::Error::Collective), [`Error::Range`](crate::Error::Range) and
/// [`Error::OtherContext`](crate::Error::OtherContext) for what has no meaning, which NCCL does not see. After the others the
/// communicator is aborted: [`Error::Late`](crate::Error::Late), [`Error::Nccl`](crate::Error::Nccl).
impl Comm {
    /// Does together what `build` says, or nothing if that fails.
    pub fn group<'a>(
        &'a self,
        stream: &Stream,
        build: impl FnOnce(&mut Group<'a>) -> Result<()>,
    ) -> Result<()> {
        let mut group = Group { comm: self, ops: vec![] };
        build(&mut group)?;
        let ops = group.ops;
        self.context().expect_same(stream.context(), "the communicator")?;
        Op::check_together(self, &ops)?;
        if ops.is_empty() {
            return Ok(());
        }
        self.enqueue(|api, handle| {
            let is_good = |called: &(&str, Code)| called.1 == 0 || called.1 == IN_PROGRESS;
            // SAFETY: the handle is a live communicator's, whose context is that of the memory and of the stream.
            let run = |op: &Op<'_>| unsafe { op.run(api, handle, stream) };
            if let [op] = &ops[..] {
                return run(op);
            }
            // SAFETY: this thread ends the group below.
            let begun = unsafe { call!(api, group_start()) };
            if !is_good(&begun) {
                return begun;
            }
            let failed = ops.iter().map(run).find(|called| !is_good(called));
            // SAFETY: this thread has begun a group.
            let ended = unsafe { call!(api, group_end()) };
            failed.unwrap_or(ended)
        })
    }

    /// Leaves on every rank what the elements of all ranks become. `from` may be `to`.
    pub fn all_reduce(
        &self,
        from: Slice<'_>,
        to: Slice<'_>,
        element: Element,
        by: Reduction,
        stream: &Stream,
    ) -> Result<()> {
        self.group(stream, |group| group.all_reduce(from, to, element, by))
    }

    /// Leaves on each rank its part of what the elements of all ranks become: of as many parts as there are ranks, that of its
    /// number. `to` may be that part of `from`.
    pub fn reduce_scatter(
        &self,
        from: Slice<'_>,
        to: Slice<'_>,
        element: Element,
        by: Reduction,
        stream: &Stream,
    ) -> Result<()> {
        self.group(stream, |group| group.reduce_scatter(from, to, element, by))
    }

    /// Leaves on every rank what all ranks have, in the order of the ranks. `from` may be the part of `to` that becomes it.
    pub fn all_gather(
        &self,
        from: Slice<'_>,
        to: Slice<'_>,
        element: Element,
        stream: &Stream,
    ) -> Result<()> {
        self.group(stream, |group| group.all_gather(from, to, element))
    }

    /// Leaves on every rank what the root has.
    pub fn broadcast(&self, memory: Slice<'_>, element: Element, root: usize, stream: &Stream) -> Result<()> {
        self.group(stream, |group| group.broadcast(memory, element, root))
    }

    /// Leaves on the root what the elements of all ranks become. `from` may be `to`, which only the root writes.
    pub fn reduce(
        &self,
        from: Slice<'_>,
        to: Slice<'_>,
        element: Element,
        (by, root): (Reduction, usize),
        stream: &Stream,
    ) -> Result<()> {
        self.group(stream, |group| group.reduce(from, to, element, by, root))
    }

    /// Gives elements to another rank, which must take them by [`Comm::recv`].
    pub fn send(&self, from: Slice<'_>, element: Element, to: usize, stream: &Stream) -> Result<()> {
        self.group(stream, |group| group.send(from, element, to))
    }

    /// Takes elements that another rank gives by [`Comm::send`].
    pub fn recv(&self, to: Slice<'_>, element: Element, from: usize, stream: &Stream) -> Result<()> {
        self.group(stream, |group| group.recv(to, element, from))
    }
}
