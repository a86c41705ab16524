//! Texts of a request, each as a string or as tokens: prompts, and what is to be embedded.

use serde_json::Value;

use super::generation::token_id;
use crate::error::ApiError;
use crate::fields::{too_many, wrong};

/// A text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Text(String),
    Ids(Vec<u32>),
}

/// `"text"`, `["text", …]`, `[1, 2, …]` or `[[1, 2, …], …]`.
pub(crate) fn inputs(value: Value, param: &str, most: usize) -> Result<Vec<Input>, ApiError> {
    let list = match value {
        Value::String(text) => return Ok(vec![Input::Text(text)]),
        Value::Array(list) => list,
        other => return Err(wrong(param, "a string or a list", &other)),
    };
    if list.is_empty() {
        return Err(ApiError::field(param, format!("`{param}` is empty.")));
    }
    if list.iter().all(Value::is_number) {
        return Ok(vec![Input::Ids(ids(&list, param)?)]);
    }
    if list.len() > most {
        return Err(too_many(param, list.len(), most));
    }
    let input = |value| match value {
        Value::String(text) => Ok(Input::Text(text)),
        Value::Array(list) => Ok(Input::Ids(ids(&list, param)?)),
        other => Err(wrong(param, "a list of strings, or of lists of tokens", &other)),
    };
    list.into_iter().map(input).collect()
}

/// The numbers of tokens.
pub(crate) fn ids(list: &[Value], param: &str) -> Result<Vec<u32>, ApiError> {
    list.iter().map(|value| token_id(value, param)).collect()
}
