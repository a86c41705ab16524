//! What all requests share: the backend, the options, what is counted, and whether the server is ending.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;

use crate::backend::{Backend, Model, Refusal};
use crate::body::{BodyBytes, Share};
use crate::error::ApiError;
use crate::hosts::Hosts;
use crate::metrics::Metrics;
use crate::options::Options;

/// How many threads compute what may take long: prompts, tokens, embeddings.
pub(crate) const N_COMPUTING_THREADS: usize = 4;

/// How far the server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Phase {
    /// It takes requests.
    Open,
    /// It finishes those that have begun.
    Draining,
    /// It ends those too.
    Over,
}

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: Options,
    pub(crate) hosts: Hosts,
    pub(crate) metrics: Metrics,
    pub(crate) bodies: Arc<BodyBytes>,
    /// Of the threads that compute. Whoever waits for one and goes away leaves no work behind.
    turns: Arc<Semaphore>,
    /// One thing at a time of what is large, so that the other threads are left to what is small.
    large: Arc<Semaphore>,
    /// One thing at a time of those that nobody can cancel.
    batches: Arc<Semaphore>,
    phase: watch::Sender<Phase>,
}

impl Shared {
    pub(crate) fn new(backend: Arc<dyn Backend>, options: Options, hosts: Hosts) -> Shared {
        Shared {
            backend,
            options,
            hosts,
            metrics: Metrics::default(),
            bodies: Arc::default(),
            turns: Arc::new(Semaphore::new(N_COMPUTING_THREADS)),
            large: Arc::new(Semaphore::new(1)),
            batches: Arc::new(Semaphore::new(1)),
            phase: watch::Sender::new(Phase::Open),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Ends when the server has come so far.
    pub(crate) fn reaches(&self, phase: Phase) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut phases = self.phase.subscribe();
        // Without a sender there is no server either.
        async move { _ = phases.wait_for(|now| *now >= phase).await.map(drop) }
    }

    /// The model of a request. Without a name it is the first.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<Model, ApiError> {
        if !self.backend.is_ready() {
            return Err(Refusal::Loading.into());
        }
        let mut models = self.backend.models();
        let found = match name {
            Some(name) => models.iter().position(|model| model.name == name),
            None => Some(0),
        };
        match found.or(self.options.accepts_any_model.then_some(0)).filter(|at| *at < models.len()) {
            Some(at) => Ok(models.swap_remove(at)),
            None => Err(ApiError::no_model(name.unwrap_or_default())),
        }
    }

    /// Runs what may take long where that delays nobody else.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        body: &Arc<Share>,
        work: impl FnOnce(&dyn Backend) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = if body.is_large() { Some(self.turn(&self.large).await?) } else { None };
        self.compute_in(turn, body, work).await
    }

    /// As [`Shared::compute`], for what takes all cores and cannot be stopped: one at a time. Others wait for their turn.
    pub(crate) async fn compute_alone<T: Send + 'static>(
        &self,
        body: &Arc<Share>,
        work: impl FnOnce(&dyn Backend) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.turn(&self.batches).await?;
        self.compute_in(Some(turn), body, work).await
    }

    /// Turns last as long as the work does, and so does the share of its body in memory, also where the client has gone.
    async fn compute_in<T: Send + 'static>(
        &self,
        turn: Option<OwnedSemaphorePermit>,
        body: &Arc<Share>,
        work: impl FnOnce(&dyn Backend) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turns = (turn, self.turn(&self.turns).await?);
        let (backend, body) = (Arc::clone(&self.backend), Arc::clone(body));
        let work = move || {
            let result = work(&*backend);
            drop((turns, body));
            result
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result.map_err(ApiError::from),
            Err(_) => Err(ApiError::failed("The server made a mistake with this request.")),
        }
    }

    /// Waits for a turn, unless that takes too long or the server ends.
    async fn turn(&self, turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ApiError> {
        let turn = tokio::select! {
            biased;
            turn = Arc::clone(turns).acquire_owned() => turn,
            () = self.reaches(Phase::Draining) => return Err(ApiError::unavailable("The server is ending.")),
            () = sleep(self.options.limits.wait_time) => {
                return Err(ApiError::unavailable("The request has waited too long for its turn."));
            }
        };
        turn.map_err(|_| ApiError::unavailable("The server is ending."))
    }
}
