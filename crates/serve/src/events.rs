//! What a backend says of a sequence while it answers: events, and the channel through which they come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc;

/// A token, and how likely the model found it and others in its place. Log-probabilities are those of the model's own
/// distribution: at temperature 1, before penalties and cuts.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its number in the vocabulary.
    pub id: u32,
    /// The bytes that it adds to the text. They may be a part of a character.
    pub bytes: Vec<u8>,
    /// Where asked for; the first token of a prompt has none.
    pub logprob: Option<f32>,
    /// The most likely tokens in this place, the likeliest first: as many as asked for.
    pub top: Vec<Alternative>,
}

/// A token that could have stood in a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// Its number in the vocabulary.
    pub id: u32,
    /// The bytes that it would add to the text.
    pub bytes: Vec<u8>,
    /// How likely the model found it.
    pub logprob: f32,
}

/// Why a sequence has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its answer.
    Stop,
    /// It has as many tokens as it may have.
    Length,
}

/// How long the parts of an answer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// From the start of the sequence to its first token.
    pub prompt: Duration,
    /// From the first token to the last.
    pub predicted: Duration,
}

/// The end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Why it ended.
    pub reason: StopReason,
    /// How many tokens of the prompt were not computed again.
    pub n_cached_tokens: usize,
    /// What the backend measured; without it the server takes the times at which events came.
    pub timings: Option<Timings>,
}

/// What happens to a sequence, in this order: it starts, its prompt is told where asked for, tokens, one end.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It no longer waits. A backend without a queue may leave this out: the first token says the same.
    Started,
    /// The tokens of the prompt, where [`crate::Request::prompt_logprobs`] asks for them.
    Prompt(Vec<Token>),
    /// The next token of the answer. Tokens that end it are not sent.
    Token(Token),
    /// The answer is complete.
    Finished(Finished),
    /// There will be no answer as the request wants it, and why: the client is at fault.
    Refused(String),
    /// There will be no answer, and why: the server is at fault.
    Failed(String),
}

/// Nobody waits for the sequence any more: its client has gone, or has what it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody waits for the sequence any more")]
pub struct Canceled;

/// Where a backend puts the events of one sequence, from any thread. It never blocks: there is room for all tokens that the
/// request allows. Dropped before the end, it says that the sequence has failed.
#[derive(Debug)]
pub struct EventSender {
    choice: usize,
    events: mpsc::Sender<(usize, Event)>,
    is_canceled: Arc<AtomicBool>,
    n_left: usize,
    is_over: bool,
}

/// Events beside tokens: the start, the prompt and the end.
const N_OTHER_EVENTS: usize = 3;

impl EventSender {
    /// Hands an event over.
    ///
    /// # Errors
    /// [`Canceled`] where nobody waits for it; so the backend ends the sequence. This is also the answer to events behind
    /// the end, and to more tokens than the request allows.
    pub fn send(&mut self, event: Event) -> Result<(), Canceled> {
        let is_last = matches!(event, Event::Finished(_) | Event::Refused(_) | Event::Failed(_));
        // One place is kept for the end.
        if self.is_over || self.is_canceled() || (self.n_left <= 1 && !is_last) {
            return Err(Canceled);
        }
        self.n_left -= 1;
        self.is_over = is_last;
        self.events.try_send((self.choice, event)).map_err(|_| Canceled)
    }

    /// Whether nobody waits any more. A backend asks before each step, also while the sequence waits for its turn.
    pub fn is_canceled(&self) -> bool {
        self.is_canceled.load(Ordering::Relaxed) || self.events.is_closed()
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        if !self.is_over {
            // Where nobody waits, nobody needs to know.
            _ = self.send(Event::Failed("the sequence was given up without an answer".to_owned()));
        }
    }
}

/// The events of the sequences of one request. Dropping it cancels all of them.
#[derive(Debug)]
pub(crate) struct EventReceiver {
    events: mpsc::Receiver<(usize, Event)>,
    are_canceled: Vec<Arc<AtomicBool>>,
}

impl EventReceiver {
    /// The next event, with the number of its sequence; `None` behind the last one.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Event)>> {
        self.events.poll_recv(context)
    }

    /// Ends one of the sequences.
    pub(crate) fn cancel(&self, choice: usize) {
        if let Some(flag) = self.are_canceled.get(choice) {
            flag.store(true, Ordering::Relaxed);
        }
    }
}

/// One receiver for some sequences of at most so many tokens each, and a sender for each of them.
pub(crate) fn channel(n_sequences: usize, max_tokens: usize) -> (Vec<EventSender>, EventReceiver) {
    let n_events = max_tokens.saturating_add(N_OTHER_EVENTS);
    // The channel reserves no memory for its capacity.
    let capacity = n_sequences.saturating_mul(n_events).clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
    let (sender, events) = mpsc::channel(capacity);
    let are_canceled: Vec<Arc<AtomicBool>> =
        (0..n_sequences).map(|_| Arc::new(AtomicBool::new(false))).collect();
    let senders = are_canceled.iter().enumerate().map(|(choice, flag)| EventSender {
        choice,
        events: sender.clone(),
        is_canceled: Arc::clone(flag),
        n_left: n_events,
        is_over: false,
    });
    (senders.collect(), EventReceiver { events, are_canceled })
}
