//! A communicator: how it begins, what it is split into, and how it ends.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::api::{Api, Code, Config, Handle, IN_PROGRESS, call};
use super::end::{End, Live};
use super::id::UniqueId;
use super::library::Nccl;
use crate::driver::{Context, Event, Stream};
use crate::error::{Error, Result};

/// How long to wait for other ranks, and how often to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// After this long it is an error.
    pub timeout: Duration,
    /// The time between two looks.
    pub poll: Duration,
}

impl Patience {
    /// Looks each millisecond for this long.
    pub fn new(timeout: Duration) -> Patience {
        Patience { timeout, poll: Duration::from_millis(1) }
    }
}

impl Default for Patience {
    /// Half an hour: another rank may be writing a checkpoint.
    fn default() -> Patience {
        Patience::new(Duration::from_secs(1800))
    }
}

/// One rank of a communicator. Dropping it before [`Comm::finalize`] aborts it, so that no other rank waits forever.
///
/// Any thread may use it; calls come one after another, but for [`Comm::abort`], which waits for none of them for long, and
/// [`Comm::async_error`], which comes in between.
pub struct Comm {
    nccl: Nccl,
    context: Context,
    rank: usize,
    world: usize,
    patience: Patience,
    /// Held from a call until it is in its stream.
    calls: Mutex<()>,
    live: Arc<Live>,
    end: End,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn int(call: &'static str, what: &str, value: usize) -> Result<c_int> {
    let wrong = || Error::Collective { call, reason: format!("{value} is not a {what}") };
    c_int::try_from(value).map_err(|_| wrong())
}

impl Nccl {
    /// Becomes a rank of a communicator, on the GPU of the context. Returns when all ranks are there. The patience is that of
    /// all calls of the communicator. Each rank needs a GPU of its own.
    ///
    /// # Errors
    /// [`Error::Collective`] if there is no such rank, [`Error::Late`] if others do not come, or NCCL's own.
    pub fn join(
        &self,
        context: &Context,
        id: UniqueId,
        rank: usize,
        world: usize,
        patience: Patience,
    ) -> Result<Comm> {
        let init = "ncclCommInitRankConfig";
        if rank >= world {
            return Err(Error::Collective {
                call: init,
                reason: format!("there is no rank {rank} of {world}"),
            });
        }
        let (n_ranks, own_rank) = (int(init, "number of ranks", world)?, int(init, "rank", rank)?);
        context.enter()?;
        let (mut handle, mut config) = (null_mut(), Config::nonblocking());
        // SAFETY: both pointers are valid for the call, and a context is current. Without blocking, the library writes the
        // handle before it returns.
        let (name, code) =
            unsafe { call!(self.api, init(&mut handle, n_ranks, id.raw(), own_rank, &mut config)) };
        if handle.is_null() {
            self.api.check(name, code)?;
            return Err(self.api.error(name, code).into());
        }
        let comm = Comm::new(self, context, handle, (rank, world), patience);
        comm.settle(name, code, "all ranks to join")?;
        Ok(comm)
    }
}

/// How long an abort leaves a call of the library alone. Those of a nonblocking communicator return at once.
const IN_CALL: Duration = Duration::from_secs(1);

impl Comm {
    /// How long [`Comm::abort`] waits for the GPU to give up.
    pub const ABORT: Duration = Duration::from_secs(10);

    fn new(
        nccl: &Nccl,
        context: &Context,
        handle: Handle,
        (rank, world): (usize, usize),
        patience: Patience,
    ) -> Comm {
        let (nccl, context) = (nccl.clone(), context.clone());
        let live = Arc::new(Live::new(handle));
        Comm { nccl, context, rank, world, patience, calls: Mutex::new(()), live, end: End::default() }
    }

    /// Which rank it is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The context whose memory and streams it uses.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Calls the library, unless the communicator has ended.
    fn with<R>(&self, f: impl FnOnce(&Api, Handle) -> R) -> Result<R> {
        self.context.enter()?;
        let called = self.live.with(|handle| f(&self.nccl.api, handle));
        called.ok_or(Error::Aborted { rank: self.rank, world: self.world })
    }

    /// What the communicator met while it worked; [`IN_PROGRESS`] is none of it.
    fn progress(&self) -> Result<Code> {
        self.with(|api, handle| {
            let mut code = 0;
            // SAFETY: the handle is a communicator's, and the pointer is valid for the call.
            let (name, called) = unsafe { call!(api, async_error(handle, &mut code)) };
            api.check(name, called)?;
            if code == IN_PROGRESS { Ok(code) } else { api.check(name, code).map(|()| code) }
        })?
    }

