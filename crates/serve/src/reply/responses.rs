//! Answers of `/v1/responses`, as a whole and as a stream.

use serde_json::{Map, Value, json};

use super::items::{Item, Items, Step};
use super::stream::{Wire, event};
use crate::delta::{Delta, Finish, Totals};
use crate::error::ApiError;
use crate::ids;
use crate::run::Run;

/// The ids of calls, by which their results name them.
const CALL: &str = "call_";

/// An answer while it comes.
pub(crate) struct ResponseStream {
    id: String,
    created: u64,
    model: String,
    /// What of the request the answer repeats.
    repeated: Map<String, Value>,
    items: Items,
    /// The ids of the items.
    ids: Vec<String>,
    /// Of what kind the pieces of the last item are.
    piece_kind: &'static str,
    n_events: u64,
}

impl ResponseStream {
    pub(crate) fn new(model: String, repeated: Map<String, Value>) -> ResponseStream {
        ResponseStream {
            id: ids::name("resp_"),
            created: ids::now(),
            model,
            repeated,
            items: Items::default(),
            ids: Vec::new(),
            piece_kind: "response.output_text.delta",
            n_events: 0,
        }
    }

    /// The answer so far.
    fn object(&self, status: &str, totals: Option<&Totals>, error: Option<&ApiError>) -> Value {
        let output: Vec<Value> = self
            .items
            .done
            .iter()
            .zip(&self.ids)
            .map(|(item, id)| whole_item(item, id, "completed"))
            .collect();
        let reason = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let mut object = Map::new();
        let own = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": error.map(|error| json!({ "code": "server_error", "message": error.message() })),
            "incomplete_details": reason,
            "model": self.model,
            "output": output,
            "usage": totals.map(usage),
        });
        object.extend(own.as_object().cloned().unwrap_or_default());
        object.extend(self.repeated.clone());
        Value::Object(object)
    }

    fn write(&mut self, mut value: Value, out: &mut Vec<u8>) {
        value["sequence_number"] = json!(self.n_events);
        self.n_events += 1;
        event(&value, out);
    }

    fn begin_item(&mut self, index: usize, item: &Item, out: &mut Vec<u8>) {
        let (prefix, piece_kind) = match item {
            Item::Text(_) => ("msg_", "response.output_text.delta"),
            Item::Thought(_) => ("rs_", "response.reasoning_text.delta"),
            Item::Call { .. } => ("fc_", "response.function_call_arguments.delta"),
        };
        let id = ids::name(prefix);
        self.piece_kind = piece_kind;
        let mut begun = whole_item(item, &id, "in_progress");
        if begun.get("content").is_some() {
            begun["content"] = json!([]);
        }
        self.write(
            json!({ "type": "response.output_item.added", "output_index": index, "item": begun }),
            out,
        );
        if let Some(part) = part(item) {
            let place = json!({ "type": "response.content_part.added", "part": part });
            self.write(placed(place, &id, index, true), out);
        }
        self.ids.push(id);
    }

    fn piece(&mut self, index: usize, piece: &str, out: &mut Vec<u8>) {
        let id = self.ids.get(index).cloned().unwrap_or_default();
        let mut value = json!({ "type": self.piece_kind, "delta": piece });
        if self.piece_kind == "response.output_text.delta" {
            value["logprobs"] = json!([]);
        }
        let has_content = self.piece_kind != "response.function_call_arguments.delta";
        self.write(placed(value, &id, index, has_content), out);
    }

    fn end_item(&mut self, index: usize, item: &Item, out: &mut Vec<u8>) {
        let id = self.ids.get(index).cloned().unwrap_or_default();
        let done = match item {
            Item::Text(text) => json!({ "type": "response.output_text.done", "text": text, "logprobs": [] }),
            Item::Thought(text) => json!({ "type": "response.reasoning_text.done", "text": text }),
            Item::Call { call, .. } => {
                let kind = "response.function_call_arguments.done";
                json!({ "type": kind, "name": call.name, "arguments": call.arguments })
            }
        };
        let part = part(item);
        self.write(placed(done, &id, index, part.is_some()), out);
        if let Some(part) = part {
            let value = json!({ "type": "response.content_part.done", "part": part });
            self.write(placed(value, &id, index, true), out);
        }
        let item = whole_item(item, &id, "completed");
        self.write(json!({ "type": "response.output_item.done", "output_index": index, "item": item }), out);
    }

    fn step(&mut self, step: Step, out: &mut Vec<u8>) {
        match step {
            Step::Begin(index, item) => self.begin_item(index, &item, out),
            Step::Piece(index, piece) => self.piece(index, &piece, out),
            Step::End(index, item) => self.end_item(index, &item, out),
        }
    }

    /// Writes what is new; the answer as a whole, where that was the end.
    fn take(&mut self, delta: Delta, out: &mut Vec<u8>) -> Option<Value> {
        for part in delta.parts {
            for step in self.items.push(part, CALL) {
                self.step(step, out);
            }
        }
        let (finish, totals) = (delta.finish?, delta.totals?);
        if let Some(step) = self.items.end() {
            self.step(step, out);
        }
        let status = if finish == Finish::Length { "incomplete" } else { "completed" };
        Some(self.object(status, Some(&totals), None))
    }
}

