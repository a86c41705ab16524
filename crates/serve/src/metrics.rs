//! What the server counts, as text for Prometheus.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::Numbers;
use crate::events::Timings;

/// Counters of what was done since the start.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    n_prompt_tokens: AtomicU64,
    n_cached_tokens: AtomicU64,
    n_predicted_tokens: AtomicU64,
    n_requests: AtomicU64,
    n_failed: AtomicU64,
    n_refused: AtomicU64,
    n_canceled: AtomicU64,
    seconds: Mutex<Seconds>,
}

/// Time spent, over all sequences.
#[derive(Clone, Copy, Debug, Default)]
struct Seconds {
    prompt: f64,
    predicted: f64,
}

impl Metrics {
    /// A request for sequences was begun.
    pub(crate) fn begun(&self) {
        self.n_requests.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was refused.
    pub(crate) fn refused(&self) {
        self.n_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A request has failed after it was begun.
    pub(crate) fn failed(&self) {
        self.n_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// A client has gone before its answer was complete.
    pub(crate) fn canceled(&self) {
        self.n_canceled.fetch_add(1, Ordering::Relaxed);
    }

    /// A prompt was computed.
    pub(crate) fn prompt(&self, n_tokens: usize, n_cached: usize) {
        self.n_prompt_tokens.fetch_add(n_tokens as u64, Ordering::Relaxed);
        self.n_cached_tokens.fetch_add(n_cached as u64, Ordering::Relaxed);
    }

    /// A token was predicted.
    pub(crate) fn predicted(&self) {
        self.n_predicted_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// How long a sequence took.
    pub(crate) fn took(&self, timings: Timings) {
        // Nobody panics while holding it, and the numbers are good anyway.
        let mut seconds = self.seconds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        seconds.prompt += timings.prompt.as_secs_f64();
        seconds.predicted += timings.predicted.as_secs_f64();
    }

    /// As text for Prometheus.
    pub(crate) fn text(&self, numbers: Numbers) -> String {
        let seconds = *self.seconds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let prompt = count(&self.n_prompt_tokens);
        let cached = count(&self.n_cached_tokens);
        let predicted = count(&self.n_predicted_tokens);
        let rate = |n: f64, seconds: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        let rows: [(&str, &str, &str, f64); 17] = [
            ("prompt_tokens_total", "counter", "Tokens of prompts.", prompt),
            (
                "prompt_tokens_cached_total",
                "counter",
                "Tokens of prompts that were not computed again.",
                cached,
            ),
            (
                "prompt_seconds_total",
                "counter",
                "Time until first tokens, over all sequences.",
                seconds.prompt,
            ),
            ("tokens_predicted_total", "counter", "Tokens of answers.", predicted),
            (
                "tokens_predicted_seconds_total",
                "counter",
                "Time for answers, over all sequences.",
                seconds.predicted,
            ),
            (
                "prompt_tokens_seconds",
                "gauge",
                "Computed tokens of prompts per second, of one sequence on average.",
                rate(prompt - cached, seconds.prompt),
            ),
            (
                "predicted_tokens_seconds",
                "gauge",
                "Tokens of answers per second, of one sequence on average.",
                rate(predicted, seconds.predicted),
            ),
            ("requests_total", "counter", "Requests for answers that were begun.", count(&self.n_requests)),
            ("requests_refused_total", "counter", "Requests that were refused.", count(&self.n_refused)),
            (
                "requests_failed_total",
                "counter",
                "Requests that failed after they were begun.",
                count(&self.n_failed),
            ),
            (
                "requests_canceled_total",
                "counter",
                "Requests whose client went away before the end.",
                count(&self.n_canceled),
            ),
            ("requests_processing", "gauge", "Sequences that are computed.", numbers.n_running as f64),
            ("requests_deferred", "gauge", "Sequences that wait.", numbers.n_waiting as f64),
            (
                "kv_cache_usage_ratio",
                "gauge",
                "The part of the cache of keys and values that is in use.",
                numbers.cache_usage,
            ),
            (
                "prefix_cache_bytes",
                "gauge",
                "Keys and values of earlier prompts, for later ones that begin alike.",
                numbers.prefix_bytes as f64,
            ),
            (
                "spec_decode_num_draft_tokens_total",
                "counter",
                "Tokens that were guessed ahead of the model.",
                numbers.n_draft_tokens as f64,
            ),
            (
                "spec_decode_num_accepted_tokens_total",
                "counter",
                "Guessed tokens that were right.",
                numbers.n_accepted_tokens as f64,
            ),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in rows {
            // Writing into a string does not fail.
            _ = writeln!(
                text,
                "# HELP oarlock_{name} {help}\n# TYPE oarlock_{name} {kind}\noarlock_{name} {value}"
            );
        }
        text
    }
}
