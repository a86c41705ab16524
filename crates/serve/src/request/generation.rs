//! The fields that chats and completions have in common: how tokens are drawn, and where answers end.

use super::form::{Wanted, text_form};
use crate::backend::{Model, Sampling};
use crate::error::ApiError;
use crate::fields::{self, Fields, too_many};
use crate::form::TextForm;
use crate::ids;
use crate::options::Limits;

/// How answers are made.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) n_answers: usize,
    pub(crate) sampling: Sampling,
    pub(crate) seed: u64,
    pub(crate) stops: Vec<String>,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) ignores_eos: bool,
    pub(crate) streams: Option<bool>,
    pub(crate) includes_usage: bool,
    /// What the text of an answer has to be.
    pub(crate) text: Option<Wanted<TextForm>>,
}

/// Each of these fields wants another answer than can be given.
const UNSUPPORTED: [&str; 3] = ["audio", "functions", "web_search_options"];

/// The most tokens whose logits a request changes.
const MOST_BIASES: usize = 1024;

impl Generation {
    pub(crate) fn read(fields: &mut Fields, model: &Model, limits: &Limits) -> Result<Generation, ApiError> {
        for name in UNSUPPORTED {
            if fields.take(name).is_some_and(|value| value != serde_json::json!([])) {
                return Err(ApiError::unsupported(name, format!("`{name}` is not supported.")));
            }
        }
        let text = text_form(fields)?;
        let n_choices = i64::try_from(limits.n_choices).unwrap_or(i64::MAX);
        let mut options = fields.fields("stream_options")?;
        let includes_usage = options.as_mut().map(|options| options.boolean("include_usage")).transpose()?;
        Ok(Generation {
            n_answers: fields.integer("n", 1..=n_choices)?.map_or(1, |n| usize::try_from(n).unwrap_or(1)),
            sampling: sampling(fields, &model.sampling)?,
            seed: seed(fields)?,
            stops: stops(fields, limits)?,
            stop_ids: stop_ids(fields, limits)?,
            ignores_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            streams: fields.boolean("stream")?,
            includes_usage: includes_usage.flatten().unwrap_or(false),
            text,
        })
    }
}

fn sampling(fields: &mut Fields, defaults: &Sampling) -> Result<Sampling, ApiError> {
    let mut sampling = defaults.clone();
    let mut set = |name: &str, range, to: &mut f32| -> Result<(), ApiError> {
        if let Some(value) = fields.number(name, range)? {
            *to = value as f32;
        }
        Ok(())
    };
    set("temperature", 0.0..=2.0, &mut sampling.temperature)?;
    set("top_p", 0.0..=1.0, &mut sampling.top_p)?;
    set("min_p", 0.0..=1.0, &mut sampling.min_p)?;
    set("presence_penalty", -2.0..=2.0, &mut sampling.presence_penalty)?;
    set("frequency_penalty", -2.0..=2.0, &mut sampling.frequency_penalty)?;
    // The name in llama.cpp, then that in transformers and vLLM.
    set("repeat_penalty", 0.01..=100.0, &mut sampling.repetition_penalty)?;
    set("repetition_penalty", 0.01..=100.0, &mut sampling.repetition_penalty)?;
    if let Some(n) = fields.integer("top_k", -1..=i64::from(i32::MAX))? {
        sampling.top_k = usize::try_from(n).unwrap_or(0);
    }
    if fields.boolean("do_sample")? == Some(false) {
        sampling.temperature = 0.0;
    }
    // The likeliest token alone has any probability, however small.
    if sampling.top_p <= 0.0 {
        (sampling.top_p, sampling.top_k) = (1.0, 1);
    }
    // A token that is as likely as the likeliest stays.
    if sampling.min_p >= 1.0 {
        (sampling.min_p, sampling.top_k) = (0.0, 1);
    }
    if let Some(biases) = fields.fields("logit_bias")? {
        sampling.logit_bias = logit_bias(biases)?;
    }
    Ok(sampling)
}

fn logit_bias(biases: Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let object = biases.into_object();
    if object.len() > MOST_BIASES {
        return Err(too_many("logit_bias", object.len(), MOST_BIASES));
    }
    let mut biases = Vec::with_capacity(object.len());
    for (id, value) in object {
        let id: u32 = id.parse().map_err(|_| {
            let message = "`logit_bias` has the numbers of tokens as its keys.";
            ApiError::field("logit_bias", message)
        })?;
        biases.push((id, fields::number(&value, "logit_bias", -100.0..=100.0)? as f32));
    }
    biases.sort_by_key(|(id, _)| *id);
    // `1` and `01` name the same token; the last one counts, as of equal keys.
    biases.reverse();
    biases.dedup_by_key(|(id, _)| *id);
    biases.reverse();
    Ok(biases)
}

/// The seed of the request, or one that nobody has asked for.
fn seed(fields: &mut Fields) -> Result<u64, ApiError> {
    let Some(value) = fields.take("seed") else { return Ok(ids::fresh()) };
    if let Some(seed) = value.as_u64() {
        return Ok(seed);
    }
    // llama.cpp's clients write -1 for no seed.
    match fields::integer(&value, "seed", i64::MIN..=i64::MAX)? {
        -1 => Ok(ids::fresh()),
        seed => Ok(seed.cast_unsigned()),
    }
}

fn stops(fields: &mut Fields, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(serde_json::Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    if stops.len() > limits.n_stops {
        return Err(too_many("stop", stops.len(), limits.n_stops));
    }
    let text = |stop: serde_json::Value| match stop {
        serde_json::Value::String(stop) if stop.len() <= limits.stop_bytes => Ok(stop),
        serde_json::Value::String(_) => {
            let message = format!("A string of `stop` has at most {} bytes.", limits.stop_bytes);
            Err(ApiError::field("stop", message))
        }
        other => Err(fields::wrong("stop", "a string or a list of strings", &other)),
    };
    stops.into_iter().map(text).collect()
}

fn stop_ids(fields: &mut Fields, limits: &Limits) -> Result<Vec<u32>, ApiError> {
    let ids = fields.list("stop_token_ids")?.unwrap_or_default();
    if ids.len() > limits.n_stops {
        return Err(too_many("stop_token_ids", ids.len(), limits.n_stops));
    }
    ids.iter().map(|id| token_id(id, "stop_token_ids")).collect()
}

/// The number of a token.
pub(crate) fn token_id(value: &serde_json::Value, param: &str) -> Result<u32, ApiError> {
    let id = fields::integer(value, param, 0..=i64::from(u32::MAX))?;
    // The range has been checked.
    Ok(u32::try_from(id).unwrap_or(u32::MAX))
}

/// The most tokens of an answer: the first of these names that there is counts, and −1 says nothing.
pub(crate) fn max_tokens(
    fields: &mut Fields,
    names: &[&'static str],
    least: i64,
) -> Result<Option<usize>, ApiError> {
    let Some((name, value)) = fields.take_any(names) else { return Ok(None) };
    match fields::integer(&value, name, -1..=i64::from(u32::MAX))? {
        -1 => Ok(None),
        n if n < least => Err(ApiError::field(name, format!("`{name}` is at least {least}."))),
        n => Ok(usize::try_from(n).ok()),
    }
}
