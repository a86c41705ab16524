//! How functions are described to a model, and how their calls are written.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, PrettyFormatter, Serializer};
use serde_json::{Value, json};

use super::super::error::{Error, Result};
use super::super::template::Spaced;

/// The day that `llama3` tells the model, the one of Llama 3.1's own chat template: the date of today would make the tokens
/// of a run depend on when it is started.
const LLAMA3_DATE: &str = "26 Jul 2024";

/// A way to write functions and calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ToolFormat {
    Default,
    Qwen,
    Llama3,
    Glm4,
    Mistral,
    Phi4Mini,
}

impl ToolFormat {
    /// The format of this name.
    ///
    /// # Errors
    /// A name that is none, or one of LLaMA-Factory's that is not there.
    pub(in super::super) fn named(name: &str) -> Result<ToolFormat> {
        Ok(match name {
            "default" => ToolFormat::Default,
            "qwen" => ToolFormat::Qwen,
            "llama3" => ToolFormat::Llama3,
            "glm4" => ToolFormat::Glm4,
            "mistral" => ToolFormat::Mistral,
            "phi4_mini" => ToolFormat::Phi4Mini,
            name => {
                let cause = format!(
                    "the tool format {name} is not there; there are default, qwen, llama3, glm4 and mistral (write \
                     tool_format to choose one)"
                );
                return Err(Error::Setting { key: "tool_format", cause });
            }
        })
    }