    /// The end of a call that had this result: waits until it is done. Whatever goes wrong aborts the communicator.
    fn settle(&self, name: &'static str, code: Code, what: &'static str) -> Result<()> {
        self.settle_within(self.patience, name, code, what)
    }

    fn settle_within(
        &self,
        patience: Patience,
        name: &'static str,
        code: Code,
        what: &'static str,
    ) -> Result<()> {
        let wait = || {
            if code != IN_PROGRESS {
                self.nccl.api.check(name, code)?;
            }
            self.poll(patience, what, || Ok(self.progress()? != IN_PROGRESS))
        };
        self.or_abort(wait())
    }

    /// Looks until it is done or too late.
    fn poll(
        &self,
        patience: Patience,
        what: &'static str,
        mut is_done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let begin = Instant::now();
        while !is_done()? {
            if begin.elapsed() >= patience.timeout {
                let (rank, world, seconds) = (self.rank, self.world, patience.timeout.as_secs_f64());
                return Err(Error::Late { what, rank, world, seconds });
            }
            // Most calls take microseconds.
            if begin.elapsed() < patience.poll { thread::yield_now() } else { thread::sleep(patience.poll) }
        }
        Ok(())
    }

    fn or_abort<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            // The first error is the one to report.
            drop(self.abort());
        }
        result
    }

    /// Puts calls of the library into a stream: returns when they are there, which for the first ones takes until the ranks
    /// are connected.
    pub(super) fn enqueue(&self, calls: impl FnOnce(&Api, Handle) -> (&'static str, Code)) -> Result<()> {
        let _held = locked(&self.calls);
        let (name, code) = self.with(calls)?;
        self.settle(name, code, "all ranks to connect")
    }

    /// Makes communicators of the ranks with the same color, ordered by key and then by rank. All ranks must call it. Those
    /// without a color get none.
    ///
    /// # Errors
    /// [`Error::Collective`] if the color is too large or the library older than 2.18, [`Error::Late`], or NCCL's own.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Comm>> {
        let wrong = |reason| Error::Collective { call: "ncclCommSplit", reason };
        let api = &self.nccl.api;
        let Some(split) = &api.split else {
            return Err(wrong(format!("NCCL {} has none, install 2.18 or a newer one", api.version()?)));
        };
        // -1 is NCCL_SPLIT_NOCOLOR.
        let number = color.map_or(Ok(-1), |color| int(split.name, "color", color as usize))?;
        let _held = locked(&self.calls);
        let slot = Box::new(AtomicPtr::new(null_mut()));
        let at = slot.as_ptr();
        // SAFETY: the handle is a communicator's. The slot lives until the split is done, or forever.
        let called = self.with(|_, handle| unsafe { (split.call)(handle, number, key, at, null_mut()) });
        if let Err(error) = called.and_then(|code| self.settle(split.name, code, "all ranks to split")) {
            // The library may write there still.
            Box::leak(slot);
            return Err(error);
        }
        let handle = slot.load(Ordering::Acquire);
        if handle.is_null() {
            return match color {
                None => Ok(None),
                Some(_) => Err(wrong("NCCL gave no communicator".into())),
            };
        }
        let mut comm = Comm::new(&self.nccl, &self.context, handle, (0, 0), self.patience);
        comm.settle(split.name, 0, "all ranks to join what was split")?;
        (comm.rank, comm.world) = comm.place()?;
        Ok(Some(comm))
    }

    /// Which rank of how many the library says that it is.
    fn place(&self) -> Result<(usize, usize)> {
        let (mut rank, mut world) = (0, 0);
        self.with(|api, handle| {
            // SAFETY: the handle is a communicator's, and the pointer is valid for the call.
            let (name, code) = unsafe { call!(api, user_rank(handle, &mut rank)) };
            api.check(name, code)?;
            // SAFETY: as above.
            let (name, code) = unsafe { call!(api, count(handle, &mut world)) };
            api.check(name, code)
        })??;
        Ok((usize::try_from(rank).unwrap_or_default(), usize::try_from(world).unwrap_or_default()))
    }

    /// What went wrong since: another rank ended, or the network. Does not wait, and does not abort. Nothing is known while
    /// another thread makes a call, which says itself what it meets.
    ///
    /// # Errors
    /// [`Error::Nccl`], or [`Error::Aborted`].
    pub fn async_error(&self) -> Result<()> {
        if self.live.is_in_call() && !self.live.has_ended() {
            return Ok(());
        }
        self.progress().map(|_| ())
    }

    /// Returns when what the event marks is done, without ever waiting in the driver. Everything that may hang because of
    /// another rank is waited for like this.
    ///
    /// # Errors
    /// [`Error::Late`], or what the communicator or the driver met. The communicator is aborted then: the GPU gives up its
    /// collectives, whose results nobody may use, and memory can be freed.
    pub fn wait(&self, event: &Event, patience: Patience) -> Result<()> {
        let is_done = || {
            // After an abort the event is done, too.
            self.with(|_, _| ())?;
            if event.is_done()? {
                return Ok(true);
            }
            self.async_error().map(|()| false)
        };
        self.or_abort(self.poll(patience, "the collectives of a stream", is_done))
    }

    /// Returns when all that the stream was given is done, as [`Comm::wait`].
    ///
    /// # Errors
    /// As for [`Comm::wait`].
    pub fn synchronize(&self, stream: &Stream, patience: Patience) -> Result<()> {
        self.context.expect_same(stream.context(), "the communicator")?;
        let event = self.or_abort(stream.mark())?;
        self.wait(&event, patience)
    }

    /// Gives up all that this rank does with the others, also from another thread while a call waits. Nothing can be done
    /// with the communicator afterward. It is over when the stream of its collectives is empty: where that also has
    /// collectives of other communicators, [`Comm::begin_abort`] has to be called for all of them first.
    ///
    /// # Errors
    /// NCCL's own, after which nothing more can be done, or [`Error::Late`] if it is not over in [`Comm::ABORT`].
    pub fn abort(&self) -> Result<()> {
        self.begin_abort();
        self.wait_for_abort(Instant::now() + Comm::ABORT)
    }

    /// As [`Comm::abort`], which goes on in a thread of its own: the GPU is told to give up, and nobody waits for it.
    pub fn begin_abort(&self) {
        let Some(taken) = self.live.take() else { return };
        let (live, nccl, context) = (self.live.clone(), self.nccl.clone(), self.context.clone());
        self.end.begin(move || {
            live.wait_for_call(IN_CALL);
            // The library uses the context of its GPU; one that is lost is its matter.
            drop(context.enter());
            // SAFETY: the handle is a communicator's. No call begins with it any more, and one that hangs still is what an
            // abort is to end.
            let (name, code) = unsafe { call!(nccl.api, abort(taken.handle())) };
            nccl.api.check_begun(name, code)
        });
    }

    /// Returns when an abort that has begun is over.
    ///
    /// # Errors
    /// As for [`Comm::abort`].
    pub fn wait_for_abort(&self, until: Instant) -> Result<()> {
        let (rank, world, begin) = (self.rank, self.world, Instant::now());
        self.end.wait(until).unwrap_or_else(|| {
            let seconds = begin.elapsed().as_secs_f64();
            Err(Error::Late { what: "the communicator to be aborted", rank, world, seconds })
        })
    }

    /// Waits for all ranks to have done all that they were asked to, and ends. All ranks must call it.
    ///
    /// # Errors
    /// [`Error::Late`], [`Error::Aborted`], or NCCL's own. The communicator is aborted then.
    pub fn finalize(self) -> Result<()> {
        let patience = self.patience;
        self.finalize_within(patience)
    }

    /// As [`Comm::finalize`], with another patience for the others.
    ///
    /// # Errors
    /// As for [`Comm::finalize`].
    pub fn finalize_within(self, patience: Patience) -> Result<()> {
        let _held = locked(&self.calls);
        // SAFETY: the handle is a communicator's.
        let (name, code) = self.with(|api, handle| unsafe { call!(api, finalize(handle)) })?;
        self.settle_within(patience, name, code, "all ranks to finish")?;
        let Some(taken) = self.live.take() else { return Ok(()) };
        self.live.wait_for_call(patience.timeout);
        // The library uses the context of its GPU; one that is lost is its matter.
        drop(self.context.enter());
        // SAFETY: the handle is a communicator's, and nobody uses it afterward.
        let (name, code) = unsafe { call!(self.nccl.api, destroy(taken.handle())) };
        self.nccl.api.check_begun(name, code)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // Nobody is there to hear of a failure.
        drop(self.abort());
    }
}
