//! Answers of `/v1/chat/completions`, as a whole and as a stream.

use serde_json::{Map, Value, json};

use super::head::{Head, timings, usage};
use super::logprobs;
use super::stream::{Wire, data, done};
use crate::conversation::Call;
use crate::delta::{Delta, Finish};
use crate::error::ApiError;
use crate::events::Token;
use crate::ids;
use crate::run::Run;
use crate::text::sections::Part;

/// One answer as it is collected.
#[derive(Debug, Default)]
struct Collected {
    text: String,
    thoughts: String,
    calls: Vec<Call>,
    tokens: Vec<Token>,
    finish: Option<Finish>,
}

/// The answers as a whole.
pub(crate) async fn whole(
    mut run: Run,
    head: Head,
    n_answers: usize,
    has_logprobs: bool,
) -> Result<Value, ApiError> {
    let mut answers: Vec<Collected> = Vec::new();
    answers.resize_with(n_answers, Collected::default);
    let mut totals = None;
    while let Some(delta) = run.next().await? {
        totals = totals.or(delta.totals);
        let Some(answer) = answers.get_mut(delta.choice) else { continue };
        answer.finish = answer.finish.or(delta.finish);
        answer.tokens.extend(delta.tokens);
        for part in delta.parts {
            match part {
                Part::Text(text) => answer.text += &text,
                Part::Thought(text) => answer.thoughts += &text,
                Part::Calls(calls) => answer.calls.extend(calls),
            }
        }
    }
    let totals = totals.unwrap_or_default();
    let choices = answers.into_iter().enumerate().map(|(index, answer)| {
        let logprobs = if has_logprobs { logprobs::of_chat(&answer.tokens) } else { Value::Null };
        let finish = answer.finish.unwrap_or(Finish::Stop).name();
        json!({ "index": index, "message": message(answer), "logprobs": logprobs, "finish_reason": finish })
    });
    let mut reply = head.fields();
    reply.insert("choices".to_owned(), choices.collect());
    reply.insert("usage".to_owned(), usage(&totals));
    reply.insert("timings".to_owned(), timings(&totals));
    Ok(Value::Object(reply))
}

fn message(answer: Collected) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    let is_calls_alone = answer.text.is_empty() && !answer.calls.is_empty();
    message.insert("content".to_owned(), if is_calls_alone { Value::Null } else { json!(answer.text) });
    message.insert("refusal".to_owned(), Value::Null);
    if !answer.thoughts.is_empty() {
        message.insert("reasoning_content".to_owned(), json!(answer.thoughts));
    }
    if !answer.calls.is_empty() {
        let calls = answer.calls.into_iter().map(|call| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": ids::name("call_"), "type": "function", "function": function })
        });
        message.insert("tool_calls".to_owned(), calls.collect());
    }
    Value::Object(message)
}

/// The pieces of the answers.
pub(crate) struct ChatStream {
    head: Map<String, Value>,
    includes_usage: bool,
    has_logprobs: bool,
    /// How many calls each answer has had.
    n_calls: Vec<usize>,
}

impl ChatStream {
    pub(crate) fn new(head: &Head, n_answers: usize, includes_usage: bool, has_logprobs: bool) -> ChatStream {
        ChatStream { head: head.fields(), includes_usage, has_logprobs, n_calls: vec![0; n_answers] }
    }

    fn chunk(&self, choices: Value) -> Map<String, Value> {
        let mut chunk = self.head.clone();
        chunk.insert("choices".to_owned(), choices);
        if self.includes_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        chunk
    }

    /// A piece of one answer, which has the tokens that have not been written yet.
    fn piece(
        &self,
        choice: usize,
        delta: Value,
        tokens: &mut Vec<Token>,
        finish: Option<Finish>,
    ) -> Map<String, Value> {
        let logprobs = match self.has_logprobs && !tokens.is_empty() {
            true => logprobs::of_chat(&std::mem::take(tokens)),
            false => Value::Null,
        };
        self.chunk(json!([{
            "index": choice,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish.map(Finish::name),
        }]))
    }
}

impl Wire for ChatStream {
    fn begin(&mut self, out: &mut Vec<u8>) {
        for choice in 0..self.n_calls.len() {
            let delta = json!({ "role": "assistant", "content": "" });
            data(&Value::Object(self.piece(choice, delta, &mut Vec::new(), None)), out);
        }
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<u8>) {
        let Delta { choice, parts, mut tokens, finish, totals, .. } = delta;
        let mut write = |chunk| data(&Value::Object(chunk), out);
        for part in parts {
            match part {
                Part::Text(text) => write(self.piece(choice, json!({ "content": text }), &mut tokens, None)),
                Part::Thought(text) => {
                    write(self.piece(choice, json!({ "reasoning_content": text }), &mut tokens, None));
                }
                Part::Calls(calls) => {
                    for call in calls {
                        let index = self.n_calls.get(choice).copied().unwrap_or(0);
                        let begin = json!({ "tool_calls": [{
                            "index": index,
                            "id": ids::name("call_"),
                            "type": "function",
                            "function": { "name": call.name, "arguments": "" },
                        }] });
                        write(self.piece(choice, begin, &mut tokens, None));
                        let rest = json!({ "tool_calls": [{
                            "index": index,
                            "function": { "arguments": call.arguments },
                        }] });
                        write(self.piece(choice, rest, &mut tokens, None));
                        if let Some(n_calls) = self.n_calls.get_mut(choice) {
                            *n_calls += 1;
                        }
                    }
                }
            }
        }
        if finish.is_some() {
            let mut last = self.piece(choice, json!({}), &mut tokens, finish);
            if let Some(totals) = totals.filter(|_| !self.includes_usage) {
                last.insert("timings".to_owned(), timings(&totals));
            }
            write(last);
        } else if !tokens.is_empty() && self.has_logprobs {
            // Tokens whose text a mark holds back.
            write(self.piece(choice, json!({ "content": "" }), &mut tokens, None));
        }
        if let Some(totals) = totals {
            if self.includes_usage {
                let mut chunk = self.chunk(json!([]));
                chunk.insert("usage".to_owned(), usage(&totals));
                chunk.insert("timings".to_owned(), timings(&totals));
                write(chunk);
            }
            done(out);
        }
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        data(&error.body(), out);
    }
}
