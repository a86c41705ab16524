//! The copies that use a stretch of memory, so that whoever uses it next comes behind them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::stream::{Event, Stream};
use crate::error::Result;

/// So many copies are remembered before those that are done are forgotten.
const MANY: usize = 16;

/// What is done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is read, which others may do at the same time.
    Read,
    /// It is written.
    Write,
}

impl Use {
    fn conflicts(self, other: Use) -> bool {
        self == Use::Write || other == Use::Write
    }
}

/// Copies, each as an event behind it. A clone is another list of the same copies.
#[derive(Default)]
pub struct Uses(Mutex<Vec<(Arc<Event>, Use)>>);

impl Clone for Uses {
    fn clone(&self) -> Uses {
        Uses(Mutex::new(self.list().clone()))
    }
}

impl Uses {
    fn list(&self) -> MutexGuard<'_, Vec<(Arc<Event>, Use)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the copies of another list as well, where memory becomes one with its neighbor.
    pub fn join(&self, other: Uses) {
        let mut other = other.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut list = self.list();
        other.retain(|(event, _)| !list.iter().any(|(known, _)| Arc::ptr_eq(known, event)));
        list.append(&mut other);
        forget_done(&mut list);
    }

    /// Remembers a copy, by an event behind it.
    pub fn add(&self, event: Event, how: Use) {
        let mut list = self.list();
        forget_done(&mut list);
        list.push((Arc::new(event), how));
    }

    /// What the stream is given from now on waits for the copies that conflict with such a use.
    ///
    /// # Errors
    /// The driver's own, as for all that follow.
    pub fn order(&self, stream: &Stream, how: Use) -> Result<()> {
        order(&self.list(), stream, how)
    }

    /// As [`Uses::order`], and forgets those copies: for a stream that all later copies wait for anyway.
    pub fn order_once(&self, stream: &Stream, how: Use) -> Result<()> {
        let mut list = self.list();
        order(&list, stream, how)?;
        list.retain(|(_, other)| !how.conflicts(*other));
        Ok(())
    }

    /// Returns when the copies are done that conflict with such a use, and forgets them.
    pub fn settle(&self, how: Use) -> Result<()> {
        let mut list = self.list();
        for (event, _) in list.iter().filter(|(_, other)| how.conflicts(*other)) {
            if !event.is_done()? {
                event.synchronize()?;
            }
        }
        list.retain(|(_, other)| !how.conflicts(*other));
        Ok(())
    }
}

/// Forgets the copies that are done, once there are many.
fn forget_done(list: &mut Vec<(Arc<Event>, Use)>) {
    if list.len() >= MANY {
        list.retain(|(event, _)| !matches!(event.is_done(), Ok(true)));
    }
}

fn order(list: &[(Arc<Event>, Use)], stream: &Stream, how: Use) -> Result<()> {
    list.iter().filter(|(_, other)| how.conflicts(*other)).try_for_each(|(event, _)| stream.wait(event))
}
