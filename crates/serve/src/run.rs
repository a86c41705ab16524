//! The sequences of one request, from their submission to the end of the last one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::backend::{AnswerFormat, Model, Request, Sampling};
use crate::conversation::{Call, Tool};
use crate::delta::{Delta, Totals};
use crate::error::ApiError;
use crate::events::{Event, EventReceiver, EventSender, StopReason, Timings, channel};
use crate::form::ReadForm;
use crate::sequence::Sequence;
use crate::state::{Phase, Shared};
use crate::text::answer::Answer;
use crate::text::sections::Part;

/// What sequences a request wants, and what of them it wants to see.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) model: Model,
    /// Each of them has the same number of answers.
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) n_answers: usize,
    pub(crate) sampling: Sampling,
    /// That of the first answer; the next ones count on.
    pub(crate) seed: u64,
    /// Less where the context ends before.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stops: Vec<String>,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) ignores_eos: bool,
    pub(crate) logprobs: Option<usize>,
    pub(crate) prompt_logprobs: Option<usize>,
    /// What each answer has to be.
    pub(crate) form: Option<ReadForm>,
    pub(crate) format: AnswerFormat,
    pub(crate) tools: Vec<Tool>,
    /// Whether an answer ends behind its first call.
    pub(crate) ends_after_call: bool,
}

/// The sequences of a request. Dropping it cancels those that have not ended.
pub(crate) struct Run {
    shared: Arc<Shared>,
    model: String,
    tools: Vec<Tool>,
    ends_after_call: bool,
    events: EventReceiver,
    sequences: Vec<Sequence>,
    /// How many tokens each prompt has, and how many answers it gets.
    prompt_lengths: Vec<usize>,
    n_answers: usize,
    n_open: usize,
    has_started: bool,
    /// Ends with the reason when there is no time left.
    watch: Pin<Box<dyn Future<Output = ApiError> + Send>>,
}

impl Run {
    /// Submits all sequences.
    pub(crate) fn start(shared: &Arc<Shared>, plan: Plan) -> Result<Run, ApiError> {
        let context_length = plan.model.context_length;
        for ids in &plan.prompts {
            check_length(ids, context_length)?;
        }
        let room = |ids: &[u32]| plan.max_tokens.unwrap_or(usize::MAX).min(context_length - ids.len());
        let n_sequences = plan.prompts.len() * plan.n_answers;
        let max_tokens = plan.prompts.iter().map(|ids| room(ids)).max().unwrap_or(0);
        let (senders, events) = channel(n_sequences, max_tokens);
        let keeps_tokens = plan.logprobs.is_some();
        let answer = || Answer::new(plan.format.clone(), plan.stops.clone(), keeps_tokens);
        let waiting = {
            let (ends, wait_time) = (shared.reaches(Phase::Draining), shared.options.limits.wait_time);
            async move {
                tokio::select! {
                    () = ends => ApiError::unavailable("The server is ending."),
                    () = sleep(wait_time) => ApiError::unavailable("The request has waited too long for its turn."),
                }
            }
        };
        let mut run = Run {
            shared: Arc::clone(shared),
            sequences: (0..n_sequences).map(|_| Sequence::new(answer())).collect(),
            prompt_lengths: plan.prompts.iter().map(Vec::len).collect(),
            n_answers: plan.n_answers,
            n_open: n_sequences,
            events,
            has_started: false,
            watch: Box::pin(waiting),
            model: plan.model.name.clone(),
            tools: plan.tools.clone(),
            ends_after_call: plan.ends_after_call,
        };
        match run.submit(&plan, senders, room) {
            Ok(()) => {
                shared.metrics.begun();
                Ok(run)
            }
            Err(error) => {
                run.n_open = 0;
                Err(error)
            }
        }
    }

    fn submit(
        &self,
        plan: &Plan,
        senders: Vec<EventSender>,
        room: impl Fn(&[u32]) -> usize,
    ) -> Result<(), ApiError> {
        for (choice, sender) in senders.into_iter().enumerate() {
            let ids = &plan.prompts[choice / plan.n_answers];
            let request = Request {
                model: plan.model.name.clone(),
                ids: ids.clone(),
                sampling: plan.sampling.clone(),
                seed: plan.seed.wrapping_add(choice as u64),
                max_tokens: room(ids),
                stop_ids: plan.stop_ids.clone(),
                ignores_eos: plan.ignores_eos,
                logprobs: plan.logprobs,
                prompt_logprobs: plan.prompt_logprobs,
                form: plan.form.clone(),
            };
            self.shared.backend.submit(request, sender)?;
        }
        Ok(())
    }

    /// How many tokens the prompts have.
    pub(crate) fn n_prompt_tokens(&self) -> usize {
        self.prompt_lengths.iter().sum()
    }

