//! What all requests share: the backend, the options, what is counted, and whether the server is ending.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use crate::backend::{Backend, Model, Refusal};
use crate::body::BodyBytes;
use crate::error::ApiError;
use crate::hosts::Hosts;
use crate::metrics::Metrics;
use crate::options::Options;

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
    pub(crate) bodies: BodyBytes,
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
            bodies: BodyBytes::default(),
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

    /// As [`Shared::compute`], for what takes all cores and cannot be stopped: one at a time. Others wait for their turn.
    pub(crate) async fn compute_alone<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&dyn Backend) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = tokio::select! {
            turn = Arc::clone(&self.batches).acquire_owned() => turn,
            () = self.reaches(Phase::Draining) => return Err(ApiError::unavailable("The server is ending.")),
            () = sleep(self.options.limits.wait_time) => {
                return Err(ApiError::unavailable("The request has waited too long for its turn."));
            }
        };
        let turn = turn.map_err(|_| ApiError::unavailable("The server is ending."))?;
        // The turn lasts as long as the work does, also where the client has gone.
        let work = move |backend: &dyn Backend| {
            let result = work(backend);
            drop(turn);
            result
        };
        self.compute(work).await
    }

    /// Runs what may take long where that delays nobody else.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Backend) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, ApiError> {
        let backend = Arc::clone(&self.backend);
        match tokio::task::spawn_blocking(move || work(&*backend)).await {
            Ok(result) => result.map_err(ApiError::from),
            Err(_) => Err(ApiError::failed("The server made a mistake with this request.")),
        }
    }
}
