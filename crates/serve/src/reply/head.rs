//! What stands in every answer and in every piece of one: its name, the time, the model, and at the end what it took.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::backend::Model;
use crate::delta::Totals;
use crate::ids;

/// The same fields in all pieces of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    fingerprint: String,
}

impl Head {
    /// A new answer. `asked_for` is the name by which the model was asked for.
    pub(crate) fn new(prefix: &str, object: &'static str, model: &Model, asked_for: Option<String>) -> Head {
        Head {
            id: ids::name(prefix),
            object,
            created: ids::now(),
            model: asked_for.unwrap_or_else(|| model.name.clone()),
            fingerprint: model.fingerprint.clone(),
        }
    }

    /// As the beginning of an object.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("id".to_owned(), json!(self.id));
        fields.insert("object".to_owned(), json!(self.object));
        fields.insert("created".to_owned(), json!(self.created));
        fields.insert("model".to_owned(), json!(self.model));
        fields.insert("system_fingerprint".to_owned(), json!(self.fingerprint));
        fields
    }
}

/// `usage`.
pub(crate) fn usage(totals: &Totals) -> Value {
    json!({
        "prompt_tokens": totals.n_prompt_tokens,
        "completion_tokens": totals.n_answer_tokens,
        "total_tokens": totals.n_prompt_tokens + totals.n_answer_tokens,
        "prompt_tokens_details": { "cached_tokens": totals.n_cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": totals.n_thought_tokens },
    })
}

/// `timings`, as llama.cpp gives them.
pub(crate) fn timings(totals: &Totals) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let rate = |n: usize, time: Duration| match time.is_zero() {
        true => 0.0,
        false => n as f64 / time.as_secs_f64(),
    };
    let n_prompt = totals.n_prompt_tokens.saturating_sub(totals.n_cached_tokens);
    json!({
        "cache_n": totals.n_cached_tokens,
        "prompt_n": n_prompt,
        "prompt_ms": ms(totals.prompt_time),
        "prompt_per_second": rate(n_prompt, totals.prompt_time),
        "predicted_n": totals.n_answer_tokens,
        "predicted_ms": ms(totals.answer_time),
        "predicted_per_second": rate(totals.n_answer_tokens, totals.answer_time),
    })
}
