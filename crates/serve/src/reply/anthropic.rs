//! Answers of `/v1/messages`, as a whole and as a stream.

use serde_json::{Map, Value, json};

use super::items::{Item, Items, Step};
use super::stream::{Wire, event};
use crate::delta::{Delta, Finish, Totals};
use crate::error::ApiError;
use crate::ids;
use crate::run::Run;

/// An answer while it comes.
pub(crate) struct MessageStream {
    id: String,
    model: String,
    n_prompt_tokens: usize,
    items: Items,
    /// Of what kind the pieces of the last item are.
    piece_kind: (&'static str, &'static str),
}

impl MessageStream {
    pub(crate) fn new(model: String, n_prompt_tokens: usize) -> MessageStream {
        let (id, items) = (ids::name("msg_"), Items::default());
        MessageStream { id, model, n_prompt_tokens, items, piece_kind: ("text_delta", "text") }
    }

    fn message(
        &self,
        content: Vec<Value>,
        stop: Value,
        stop_sequence: Option<String>,
        usage: Value,
    ) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": stop_sequence,
            "usage": usage,
        })
    }

    fn step(&mut self, step: Step, out: &mut Vec<u8>) {
        let value = match step {
            Step::Begin(index, item) => {
                self.piece_kind = match item {
                    Item::Text(_) => ("text_delta", "text"),
                    Item::Thought(_) => ("thinking_delta", "thinking"),
                    Item::Call { .. } => ("input_json_delta", "partial_json"),
                };
                json!({ "type": "content_block_start", "index": index, "content_block": block(&item) })
            }
            Step::Piece(index, piece) => {
                let (kind, name) = self.piece_kind;
                let delta = json!({ "type": kind, name: piece });
                json!({ "type": "content_block_delta", "index": index, "delta": delta })
            }
            Step::End(index, _) => json!({ "type": "content_block_stop", "index": index }),
        };
        event(&value, out);
    }
}

fn block(item: &Item) -> Value {
    match item {
        Item::Text(text) => json!({ "type": "text", "text": text }),
        // Nobody has signed it.
        Item::Thought(text) => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        Item::Call { id, call } => {
            // The arguments of a call that begins are empty, and those of a model may be another value than an object.
            let input = serde_json::from_str::<Map<String, Value>>(&call.arguments).unwrap_or_default();
            json!({ "type": "tool_use", "id": id, "name": call.name, "input": input })
        }
    }
}

fn stop_reason(finish: Finish, is_stop_sequence: bool) -> &'static str {
    match finish {
        Finish::ToolCalls => "tool_use",
        Finish::Length => "max_tokens",
        Finish::Stop if is_stop_sequence => "stop_sequence",
        Finish::Stop => "end_turn",
    }
}

fn usage(totals: &Totals) -> Value {
    json!({
        "input_tokens": totals.n_prompt_tokens.saturating_sub(totals.n_cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": totals.n_cached_tokens,
        "output_tokens": totals.n_answer_tokens,
    })
}

/// The answer as a whole.
pub(crate) async fn whole(mut run: Run, mut message: MessageStream) -> Result<Value, ApiError> {
    while let Some(delta) = run.next().await? {
        for part in delta.parts {
            message.items.push(part, "toolu_");
        }
        if let (Some(finish), Some(totals)) = (delta.finish, delta.totals) {
            message.items.end();
            let content = message.items.done.iter().map(block).collect();
            let stop = json!(stop_reason(finish, delta.stop.is_some()));
            return Ok(message.message(content, stop, delta.stop, usage(&totals)));
        }
    }
    Err(ApiError::failed("The sequence ended without an answer."))
}

impl Wire for MessageStream {
    fn begin(&mut self, out: &mut Vec<u8>) {
        let usage = json!({ "input_tokens": self.n_prompt_tokens, "output_tokens": 0 });
        let message = self.message(Vec::new(), Value::Null, None, usage);
        event(&json!({ "type": "message_start", "message": message }), out);
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<u8>) {
        for part in delta.parts {
            for step in self.items.push(part, "toolu_") {
                self.step(step, out);
            }
        }
        let (Some(finish), Some(totals)) = (delta.finish, delta.totals) else { return };
        if let Some(step) = self.items.end() {
            self.step(step, out);
        }
        let stop = stop_reason(finish, delta.stop.is_some());
        let change = json!({ "stop_reason": stop, "stop_sequence": delta.stop });
        event(&json!({ "type": "message_delta", "delta": change, "usage": usage(&totals) }), out);
        event(&json!({ "type": "message_stop" }), out);
    }

    fn ping(&self, out: &mut Vec<u8>) {
        event(&json!({ "type": "ping" }), out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        event(&error.anthropic_body(), out);
    }
}
