//! The answer to a request as its owner reads it. Its buffer takes the whole answer, so a slow reader holds nobody up.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use oarlock_engine::{Error, Result};

use super::sink::{Event, Failure, Finished, Sink, Token};

/// An answer that is being written. Dropping it cancels it: its place is free from the next step on.
///
/// What has not been read waits in a buffer, which holds at most `max_new_tokens` tokens and the end.
#[derive(Debug)]
pub struct Answer {
    events: Receiver<Event>,
    is_wanted: Arc<AtomicBool>,
    is_over: bool,
}

/// The engine's end of an answer.
#[derive(Debug)]
pub(super) struct Writer {
    events: Sender<Event>,
    is_wanted: Arc<AtomicBool>,
    open: OpenRequest,
}

/// A request that counts as open until it is dropped.
#[derive(Debug)]
struct OpenRequest(Arc<AtomicUsize>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Answer {
    /// An answer and its writer, which counts as open until the answer ends.
    pub(super) fn new(n_open: &Arc<AtomicUsize>) -> (Answer, Writer) {
        n_open.fetch_add(1, Ordering::Relaxed);
        let open = OpenRequest(n_open.clone());
        let (sender, events) = channel();
        let is_wanted = Arc::new(AtomicBool::new(true));
        let writer = Writer { events: sender, is_wanted: is_wanted.clone(), open };
        (Answer { events, is_wanted, is_over: false }, writer)
    }

    /// Waits for the next event, at most so long; `None` where none came, and behind the end.
    pub fn next_within(&mut self, patience: Duration) -> Option<Event> {
        if self.is_over {
            return None;
        }
        match self.events.recv_timeout(patience) {
            Ok(event) => Some(self.seen(event)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(self.seen(Event::Failed(Failure::Stopped))),
        }
    }

    /// Whether the end has been read.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn seen(&mut self, event: Event) -> Event {
        self.is_over = !matches!(event, Event::Prompt(_) | Event::Token(_));
        event
    }
}

/// Waits for each event. The last one is [`Event::Finished`] or [`Event::Failed`].
impl Iterator for Answer {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if self.is_over {
            return None;
        }
        // A writer that is gone without an end was stopped with the engine.
        let event = self.events.recv().unwrap_or(Event::Failed(Failure::Stopped));
        Some(self.seen(event))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
    }
}

impl Sink for Writer {
    fn prompt(&mut self, tokens: Vec<Token>) {
        // Whether somebody is there is asked with the next token.
        let _ = self.events.send(Event::Prompt(tokens));
    }

    fn token(&mut self, token: Token) -> ControlFlow<()> {
        match self.events.send(Event::Token(token)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn is_cancelled(&self) -> bool {
        !self.is_wanted.load(Ordering::Relaxed)
    }

    fn end(self, end: Result<Finished>) {
        // Whoever reads the end finds the place free.
        drop(self.open);
        let failed = |error: Error| {
            Event::Failed(match error {
                // Of the parts of a request the constraint alone is asked while it answers.
                Error::Usage(problem) => Failure::Request(problem),
                other => Failure::Generation(other.to_string()),
            })
        };
        // Nobody may be there to read it.
        let _ = self.events.send(end.map_or_else(failed, Event::Finished));
    }
}
