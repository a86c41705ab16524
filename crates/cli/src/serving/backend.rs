//! What the server asks of its models, answered by their engines.

use std::sync::Arc;
use std::time::Duration;

use oarlock::data::{self, Tokenizer, tool_calls};
use oarlock::generate::engine::{self, Answer, Event, Failure, Metrics, Request};
use oarlock::generate::{self, Grammar, Stop};
use oarlock_serve::{
    Alternative, AnswerFormat, Backend, Call, Canceled, Conversation, EventSender, Finished, Form, Model,
    Numbers, Prompt, ReadForm, Refusal, StopReason, Timings, Token, Tool,
};

use super::served::Served;
use super::{forms, prompts};

/// How often an answer that has nothing to say is looked at for whether somebody still waits.
const TICK: Duration = Duration::from_millis(50);

/// All models of a server.
pub struct Models(Arc<Vec<Served>>);

impl Models {
    pub fn new(models: Vec<Served>) -> Models {
        Models(Arc::new(models))
    }

    fn index_of(&self, name: &str) -> Result<usize, Refusal> {
        let found = self.0.iter().position(|served| served.name() == name);
        found.ok_or_else(|| Refusal::Failed(format!("there is no model {name:?}")))
    }

    fn of(&self, name: &str) -> Result<&Served, Refusal> {
        Ok(&self.0[self.index_of(name)?])
    }
}

fn failed(error: impl std::fmt::Display) -> Refusal {
    Refusal::Failed(error.to_string())
}

/// The tokens of a text. A tokenizer that serves has been read, so it is the text that it can do nothing with. Where its file
/// lies is nobody's business.
fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Refusal> {
    tokenizer.encode(text).map_err(|error| {
        let cause = match error {
            data::Error::Tokenizer { cause, .. } => cause,
            other => other.to_string(),
        };
        Refusal::Invalid {
            message: format!("the tokenizer has no tokens for this text: {cause}"),
            param: None,
        }
    })
}

impl Backend for Models {
    fn models(&self) -> Vec<Model> {
        self.0.iter().map(Served::described).collect()
    }

    fn render(&self, model: &str, conversation: &Conversation) -> Result<Prompt, Refusal> {
        let served = self.of(model)?;
        let Some(template) = &served.template else {
            return Err(Refusal::Unsupported(format!(
                "the model {model:?} has no chat template, as it was only pretrained; /v1/completions continues texts"
            )));
        };
        let text = prompts::text(template, conversation)?;
        let ids = encode(&served.tokenizer, &text)?;
        let format = prompts::answer_format(template, &text);
        Ok(Prompt { ids, text, format })
    }

    fn tokenize(&self, model: &str, text: &str, adds_special: bool) -> Result<Vec<u32>, Refusal> {
        let tokenizer = &self.of(model)?.tokenizer;
        let begin = if adds_special { tokenizer.begins_texts().map_err(failed)? } else { None };
        let ids = encode(tokenizer, text)?;
        Ok(begin.filter(|begin| ids.first() != Some(begin)).into_iter().chain(ids).collect())
    }

    fn detokenize(&self, model: &str, ids: &[u32]) -> Result<Vec<Vec<u8>>, Refusal> {
        let tokenizer = &self.of(model)?.tokenizer;
        let bytes = |(at, id): (usize, &u32)| {
            tokenizer.token_bytes(*id, at == 0).map_err(failed)?.ok_or_else(|| Refusal::Invalid {
                message: format!("there is no token {id}"),
                param: Some("tokens".to_owned()),
            })
        };
        ids.iter().enumerate().map(bytes).collect()
    }

    fn calls(&self, _: &str, text: &str, tools: &[Tool]) -> Option<Vec<Call>> {
        let names: Vec<String> = tools.iter().map(|tool| tool.name.clone()).collect();
        let (_, calls) = tool_calls(text, &names)?;
        let call = |call: &data::ToolCall| Call {
            id: None,
            name: call.name.clone(),
            arguments: call.arguments.to_string(),
        };
        Some(calls.iter().map(call).collect())
    }

    fn read_form(&self, model: &str, form: &Form, format: &AnswerFormat) -> Result<ReadForm, Refusal> {
        let vocabulary =
            self.of(model)?.vocabulary().map_err(|problem| Refusal::Unsupported(problem.clone()))?;
        let wrong = |error: oarlock::Error| Refusal::Invalid { message: error.to_string(), param: None };
        vocabulary.grammar(forms::rules(form, format)).map(ReadForm::new).map_err(wrong)
    }

    fn submit(&self, request: oarlock_serve::Request, events: EventSender) -> Result<(), Refusal> {
        let index = self.index_of(&request.model)?;
        let served = &self.0[index];
        let answer = served.engine.submit(asked(served, request)).map_err(refusal)?;
        let models = Arc::clone(&self.0);
        // The engine waits for nobody, so each answer has a thread that hands it over.
        let hand_over = move || forward(answer, events, &models[index]);
        std::thread::Builder::new().name("answer".to_owned()).spawn(hand_over).map(drop).map_err(failed)
    }