    /// The text behind the system message that describes functions.
    pub(super) fn describe(self, tools: &[Value]) -> String {
        if tools.is_empty() {
            return String::new();
        }
        let wrapped = || {
            tools.iter().map(|tool| match tool["type"] == "function" {
                true => tool.clone(),
                false => json!({"type": "function", "function": tool}),
            })
        };
        let bare = || {
            tools.iter().map(|tool| match tool.get("function") {
                Some(function) if tool["type"] == "function" => function,
                _ => tool,
            })
        };
        match self {
            ToolFormat::Default => default_prompt(&bare().collect::<Vec<_>>()),
            ToolFormat::Qwen => {
                let list: String = wrapped().map(|tool| format!("\n{}", dumps(&tool))).collect();
                format!(
                    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided \
                     with function signatures within <tools></tools> XML tags:\n<tools>{list}\n</tools>\n\nFor each \
                     function call, return a json object with function name and arguments within \
                     <tool_call></tool_call> XML tags:\n<tool_call>\n{{\"name\": <function-name>, \"arguments\": \
                     <args-json-object>}}\n</tool_call>"
                )
            }
            ToolFormat::Llama3 => {
                let list: String = wrapped().map(|tool| format!("{}\n\n", indented(&tool))).collect();
                format!(
                    "Cutting Knowledge Date: December 2023\nToday Date: {LLAMA3_DATE}\n\nYou have access to the following \
                     functions. To call a function, please respond with JSON for a function call. Respond in the format \
                     {{\"name\": function name, \"parameters\": dictionary of argument name and its value}}. Do not use \
                     variables.\n\n{list}"
                )
            }
            ToolFormat::Glm4 => {
                let one = |tool: &Value| {
                    format!(
                        "\n\n## {}\n\n{}\n在调用上述函数时，请使用 Json 格式表示调用的参数。",
                        shown(&tool["name"]),
                        indented(tool)
                    )
                };
                let list: String = bare().map(one).collect();
                format!(
                    "你是一个名为 ChatGLM 的人工智能助手。你是基于智谱 AI 公司训练的语言模型 GLM-4 模型开发的，\
                     你的任务是针对用户的问题和要求提供适当的答复和支持。\n\n# 可用工具{list}"
                )
            }
            ToolFormat::Mistral => {
                format!("[AVAILABLE_TOOLS] {}[/AVAILABLE_TOOLS]", dumps(&wrapped().collect::<Value>()))
            }
            ToolFormat::Phi4Mini => format!("<|tool|>{}<|/tool|>", dumps(&tools)),
        }
    }

    /// An answer's calls, each a name and its arguments; `None` where the format cannot write so many.
    pub(in super::super) fn call(self, calls: &[(&str, &Value)]) -> Option<String> {
        let lines = |line: &dyn Fn(&str, &Value) -> String| {
            calls.iter().map(|(name, arguments)| line(name, arguments)).collect::<Vec<_>>().join("\n")
        };
        Some(match self {
            ToolFormat::Default | ToolFormat::Phi4Mini => {
                lines(&|name, arguments| format!("Action: {name}\nAction Input: {}", dumps(arguments)))
            }
            ToolFormat::Qwen => lines(&|name, arguments| {
                format!(
                    "<tool_call>\n{}\n</tool_call>",
                    dumps(&json!({"name": name, "arguments": arguments}))
                )
            }),
            ToolFormat::Llama3 => {
                let object =
                    |&(name, arguments): &(&str, &Value)| json!({"name": name, "parameters": arguments});
                match calls {
                    [one] => dumps(&object(one)),
                    _ => dumps(&calls.iter().map(object).collect::<Value>()),
                }
            }
            ToolFormat::Glm4 => match calls {
                [(name, arguments)] => format!("{name}\n{}", dumps(arguments)),
                _ => return None,
            },
            ToolFormat::Mistral => {
                let object =
                    |&(name, arguments): &(&str, &Value)| json!({"name": name, "arguments": arguments});
                dumps(&calls.iter().map(object).collect::<Value>())
            }
        })
    }
}

/// The description of the format `default`, without JSON.
fn default_prompt(tools: &[&Value]) -> String {
    let mut list = String::new();
    for tool in tools {
        let parameters = &tool["parameters"];
        let required = |name: &str| {
            parameters["required"]
                .as_array()
                .is_some_and(|names| names.iter().any(|required| required == name))
        };
        let mut arguments = String::new();
        for (name, argument) in parameters["properties"].as_object().into_iter().flatten() {
            let one_of = argument["enum"].as_array().filter(|values| !values.is_empty()).map(|values| {
                format!(", should be one of [{}]", values.iter().map(shown).collect::<Vec<_>>().join(", "))
            });
            let items = argument
                .get("items")
                .filter(|items| items.as_object().is_some_and(|items| !items.is_empty()));
            let items = items.map(|items| format!(", where each item should be {}", shown(&items["type"])));
            arguments.push_str(&format!(
                "  - {name} ({}{}): {}{}{}\n",
                shown(&argument["type"]),
                if required(name) { ", required" } else { "" },
                shown(&argument["description"]),
                one_of.unwrap_or_default(),
                items.unwrap_or_default(),
            ));
        }
        list.push_str(&format!(
            "> Tool Name: {}\nTool Description: {}\nTool Args:\n{arguments}\n",
            shown(&tool["name"]),
            shown(&tool["description"])
        ));
    }
    let names: Vec<String> = tools.iter().map(|tool| shown(&tool["name"])).collect();
    format!(
        "You have access to the following tools:\n{list}Use the following format if using a tool:\n```\nAction: tool name \
         (one of [{}])\nAction Input: the input to the tool, in a JSON format representing the kwargs (e.g. ```{{\"input\": \
         \"hello world\", \"num_beams\": 5}}```)\n```\n",
        names.join(", ")
    )
}

/// A text as it is, nothing for null, anything else as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => dumps(other),
    }
}

/// As Python's `json.dumps(value, ensure_ascii=False)`.
pub(in super::super) fn dumps(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    // A value that was read from JSON is written without an error.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut out, Spaced(CompactFormatter)));
    String::from_utf8(out).unwrap_or_default()
}

/// As `json.dumps(value, indent=4, ensure_ascii=False)`.
fn indented(value: &Value) -> String {
    let mut out = Vec::new();
    let _ = value.serialize(&mut Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(b"    ")));
    String::from_utf8(out).unwrap_or_default()
}
