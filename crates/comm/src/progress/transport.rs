//! The transport in front of another: collectives on regions go to the thread, all others wait until it has none.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::pending::{Background, Outcome};
use super::worker::Worker;
use crate::call::{OwnedRequest, Request};
use crate::collective::Collective;
use crate::error::{Error, Result};
use crate::ledger::RankStatus;
use crate::observer::Observer;
use crate::patience::Patience;
use crate::ready::{Pending, Ready};
use crate::region::{Region, Sharing};
use crate::transport::Transport;

/// One rank in one group, whose collectives on regions run beside it.
pub(crate) struct Progress {
    /// Dropped before `inner`: the thread uses it.
    worker: Worker,
    inner: Arc<dyn Transport>,
    observer: Arc<Observer>,
}

/// What a collective came after has failed.
struct Failed(Error);

impl Pending for Failed {
    fn wait(self: Box<Self>) -> Result<()> {
        Err(self.0)
    }
}

impl Progress {
    pub(crate) fn new(inner: Arc<dyn Transport>, observer: Arc<Observer>) -> Progress {
        Progress { worker: Worker::default(), inner, observer }
    }

    /// Hands a collective to the thread (invariants 1 to 4).
    fn start(&self, request: &Request, collective: Collective, after: Ready) -> Result<Ready> {
        let request = OwnedRequest::of(request);
        let (inner, observer, outcome) =
            (self.inner.clone(), self.observer.clone(), Arc::<Outcome>::default());
        let set = outcome.clone();
        self.worker.push(Box::new(move || {
            let work = AssertUnwindSafe(|| {
                // What it comes after is not a time of this collective.
                let after = after.wait().map_or_else(|error| Ready::after(Failed(error)), |()| Ready::now());
                let begin = Instant::now();
                let result = inner.run(&request.request(), &collective, after).and_then(Ready::wait);
                observer.ran(&request.request(), inner.world_size(), begin);
                result
            });
            let result = catch_unwind(work).unwrap_or_else(|panic| Err(panicked(&*inner, &*panic)));
            drop(inner);
            // Who waits for the end finds the regions free.
            match &result {
                Ok(()) => drop(collective),
                Err(_) => collective.lose(),
            }
            set.set(result);
        }))?;
        let (observer, queue) = (self.observer.clone(), self.worker.queue().clone());
        Ok(Ready::after(Background { outcome, observer, queue }))
    }

    /// Runs a collective here, once all before it are over (invariant 1).
    fn run_here<T>(&self, request: &Request, run: impl FnOnce(&dyn Transport) -> Result<T>) -> Result<T> {
        let waits = Instant::now();
        self.worker.wait_until_idle();
        let begin = Instant::now();
        let result = run(&*self.inner);
        self.observer.ran(request, self.world_size(), begin);
        if request.operation.sends() {
            self.observer.waited(waits);
        }
        result
    }
}

/// Ends the run because of a panic in a collective.
fn panicked(inner: &dyn Transport, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    inner.abort(&format!("a collective panicked: {text}"));
    inner.failure().unwrap_or_else(|| Error::system("run a collective", text))
}

impl Transport for Progress {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn shares_memory(&self) -> bool {
        self.inner.shares_memory()
    }

    fn reaches_gpus(&self) -> bool {
        self.inner.reaches_gpus()
    }

    fn works_in_background(&self) -> bool {
        true
    }

    fn observes(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn sharing_cores(&self) -> (usize, usize) {
        self.inner.sharing_cores()
    }

    fn machines(&self) -> Vec<usize> {
        self.inner.machines()
    }

    fn allocate(&self, request: &Request, sharing: Sharing) -> Result<Region> {
        self.run_here(request, |inner| inner.allocate(request, sharing))
    }

    fn barrier(&self, request: &Request) -> Result<()> {
        self.run_here(request, |inner| inner.barrier(request))
    }

    fn run(&self, request: &Request, collective: &Collective, after: Ready) -> Result<Ready> {
        self.start(request, collective.clone(), after)
    }

    fn all_gather_bytes(&self, request: &Request, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.run_here(request, |inner| inner.all_gather_bytes(request, bytes))
    }

    fn split(&self, request: &Request, group: &[usize]) -> Result<Arc<dyn Transport>> {
        let inner = self.run_here(request, |inner| inner.split(request, group))?;
        Ok(Arc::new(Progress::new(inner, self.observer.clone())))
    }

    fn patience(&self) -> &Patience {
        self.inner.patience()
    }

    fn set_phase(&self, note: &str) {
        self.inner.set_phase(note);
    }

    fn statuses(&self) -> Vec<RankStatus> {
        self.inner.statuses()
    }

    fn failure(&self) -> Option<Error> {
        self.inner.failure()
    }

    fn abort(&self, cause: &str) {
        self.inner.abort(cause);
    }

    fn finish(&self) {
        self.worker.wait_until_idle();
        self.inner.finish();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // What is queued may need ranks that wait for this one (invariant 5).
        if std::thread::panicking() && !self.worker.is_idle() {
            self.inner.abort("it left without finishing (a panic, an early return)");
        }
    }
}