    fn numbers(&self) -> Numbers {
        // Adapters beside the weights have the engine of their model.
        let is_first =
            |at: &usize| !self.0[..*at].iter().any(|other| Arc::ptr_eq(&other.engine, &self.0[*at].engine));
        let engines = (0..self.0.len()).filter(is_first);
        let all: Vec<Metrics> = engines.map(|at| self.0[at].engine.metrics()).collect();
        let sum = |of: fn(&Metrics) -> usize| all.iter().map(of).sum::<usize>();
        let count = |of: fn(&Metrics) -> u64| all.iter().map(of).sum::<u64>();
        let most = sum(|metrics| metrics.max_cache_bytes).max(1);
        Numbers {
            n_running: sum(|metrics| metrics.n_running),
            n_waiting: sum(|metrics| metrics.n_waiting),
            cache_usage: sum(|metrics| metrics.cache_bytes) as f64 / most as f64,
            prefix_bytes: sum(|metrics| metrics.prefix_bytes),
            n_draft_tokens: count(|metrics| metrics.n_draft_tokens),
            n_accepted_tokens: count(|metrics| metrics.n_accepted_tokens),
        }
    }
}

/// A request as the engine takes it.
fn asked(served: &Served, request: oarlock_serve::Request) -> Request {
    let mut stop_ids = request.stop_ids;
    let grammar = request.form.as_ref().and_then(ReadForm::get::<Grammar>);
    // An answer that has got its form has nothing to go on with.
    if !request.ignores_eos || grammar.is_some() {
        stop_ids.extend(&served.stop_ids);
    }
    let oarlock_serve::Sampling { logit_bias, .. } = request.sampling;
    Request {
        sampling: generate::Sampling {
            temperature: request.sampling.temperature,
            top_k: request.sampling.top_k,
            top_p: request.sampling.top_p,
            min_p: request.sampling.min_p,
            repetition_penalty: request.sampling.repetition_penalty,
            presence_penalty: request.sampling.presence_penalty,
            frequency_penalty: request.sampling.frequency_penalty,
            seed: request.seed,
        },
        adapter: served.adapter,
        logit_bias,
        constraint: grammar.map(Grammar::constraint),
        max_new_tokens: request.max_tokens,
        stop_ids,
        n_top_logprobs: request.logprobs,
        n_prompt_logprobs: request.prompt_logprobs,
        ..Request::new(request.ids)
    }
}

fn refusal(refusal: generate::Refusal) -> Refusal {
    let message = refusal.to_string();
    let invalid = |param: &str| Refusal::Invalid { message: message.clone(), param: Some(param.to_owned()) };
    match refusal {
        generate::Refusal::QueueFull { .. } => Refusal::QueueFull { retry_after_s: 1 },
        generate::Refusal::PromptTooLong { n_tokens, n_positions } => {
            Refusal::TooLong { n_prompt_tokens: n_tokens, context_length: n_positions }
        }
        generate::Refusal::PromptEmpty | generate::Refusal::UnknownToken { .. } => invalid("prompt"),
        generate::Refusal::Sampling(_) => Refusal::Invalid { message, param: None },
        _ => Refusal::Failed(message),
    }
}

/// Hands an answer over as it comes. Dropping it tells the engine that nobody waits.
fn forward(mut answer: Answer, mut events: EventSender, served: &Served) {
    let mut is_first = true;
    while !answer.is_over() && !events.is_canceled() {
        let Some(event) = answer.next_within(TICK) else { continue };
        if hand(event, &mut events, served, &mut is_first).is_err() {
            return;
        }
    }
}

fn hand(
    event: Event,
    events: &mut EventSender,
    served: &Served,
    is_first: &mut bool,
) -> Result<(), Canceled> {
    let event = match event {
        Event::Prompt(tokens) => {
            let spelled = tokens.into_iter().enumerate().map(|(at, token)| spell(served, token, at == 0));
            oarlock_serve::Event::Prompt(spelled.collect())
        }
        Event::Token(token) => {
            let begins = std::mem::take(is_first);
            // Marks are not text, but for those that templates give a meaning in answers, which are not special.
            let is_special = served.tokenizer.is_special(token.id).unwrap_or(false);
            let mut spelled = spell(served, token, begins);
            if is_special {
                spelled.bytes.clear();
            }
            oarlock_serve::Event::Token(spelled)
        }
        Event::Finished(finished) => {
            let reason = match finished.stop {
                Stop::EndOfText => StopReason::Stop,
                Stop::MaxNewTokens | Stop::ModelLength | Stop::Caller => StopReason::Length,
            };
            let timings = Timings { prompt: finished.timings.prompt, predicted: finished.timings.answer };
            let end = Finished { reason, n_cached_tokens: finished.n_cached, timings: Some(timings) };
            oarlock_serve::Event::Finished(end)
        }
        Event::Failed(Failure::Request(problem)) => oarlock_serve::Event::Refused(problem),
        Event::Failed(failure) => oarlock_serve::Event::Failed(failure.to_string()),
    };
    events.send(event)
}

/// A token with its bytes, and those of the others in its place.
fn spell(served: &Served, token: engine::Token, begins: bool) -> Token {
    let bytes = |id: u32| served.tokenizer.token_bytes(id, begins).ok().flatten().unwrap_or_default();
    let other = |(id, logprob): &(u32, f32)| Alternative { id: *id, bytes: bytes(*id), logprob: *logprob };
    Token {
        id: token.id,
        bytes: bytes(token.id),
        logprob: token.logprob,
        top: token.top.iter().map(other).collect(),
    }
}
