//! What answers have to be: `response_format`, the fields of vLLM and llama.cpp that say the same, and functions whose
//! arguments have to be right.

use serde_json::{Value, json};

use super::tools::Must;
use crate::backend::{AnswerFormat, Backend, Refusal};
use crate::conversation::Tool;
use crate::error::{ApiError, excerpt};
use crate::fields::{Fields, too_many, wrong};
use crate::form::{CallForm, Form, ReadForm, Schema, TextForm};

/// The longest regular expression or grammar, and the length of all texts of a choice.
const MOST_BYTES: usize = 64 << 10;

/// The most texts that an answer is one of.
const MOST_CHOICES: usize = 1024;

/// Something that a field of a request wants.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted<T> {
    pub(crate) what: T,
    pub(crate) param: &'static str,
}

/// What the text of an answer has to be. One field says so at most.
pub(crate) fn text_form(fields: &mut Fields) -> Result<Option<Wanted<TextForm>>, ApiError> {
    let mut found: Vec<Wanted<TextForm>> = Vec::new();
    if let Some(format) = fields.fields("response_format")? {
        found.extend(of_format(format)?.map(|what| Wanted { what, param: "response_format" }));
    }
    let params = ["guided_json", "json_schema", "guided_regex", "guided_choice", "guided_grammar", "grammar"];
    for param in params {
        if let Some(value) = fields.take(param) {
            let name = match param {
                "json_schema" => "json",
                // llama.cpp takes an empty text for none.
                "grammar" if value == "" => continue,
                "grammar" => "gbnf",
                other => other.strip_prefix("guided_").unwrap_or(other),
            };
            found.push(Wanted { what: of_field(name, value, param)?, param });
        }
    }
    let param = "structured_outputs";
    if let Some(outputs) = fields.fields(param)? {
        for (name, value) in outputs.into_object() {
            let is_said = !value.is_null() && value != false;
            match name.as_str() {
                "json_object" if is_said => found.push(Wanted { what: any_object(), param }),
                "json" | "regex" | "choice" | "grammar" if is_said => {
                    found.push(Wanted { what: of_field(&name, value, param)?, param });
                }
                "structural_tag" if is_said => {
                    let name = fields.param("structured_outputs.structural_tag");
                    return Err(ApiError::unsupported(name, "`structural_tag` is not supported."));
                }
                _ => {}
            }
        }
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => {
            let message = format!("`{}` and `{}` exclude each other.", found[0].param, found[1].param);
            Err(ApiError::field(found[1].param, message))
        }
    }
}

/// Of `response_format`, or of the same object of another API, whose schema stands in it directly.
pub(crate) fn of_format(mut format: Fields) -> Result<Option<TextForm>, ApiError> {
    let kind = format.required_string("type")?;
    match kind.as_str() {
        "text" => Ok(None),
        "json_object" => {
            let schema = format.take("schema").map(|value| schema(value, &format.param("schema"), false));
            Ok(Some(schema.transpose()?.map_or_else(any_object, TextForm::Json)))
        }
        "json_schema" => {
            let mut inner = match format.fields("json_schema")? {
                Some(inner) => inner,
                None => format,
            };
            let is_strict = inner.boolean("strict")? == Some(true);
            let value = inner.take("schema").ok_or_else(|| inner.missing("schema"))?;
            Ok(Some(TextForm::Json(schema(value, &inner.param("schema"), is_strict)?)))
        }
        other => {
            let message =
                format!("The format is `text`, `json_object` or `json_schema`, not `{}`.", excerpt(other));
            Err(ApiError::unsupported(format.param("type"), message))
        }
    }
}

