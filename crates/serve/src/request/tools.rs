//! The functions that a model may call, and which of them it has to.

use serde_json::{Value, json};

use crate::conversation::Tool;
use crate::error::{ApiError, excerpt};
use crate::fields::{Fields, too_many, wrong};
use crate::options::Limits;

/// The longest name of a function.
const LONGEST_NAME: usize = 256;

/// The functions that the model is told of.
pub(crate) fn tools(fields: &mut Fields, limits: &Limits) -> Result<Vec<Tool>, ApiError> {
    let list = fields.list("tools")?.unwrap_or_default();
    let numbered = list.into_iter().enumerate();
    let tools = numbered.map(|(index, value)| tool(value, &format!("tools[{index}]")));
    let tools = tools.collect::<Result<Vec<_>, _>>()?;
    check(&tools, limits)?;
    let Some(choice) = fields.take("tool_choice") else { return Ok(tools) };
    choose(choice, tools)
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

/// The functions that are left by a choice. A call that has to come cannot be promised.
pub(crate) fn choose(choice: Value, tools: Vec<Tool>) -> Result<Vec<Tool>, ApiError> {
    match choice {
        Value::String(word) => match word.as_str() {
            "auto" => Ok(tools),
            "none" => Ok(Vec::new()),
            other => Err(forced(other)),
        },
        Value::Object(_) => {
            let mut choice = Fields::of(choice, "tool_choice")?;
            let kind = choice.required_string("type")?;
            if kind != "allowed_tools" {
                return Err(forced(&kind));
            }
            let mut allowed =
                choice.fields("allowed_tools")?.ok_or_else(|| choice.missing("allowed_tools"))?;
            let mode = allowed.string("mode")?;
            if let Some(mode) = mode.filter(|mode| mode != "auto") {
                return Err(forced(&mode));
            }
            let list = allowed.list("tools")?.ok_or_else(|| allowed.missing("tools"))?;
            let name =
                |tool: &Value| Some(tool.get("function").unwrap_or(tool).get("name")?.as_str()?.to_owned());
            let names: Vec<String> = list.iter().filter_map(name).collect();
            Ok(tools.into_iter().filter(|tool| names.contains(&tool.name)).collect())
        }
        other => Err(wrong("tool_choice", "a string or an object", &other)),
    }
}

fn forced(choice: &str) -> ApiError {
    let choice = excerpt(choice);
    ApiError::unsupported(
        "tool_choice",
        format!("`tool_choice` is `auto` or `none`, not `{choice}`: nothing here can force a call."),
    )
}
