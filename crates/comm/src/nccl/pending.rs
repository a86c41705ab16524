//! A collective that is in its stream: what the next user of its memory waits for.

use std::sync::Arc;

use oarlock_cuda::driver::Event;
use oarlock_tensor::{FlatBuffer, SideStream};

use super::watch::Watch;
use crate::error::Result;
use crate::ready::Pending;

/// A collective in the stream of NCCL. Launches come after it, also when nobody has waited.
pub(super) struct InStream {
    pub side: Arc<SideStream>,
    pub event: Arc<Event>,
    pub watch: Arc<Watch>,
    /// Lives until launches come after the collective: the pool may give it away then.
    pub memory: Vec<FlatBuffer>,
    pub is_ordered: bool,
}

impl InStream {
    fn order(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_ordered, true) {
            self.side.precede(&self.event).map_err(|error| self.watch.fail(&error.to_string()))?;
        }
        Ok(())
    }
}

impl Pending for InStream {
    fn wait(mut self: Box<Self>) -> Result<()> {
        self.order()?;
        self.watch.wait(&self.event)
    }

    fn precede_launches(mut self: Box<Self>) -> Result<()> {
        self.order()
    }
}

impl Drop for InStream {
    fn drop(&mut self) {
        // Nobody is there to hear of a failure, and the watch has told the others.
        drop(self.order());
        debug_assert!(!self.memory.is_empty() || self.is_ordered);
    }
}
