//! The functions that a model may call, and which of them it has to.

use serde_json::{Value, json};

use crate::conversation::Tool;
use crate::error::{ApiError, excerpt};
use crate::fields::{Fields, too_many, wrong};
use crate::options::Limits;

/// The longest name of a function.
const LONGEST_NAME: usize = 256;

/// Whether an answer has to call something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Must {
    /// The model decides.
    Nothing,
    /// Any of the functions, once or more often.
    Call,
    /// This function, once.
    CallOf(String),
}

/// The functions that the model is told of, and whether it has to call one.
pub(crate) fn tools(fields: &mut Fields, limits: &Limits) -> Result<(Vec<Tool>, Must), ApiError> {
    let list = fields.list("tools")?.unwrap_or_default();
    let numbered = list.into_iter().enumerate();
    let tools = numbered.map(|(index, value)| tool(value, &format!("tools[{index}]")));
    let tools = tools.collect::<Result<Vec<_>, _>>()?;
    check(&tools, limits)?;
    match fields.take("tool_choice") {
        Some(choice) => choose(choice, tools),
        None => Ok((tools, Must::Nothing)),
    }
}

/// That there are not too many functions, and that their names are names.
pub(crate) fn check(tools: &[Tool], limits: &Limits) -> Result<(), ApiError> {
    if tools.len() > limits.n_tools {
        return Err(too_many("tools", tools.len(), limits.n_tools));
    }
    match tools.iter().position(|tool| tool.name.is_empty() || tool.name.len() > LONGEST_NAME) {
        Some(index) => {
            let message = format!("The name of a function has between 1 and {LONGEST_NAME} bytes.");
            Err(ApiError::field(format!("tools[{index}]"), message))
        }
        None => Ok(()),
    }
}

fn tool(definition: Value, param: &str) -> Result<Tool, ApiError> {
    let kind = definition.get("type").and_then(Value::as_str);
    if kind.is_some_and(|kind| kind != "function") {
        let message = format!("`{param}.type` is `function`, not `{}`.", excerpt(kind.unwrap_or_default()));
        return Err(ApiError::unsupported(format!("{param}.type"), message));
    }
    let wanted = |field: &str| {
        let param = format!("{param}.{field}");
        let message = format!("`{param}` is required.");
        ApiError::field(param, message)
    };
    let function = definition.get("function").and_then(Value::as_object).ok_or_else(|| wanted("function"))?;
    let name = function.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| wanted("function.name"))?.to_owned();
    if let Some(parameters) =
        function.get("parameters").filter(|value| !value.is_object() && !value.is_null())
    {
        return Err(wrong(&format!("{param}.function.parameters"), "an object", parameters));
    }
    let definition = match kind {
        Some(_) => definition,
        None => json!({ "type": "function", "function": function }),
    };
    Ok(Tool { name, definition })
}

/// The functions that are left by a choice, and whether one has to be called.
pub(crate) fn choose(choice: Value, tools: Vec<Tool>) -> Result<(Vec<Tool>, Must), ApiError> {
    match choice {
        Value::String(word) => of_word(&word, tools),
        Value::Object(_) => {
            let mut choice = Fields::of(choice, "tool_choice")?;
            match choice.required_string("type")?.as_str() {
                "function" => {
                    // In the Responses API the name stands in the choice itself.
                    let mut named = match choice.fields("function")? {
                        Some(function) => function,
                        None => choice,
                    };
                    call_of(named.required_string("name")?, tools)
                }
                "allowed_tools" => {
                    let mut allowed =
                        choice.fields("allowed_tools")?.ok_or_else(|| choice.missing("allowed_tools"))?;
                    let mode = allowed.string("mode")?.unwrap_or_else(|| "auto".to_owned());
                    let list = allowed.list("tools")?.ok_or_else(|| allowed.missing("tools"))?;
                    let name = |tool: &Value| {
                        Some(tool.get("function").unwrap_or(tool).get("name")?.as_str()?.to_owned())
                    };
                    let names: Vec<String> = list.iter().filter_map(name).collect();
                    of_word(&mode, tools.into_iter().filter(|tool| names.contains(&tool.name)).collect())
                }
                other => Err(unknown(other)),
            }
        }
        other => Err(wrong("tool_choice", "a string or an object", &other)),
    }
}

fn of_word(word: &str, tools: Vec<Tool>) -> Result<(Vec<Tool>, Must), ApiError> {
    match word {
        "auto" => Ok((tools, Must::Nothing)),
        "none" => Ok((Vec::new(), Must::Nothing)),
        "required" if tools.is_empty() => {
            Err(ApiError::field("tool_choice", "There is no function that could be called."))
        }
        "required" => Ok((tools, Must::Call)),
        other => Err(unknown(other)),
    }
}

/// The choice of one function.
pub(crate) fn call_of(name: String, tools: Vec<Tool>) -> Result<(Vec<Tool>, Must), ApiError> {
    match tools.iter().any(|tool| tool.name == name) {
        true => Ok((tools, Must::CallOf(name))),
        false => {
            let message = format!("`tools` has no function `{}`.", excerpt(&name));
            Err(ApiError::field("tool_choice", message))
        }
    }
}

fn unknown(choice: &str) -> ApiError {
    let message = format!(
        "`tool_choice` is `auto`, `none`, `required`, a function or `allowed_tools`, not `{}`.",
        excerpt(choice)
    );
    ApiError::unsupported("tool_choice", message)
}
