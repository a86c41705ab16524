//! Calls of functions in what a model has answered, in any of the formats that templates write them in.

use serde_json::{Map, Value, json};

/// A call of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The name of the function.
    pub name: String,
    /// Its arguments, usually an object.
    pub arguments: Value,
}

impl ToolCall {
    /// As an entry of `tool_calls` of a message.
    pub fn to_message(&self) -> Value {
        json!({"type": "function", "function": {"name": self.name, "arguments": self.arguments}})
    }

    /// `{"name": …, "arguments": …}`, or `parameters` in the place of the latter.
    fn of_object(object: &Map<String, Value>) -> Option<ToolCall> {
        let arguments = object.get("arguments").or_else(|| object.get("parameters"))?;
        Some(ToolCall { name: object.get("name")?.as_str()?.to_owned(), arguments: arguments.clone() })
    }

    fn of_value(value: &Value) -> Option<Vec<ToolCall>> {
        match value {
            Value::Object(object) => Some(vec![ToolCall::of_object(object)?]),
            Value::Array(calls) if !calls.is_empty() => {
                calls.iter().map(|call| ToolCall::of_object(call.as_object()?)).collect()
            }
            _ => None,
        }
    }
}

/// The calls in an answer and the text before them; `None` where it calls nothing. `functions` are the names that there
/// are: a format that has no words of its own is taken for a call only with one of them.
pub fn tool_calls(answer: &str, functions: &[String]) -> Option<(String, Vec<ToolCall>)> {
    let known = |calls: &[ToolCall]| calls.iter().all(|call| functions.contains(&call.name));
    marked(answer, "<tool_call>", "</tool_call>")
        .or_else(|| actions(answer))
        .or_else(|| {
            // Mistral's mark may be a special token, which answers do not show.
            let (text, rest) = answer.split_once("[TOOL_CALLS]").unwrap_or(("", answer));
            let calls = ToolCall::of_value(&serde_json::from_str(rest.trim()).ok()?)?;
            known(&calls).then(|| (text.to_owned(), calls))
        })
        .or_else(|| {
            let (name, arguments) = answer.trim().split_once('\n')?;
            let arguments = serde_json::from_str::<Map<String, Value>>(arguments.trim()).ok()?;
            let call = ToolCall { name: name.trim().to_owned(), arguments: Value::Object(arguments) };
            known(std::slice::from_ref(&call)).then(|| (String::new(), vec![call]))
        })
}

/// Calls as JSON between marks.
fn marked(answer: &str, open: &str, close: &str) -> Option<(String, Vec<ToolCall>)> {
    let mut parts = answer.split(open);
    let text = parts.next()?.trim_end().to_owned();
    let mut calls = Vec::new();
    for part in parts {
        // An answer that was cut may lack the last mark.
        let call = part.split_once(close).map_or(part, |(call, _)| call);
        calls.extend(ToolCall::of_value(&serde_json::from_str(call.trim()).ok()?)?);
    }
    (!calls.is_empty()).then_some((text, calls))
}

/// `Action: name` and `Action Input: {…}`, line by line.
fn actions(answer: &str) -> Option<(String, Vec<ToolCall>)> {
    let mut parts = answer.split("Action:");
    let text = parts.next()?.trim_end().to_owned();
    let mut calls = Vec::new();
    for part in parts {
        let (name, arguments) = part.split_once("Action Input:")?;
        let arguments = arguments.trim().trim_matches('`').trim();
        let arguments = serde_json::from_str(arguments).ok()?;
        calls.push(ToolCall { name: name.trim().to_owned(), arguments });
    }
    (!calls.is_empty()).then_some((text, calls))
}

#[cfg(test)]
mod tests {
    use super::super::layout::ToolFormat;
    use super::*;

    fn names() -> Vec<String> {
        vec!["tide".to_owned(), "lock".to_owned()]
    }

    #[test]
    fn what_a_format_writes_is_read_again() {
        let (one, two) = (json!({"place": "weir", "hours": [1, 2]}), json!({}));
        for format in ["default", "qwen", "llama3", "glm4", "mistral", "phi4_mini"] {
            for calls in [&[("tide", &one)][..], &[("tide", &one), ("lock", &two)]] {
                let Some(text) = ToolFormat::named(format).unwrap().call(calls) else { continue };
                let call = |&(name, arguments): &(&str, &Value)| ToolCall {
                    name: name.to_owned(),
                    arguments: arguments.clone(),
                };
                let expected: Vec<ToolCall> = calls.iter().map(call).collect();
                assert_eq!(tool_calls(&text, &names()), Some((String::new(), expected)), "{format}: {text}");
            }
        }
    }

    #[test]
    fn a_text_may_stand_before_calls_and_no_text_is_a_call() {
        let answer = "Let me look.\n<tool_call>\n{\"name\": \"tide\", \"arguments\": {}}\n</tool_call>";
        let (text, calls) = tool_calls(answer, &names()).unwrap();
        assert_eq!((text.as_str(), calls.len()), ("Let me look.", 1));
        for answer in
            ["", "It is 4.", "{\"level\": 2}", "<tool_call>broken</tool_call>", "rain\n{}", "Action: tide"]
        {
            assert_eq!(tool_calls(answer, &names()), None, "{answer}");
        }
        assert_eq!(tool_calls("{\"name\": \"rain\", \"arguments\": {}}", &names()), None);
    }
}