/// Of one of vLLM's fields, which say what stands in them by their name.
fn of_field(name: &str, value: Value, param: &str) -> Result<TextForm, ApiError> {
    match (name, value) {
        ("json", Value::String(text)) => {
            let value = serde_json::from_str(&text)
                .map_err(|error| ApiError::field(param, format!("`{param}` is no JSON: {error}.")))?;
            Ok(TextForm::Json(schema(value, param, true)?))
        }
        ("json", value) => Ok(TextForm::Json(schema(value, param, true)?)),
        ("choice", Value::Array(list)) => one_of(list, param),
        ("choice", other) => Err(wrong(param, "a list of strings", &other)),
        (_, Value::String(text)) if text.len() > MOST_BYTES => {
            Err(ApiError::field(param, format!("`{param}` has at most {MOST_BYTES} bytes.")))
        }
        ("regex", Value::String(text)) => Ok(TextForm::Regex(text)),
        ("gbnf", Value::String(text)) => Ok(TextForm::Gbnf(text)),
        // Both notations are written there, and rules of llama.cpp's alone have this sign.
        (_, Value::String(text)) if text.contains("::=") => Ok(TextForm::Gbnf(text)),
        (_, Value::String(text)) => Ok(TextForm::Lark(text)),
        (_, other) => Err(wrong(param, "a string", &other)),
    }
}

fn one_of(list: Vec<Value>, param: &str) -> Result<TextForm, ApiError> {
    if list.is_empty() {
        return Err(ApiError::field(param, format!("`{param}` is empty.")));
    }
    if list.len() > MOST_CHOICES {
        return Err(too_many(param, list.len(), MOST_CHOICES));
    }
    let text = |value| match value {
        Value::String(text) => Ok(text),
        other => Err(wrong(param, "a list of strings", &other)),
    };
    let texts: Vec<String> = list.into_iter().map(text).collect::<Result<_, _>>()?;
    match texts.iter().map(String::len).sum::<usize>() > MOST_BYTES {
        true => Err(ApiError::field(param, format!("`{param}` has at most {MOST_BYTES} bytes."))),
        false => Ok(TextForm::OneOf(texts)),
    }
}

fn any_object() -> TextForm {
    TextForm::Json(Schema { value: json!({ "type": "object" }), is_strict: false })
}

fn schema(value: Value, param: &str, is_strict: bool) -> Result<Schema, ApiError> {
    match value.is_object() {
        true => Ok(Schema { value, is_strict }),
        false => Err(wrong(param, "a JSON schema, which is an object", &value)),
    }
}

/// What an answer has to be, by its text, by the functions that there are, and by whether it has to call them.
pub(crate) fn form(
    text: Option<Wanted<TextForm>>,
    tools: &[Tool],
    must: Must,
    has_one_call: bool,
) -> Option<Wanted<Form>> {
    let calls = |tools: &[Tool]| tools.iter().map(call_form).collect();
    let form = |text, calls, has_one_call| Form { text, calls, has_one_call };
    match must {
        Must::Call => Some(Wanted { what: form(None, calls(tools), has_one_call), param: "tools" }),
        Must::CallOf(name) => {
            let called: Vec<Tool> = tools.iter().filter(|tool| tool.name == name).cloned().collect();
            Some(Wanted { what: form(None, calls(&called), true), param: "tools" })
        }
        Must::Nothing => match text {
            Some(Wanted { what, param }) => {
                Some(Wanted { what: form(Some(what), calls(tools), has_one_call), param })
            }
            None if tools.iter().any(is_strict) => {
                Some(Wanted { what: form(Some(TextForm::Any), calls(tools), has_one_call), param: "tools" })
            }
            None => None,
        },
    }
}

fn is_strict(tool: &Tool) -> bool {
    tool.definition["function"]["strict"] == true
}

fn call_form(tool: &Tool) -> CallForm {
    let parameters = &tool.definition["function"]["parameters"];
    let value = if parameters.is_object() { parameters.clone() } else { json!({ "type": "object" }) };
    CallForm { name: tool.name.clone(), arguments: Schema { value, is_strict: is_strict(tool) } }
}

impl Wanted<Form> {
    /// Has a backend read the form. What is wrong with it is wrong with its field.
    pub(crate) fn read(
        self,
        backend: &dyn Backend,
        model: &str,
        format: &AnswerFormat,
    ) -> Result<ReadForm, Refusal> {
        let param = Some(self.param.to_owned());
        backend.read_form(model, &self.what, format).map_err(|refusal| match refusal {
            Refusal::Invalid { message, param: None } => Refusal::Invalid { message, param },
            Refusal::Unsupported(message) => Refusal::Invalid { message, param },
            other => other,
        })
    }
}
