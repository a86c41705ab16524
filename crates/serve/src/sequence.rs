//! One sequence with its answer, and when something came of it.

use std::time::{Duration, Instant};

use crate::delta::Finish;
use crate::events::{Finished, StopReason, Timings};
use crate::text::answer::Answer;

/// A sequence with its answer.
pub(crate) struct Sequence {
    pub(crate) answer: Answer,
    pub(crate) is_over: bool,
    pub(crate) n_cached_tokens: usize,
    pub(crate) begin: Instant,
    pub(crate) first_token: Option<Instant>,
    pub(crate) last_token: Option<Instant>,
    pub(crate) timings: Timings,
}

impl Sequence {
    pub(crate) fn new(answer: Answer) -> Sequence {
        Sequence {
            answer,
            is_over: false,
            n_cached_tokens: 0,
            begin: Instant::now(),
            first_token: None,
            last_token: None,
            timings: Timings { prompt: Duration::ZERO, predicted: Duration::ZERO },
        }
    }

    /// Nothing more comes of it. Without times of the backend those at which something came count.
    pub(crate) fn end(&mut self, finished: Option<Finished>) {
        self.is_over = true;
        self.n_cached_tokens = finished.map_or(0, |finished| finished.n_cached_tokens);
        let seen = || {
            let first = self.first_token.unwrap_or_else(Instant::now);
            let last = self.last_token.unwrap_or(first);
            let prompt = first.saturating_duration_since(self.begin);
            Timings { prompt, predicted: last.saturating_duration_since(first) }
        };
        self.timings = finished.and_then(|finished| finished.timings).unwrap_or_else(seen);
    }

    /// Why its answer has ended.
    pub(crate) fn finish(&self, reason: StopReason) -> Finish {
        match reason {
            StopReason::Length => Finish::Length,
            StopReason::Stop if self.answer.n_calls > 0 => Finish::ToolCalls,
            StopReason::Stop => Finish::Stop,
        }
    }
}
