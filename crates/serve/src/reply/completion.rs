//! Answers of `/v1/completions`, as a whole and as a stream.

use serde_json::{Map, Value, json};

use super::head::{Head, timings, usage};
use super::logprobs::OfCompletion;
use super::stream::{Wire, data, done};
use crate::delta::{Delta, Finish};
use crate::error::ApiError;
use crate::events::Token;
use crate::run::Run;
use crate::text::sections::Part;

/// How the answers are written.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    /// The text of each prompt, where it stands before the answer.
    pub(crate) echoes: Option<Vec<String>>,
    /// How many answers each prompt has, and how many of them are shown: those that the model finds the likeliest.
    pub(crate) n_answers: usize,
    pub(crate) n_shown: usize,
    pub(crate) n_choices: usize,
    pub(crate) has_logprobs: bool,
    pub(crate) includes_usage: bool,
}

impl Form {
    /// What stands before an answer.
    fn echo(&self, choice: usize) -> String {
        let of = |echoes: &Vec<String>| echoes.get(choice / self.n_answers.max(1)).cloned();
        self.echoes.as_ref().and_then(of).unwrap_or_default()
    }
}

fn text_of(parts: Vec<Part>) -> String {
    // A completion has no marks: everything is text.
    parts.into_iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None }).collect()
}

fn choice(index: usize, text: String, logprobs: Value, finish: Option<Finish>) -> Value {
    json!({ "text": text, "index": index, "logprobs": logprobs, "finish_reason": finish.map(Finish::name) })
}

/// The answers as a whole.
pub(crate) async fn whole(mut run: Run, head: Head, form: Form) -> Result<Value, ApiError> {
    let mut answers: Vec<(String, Vec<Token>, Option<Finish>)> =
        (0..form.n_choices).map(|index| (form.echo(index), Vec::new(), None)).collect();
    let mut totals = None;
    let mut likely = vec![Likely::default(); form.n_choices];
    while let Some(delta) = run.next().await? {
        totals = totals.or(delta.totals);
        let Some((text, tokens, finish)) = answers.get_mut(delta.choice) else { continue };
        delta.tokens.iter().for_each(|token| likely[delta.choice].add(token));
        *text += &text_of(delta.parts);
        tokens.extend(delta.prompt);
        tokens.extend(delta.tokens);
        *finish = finish.or(delta.finish);
    }
    let totals = totals.unwrap_or_default();
    let answers = best(answers, &likely, &form);
    let choices = answers.into_iter().enumerate().map(|(index, (text, tokens, finish))| {
        let logprobs = if form.has_logprobs { OfCompletion::default().lists(&tokens) } else { Value::Null };
        choice(index, text, logprobs, finish)
    });
    let mut reply = head.fields();
    reply.insert("choices".to_owned(), choices.collect());
    reply.insert("usage".to_owned(), usage(&totals));
    reply.insert("timings".to_owned(), timings(&totals));
    Ok(Value::Object(reply))
}

/// How likely the model finds an answer.
#[derive(Clone, Copy, Debug, Default)]
struct Likely {
    logprob: f64,
    n_tokens: usize,
}

impl Likely {
    fn add(&mut self, token: &Token) {
        self.logprob += f64::from(token.logprob.unwrap_or(0.0));
        self.n_tokens += 1;
    }

    /// For a token, so that long answers are not worse.
    fn mean(self) -> f64 {
        self.logprob / self.n_tokens.max(1) as f64
    }
}

/// Of the answers to each prompt those that are shown, the likeliest first; all in their order where all are shown.
fn best<T>(answers: Vec<T>, likely: &[Likely], form: &Form) -> Vec<T> {
    if form.n_shown >= form.n_answers {
        return answers;
    }
    let mut answers: Vec<Option<T>> = answers.into_iter().map(Some).collect();
    let mut shown = Vec::new();
    for first in (0..answers.len()).step_by(form.n_answers.max(1)) {
        let mut own: Vec<usize> = (first..answers.len().min(first + form.n_answers)).collect();
        own.sort_by(|a, b| likely[*b].mean().total_cmp(&likely[*a].mean()));
        shown.extend(own.into_iter().take(form.n_shown).filter_map(|at| answers[at].take()));
    }
    shown
}

/// The pieces of the answers.
pub(crate) struct CompletionStream {
    head: Map<String, Value>,
    form: Form,
    logprobs: Vec<OfCompletion>,
}

impl CompletionStream {
    pub(crate) fn new(head: &Head, form: Form) -> CompletionStream {
        let logprobs = (0..form.n_choices).map(|_| OfCompletion::default()).collect();
        CompletionStream { head: head.fields(), form, logprobs }
    }

    fn chunk(&self, choices: Value) -> Map<String, Value> {
        let mut chunk = self.head.clone();
        chunk.insert("choices".to_owned(), choices);
        if self.form.includes_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        chunk
    }
}

impl Wire for CompletionStream {
    fn begin(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.form.n_choices {
            let echo = self.form.echo(index);
            if !echo.is_empty() {
                data(&Value::Object(self.chunk(json!([choice(index, echo, Value::Null, None)]))), out);
            }
        }
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<u8>) {
        let index = delta.choice;
        let tokens: Vec<Token> = delta.prompt.into_iter().chain(delta.tokens).collect();
        let text = text_of(delta.parts);
        let has_tokens = self.form.has_logprobs && !tokens.is_empty();
        if has_tokens || !text.is_empty() || delta.finish.is_some() {
            let lists = match self.logprobs.get_mut(index).filter(|_| has_tokens) {
                Some(logprobs) => logprobs.lists(&tokens),
                None => Value::Null,
            };
            let mut chunk = self.chunk(json!([choice(index, text, lists, delta.finish)]));
            if let Some(totals) = delta.totals.filter(|_| !self.form.includes_usage) {
                chunk.insert("timings".to_owned(), timings(&totals));
            }
            data(&Value::Object(chunk), out);
        }
        if let Some(totals) = delta.totals {
            if self.form.includes_usage {
                let mut chunk = self.chunk(json!([]));
                chunk.insert("usage".to_owned(), usage(&totals));
                chunk.insert("timings".to_owned(), timings(&totals));
                data(&Value::Object(chunk), out);
            }
            done(out);
        }
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        data(&error.body(), out);
    }
}