    /// What is new; `None` behind the end. Sequences of one request come as they are computed.
    pub(crate) async fn next(&mut self) -> Result<Option<Delta>, ApiError> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Run::next`], for a future that is written by hand.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delta>, ApiError>> {
        if self.n_open == 0 {
            return Poll::Ready(Ok(None));
        }
        while let Poll::Ready(event) = self.events.poll_next(context) {
            let Some((choice, event)) = event else {
                return Poll::Ready(Err(
                    self.fail(ApiError::failed("The sequences ended without an answer."))
                ));
            };
            if let Some(delta) = self.take(choice, event).transpose() {
                return Poll::Ready(delta.map(Some));
            }
        }
        match self.watch.as_mut().poll(context) {
            Poll::Ready(error) => Poll::Ready(Err(self.fail(error))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.n_open = 0;
        self.shared.metrics.failed();
        error
    }

    /// What an event shows; nothing, where it is held back.
    fn take(&mut self, choice: usize, event: Event) -> Result<Option<Delta>, ApiError> {
        let is_start = !self.has_started;
        if is_start && !matches!(event, Event::Refused(_) | Event::Failed(_)) {
            self.has_started = true;
            let over = self.shared.reaches(Phase::Over);
            self.watch = Box::pin(async move {
                over.await;
                ApiError::unavailable("The server is ending.")
            });
        }
        let Some(sequence) = self.sequences.get_mut(choice).filter(|sequence| !sequence.is_over) else {
            return Ok(None);
        };
        let mut delta = Delta { choice, ..Delta::default() };
        let (shared, model, tools) = (&self.shared, &self.model, &self.tools);
        let find_calls = |text: &str| find_calls(shared, model, tools, text);
        match event {
            Event::Started => {
                sequence.begin = Instant::now();
                return Ok(is_start.then_some(delta));
            }
            Event::Refused(message) => {
                return Err(self.fail(ApiError::invalid(format!("There is no such answer: {message}"))));
            }
            Event::Failed(message) => {
                return Err(self.fail(ApiError::failed(format!("The model could not answer: {message}"))));
            }
            Event::Prompt(tokens) => delta.prompt = tokens,
            Event::Token(token) => {
                let now = Instant::now();
                sequence.first_token.get_or_insert(now);
                sequence.last_token = Some(now);
                shared.metrics.predicted();
                delta.show(sequence.answer.push(token, &find_calls));
                let is_called = self.ends_after_call && sequence.answer.n_calls > 0;
                if sequence.answer.stop().is_some() || is_called {
                    if !is_called {
                        delta.show(sequence.answer.finish(&find_calls));
                    }
                    self.events.cancel(choice);
                    sequence.end(None);
                    delta.finish = Some(sequence.finish(StopReason::Stop));
                }
            }
            Event::Finished(finished) => {
                delta.show(sequence.answer.finish(&find_calls));
                sequence.end(Some(finished));
                delta.finish = Some(sequence.finish(finished.reason));
            }
        }
        if self.ends_after_call {
            keep_first_call(&mut delta.parts);
        }
        if delta.finish.is_some() {
            delta.stop = sequence.answer.stop().map(str::to_owned);
            shared.metrics.took(sequence.timings);
            self.n_open -= 1;
            if self.n_open == 0 {
                let totals = self.totals();
                self.shared.metrics.prompt(totals.n_prompt_tokens, totals.n_cached_tokens);
                delta.totals = Some(totals);
            }
        }
        let is_empty = delta == Delta { choice, ..Delta::default() };
        Ok((!is_empty || is_start).then_some(delta))
    }

    fn totals(&self) -> Totals {
        let firsts = self.sequences.iter().step_by(self.n_answers.max(1));
        let all = |n: fn(&Answer) -> usize| self.sequences.iter().map(|sequence| n(&sequence.answer)).sum();
        let longest = |time: fn(&Timings) -> Duration| {
            self.sequences.iter().map(|sequence| time(&sequence.timings)).max().unwrap_or_default()
        };
        Totals {
            n_prompt_tokens: self.n_prompt_tokens(),
            n_cached_tokens: firsts.map(|sequence| sequence.n_cached_tokens).sum(),
            n_answer_tokens: all(|answer| answer.n_tokens),
            n_thought_tokens: all(|answer| answer.n_thought_tokens),
            prompt_time: longest(|timings| timings.prompt),
            answer_time: longest(|timings| timings.predicted),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.n_open > 0 {
            self.shared.metrics.canceled();
        }
    }
}

/// Whether a prompt leaves room for an answer.
pub(crate) fn check_length(ids: &[u32], context_length: usize) -> Result<(), ApiError> {
    if ids.is_empty() {
        return Err(ApiError::invalid(
            "The prompt is empty: it has no token that the model could go on from.",
        ));
    }
    match ids.len() < context_length {
        true => Ok(()),
        false => {
            let n_prompt_tokens = ids.len();
            Err(crate::backend::Refusal::TooLong { n_prompt_tokens, context_length }.into())
        }
    }
}

/// The calls in a part of an answer. Arguments that are no JSON make it text.
fn find_calls(shared: &Shared, model: &str, tools: &[Tool], text: &str) -> Option<Vec<Call>> {
    let calls = shared.backend.calls(model, text, tools)?;
    let is_json = |call: &Call| serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_ok();
    calls.iter().all(is_json).then_some(calls)
}

/// Leaves nothing behind the first call.
fn keep_first_call(parts: &mut Vec<Part>) {
    let first = parts.iter().position(|part| matches!(part, Part::Calls(_)));
    if let Some(at) = first {
        parts.truncate(at + 1);
        if let Some(Part::Calls(calls)) = parts.last_mut() {
            calls.truncate(1);
        }
    }
}