/// Says where in the answer something happens.
fn placed(mut value: Value, id: &str, index: usize, has_content: bool) -> Value {
    value["item_id"] = json!(id);
    value["output_index"] = json!(index);
    if has_content {
        value["content_index"] = json!(0);
    }
    value
}

/// The content of an item; a call has none.
fn part(item: &Item) -> Option<Value> {
    match item {
        Item::Text(text) => {
            Some(json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }))
        }
        Item::Thought(text) => Some(json!({ "type": "reasoning_text", "text": text })),
        Item::Call { .. } => None,
    }
}

fn whole_item(item: &Item, id: &str, status: &str) -> Value {
    let content = part(item);
    match item {
        Item::Text(_) => json!({
            "id": id, "type": "message", "status": status, "role": "assistant", "content": [content],
        }),
        Item::Thought(_) => json!({
            "id": id, "type": "reasoning", "status": status, "summary": [], "content": [content],
        }),
        Item::Call { id: call_id, call } => json!({
            "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": call.name,
            "arguments": call.arguments,
        }),
    }
}

fn usage(totals: &Totals) -> Value {
    json!({
        "input_tokens": totals.n_prompt_tokens,
        "input_tokens_details": { "cached_tokens": totals.n_cached_tokens },
        "output_tokens": totals.n_answer_tokens,
        "output_tokens_details": { "reasoning_tokens": totals.n_thought_tokens },
        "total_tokens": totals.n_prompt_tokens + totals.n_answer_tokens,
    })
}

/// The answer as a whole.
pub(crate) async fn whole(mut run: Run, mut response: ResponseStream) -> Result<Value, ApiError> {
    // What a stream would say in between nobody reads.
    let mut unread = Vec::new();
    while let Some(delta) = run.next().await? {
        unread.clear();
        if let Some(object) = response.take(delta, &mut unread) {
            return Ok(object);
        }
    }
    Err(ApiError::failed("The sequence ended without an answer."))
}

impl Wire for ResponseStream {
    fn begin(&mut self, out: &mut Vec<u8>) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.object("in_progress", None, None);
            self.write(json!({ "type": kind, "response": response }), out);
        }
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<u8>) {
        if let Some(response) = self.take(delta, out) {
            let is_incomplete = response["status"] == "incomplete";
            let kind = if is_incomplete { "response.incomplete" } else { "response.completed" };
            self.write(json!({ "type": kind, "response": response }), out);
        }
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        let response = self.object("failed", None, Some(error));
        self.write(json!({ "type": "response.failed", "response": response }), out);
    }
}
