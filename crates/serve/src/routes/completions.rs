//! `/v1/completions`: the continuations of texts.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use crate::ask::{Opened, open};
use crate::backend::{AnswerFormat, Backend, Refusal};
use crate::error::{ApiError, json_response};
use crate::reply::completion::{CompletionStream, Form, whole};
use crate::reply::head::Head;
use crate::reply::stream;
use crate::request::completion::CompletionRequest;
use crate::request::form::{Wanted, form};
use crate::request::input::Input;
use crate::request::tools::Must;
use crate::run::{Plan, Run};
use crate::state::Shared;

pub(super) async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let options = &shared.options;
    let Opened { fields, asked_for, model, body } = open(&shared, request).await?;
    let mut completion = CompletionRequest::read(fields, &model, options)?;
    let (name, inputs, echoes) = (model.name.clone(), completion.prompts, completion.echoes);
    let wanted = form(completion.generation.text.take(), &[], Must::Nothing, false);
    let (prompts, read_form) = shared
        .compute(&body, move |backend| {
            let read = |form: Wanted<_>| form.read(backend, &name, &AnswerFormat::default());
            let form = wanted.map(read).transpose()?;
            let prompts = inputs.into_iter().map(|input| prompt(backend, &name, input, echoes));
            Ok((prompts.collect::<Result<Vec<_>, _>>()?, form))
        })
        .await?;
    drop(body);
    let (prompts, texts): (Vec<Vec<u32>>, Vec<String>) = prompts.into_iter().unzip();
    let generation = completion.generation;
    let streams = generation.streams.unwrap_or(false);
    let head = Head::new("cmpl-", "text_completion", &model, asked_for);
    let form = Form {
        echoes: echoes.then_some(texts),
        n_answers: completion.n_drawn,
        n_shown: generation.n_answers,
        n_choices: prompts.len() * completion.n_drawn,
        has_logprobs: completion.logprobs.is_some(),
        includes_usage: generation.includes_usage,
    };
    let plan = Plan {
        model,
        prompts,
        n_answers: completion.n_drawn,
        sampling: generation.sampling,
        seed: generation.seed,
        max_tokens: Some(completion.max_tokens),
        stops: generation.stops,
        stop_ids: generation.stop_ids,
        ignores_eos: generation.ignores_eos,
        // Answers are compared by them.
        logprobs: completion.logprobs.or((completion.n_drawn > generation.n_answers).then_some(0)),
        prompt_logprobs: completion.logprobs.filter(|_| echoes),
        form: read_form,
        format: AnswerFormat::default(),
        tools: Vec::new(),
        ends_after_call: false,
    };
    let run = Run::start(&shared, plan)?;
    if streams {
        let wire = CompletionStream::new(&head, form);
        return stream::respond(run, wire, options.limits.ping_time).await;
    }
    Ok(json_response(StatusCode::OK, &whole(run, head, form).await?))
}

/// The tokens of a prompt, and its text where it is repeated.
fn prompt(
    backend: &dyn Backend,
    model: &str,
    input: Input,
    echoes: bool,
) -> Result<(Vec<u32>, String), Refusal> {
    match input {
        Input::Text(text) => Ok((backend.tokenize(model, &text, true)?, text)),
        Input::Ids(ids) => {
            let bytes = if echoes { backend.detokenize(model, &ids)?.concat() } else { Vec::new() };
            Ok((ids, String::from_utf8_lossy(&bytes).into_owned()))
        }
    }
}
