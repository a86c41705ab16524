//! Whether a template for Ollama writes conversations as the chat template does: both render the same ones.

use serde_json::{Value, json};

use super::go;
use crate::data::{ChatTemplate, Conversation, Message};

/// What a conversation has beside questions and answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// A system prompt.
    pub system: bool,
    /// Functions.
    pub tools: bool,
    /// Thoughts before earlier answers.
    pub thoughts: bool,
    /// Calls of functions, and their results.
    pub calls: bool,
    /// A choice whether the model thinks.
    pub thinking: bool,
}

impl Parts {
    /// What these are called.
    fn names(self) -> Vec<&'static str> {
        let named = [
            (self.system, "system prompts"),
            (self.tools, "functions"),
            (self.thoughts, "thoughts of earlier answers"),
            (self.calls, "calls of functions with their results"),
            (self.thinking, "the choice whether to think"),
        ];
        named.into_iter().filter_map(|(has, name)| has.then_some(name)).collect()
    }

    /// Those that `other` lacks.
    fn without(self, other: Parts) -> Parts {
        Parts {
            system: self.system && !other.system,
            tools: self.tools && !other.tools,
            thoughts: self.thoughts && !other.thoughts,
            calls: self.calls && !other.calls,
            thinking: self.thinking && !other.thinking,
        }
    }

    fn union(self, other: Parts) -> Parts {
        Parts {
            system: self.system || other.system,
            tools: self.tools || other.tools,
            thoughts: self.thoughts || other.thoughts,
            calls: self.calls || other.calls,
            thinking: self.thinking || other.thinking,
        }
    }

    fn has(self, other: Parts) -> bool {
        self.union(other) == self
    }
}

/// A conversation that both templates render.
pub(super) struct Case {
    /// What it has.
    pub parts: Parts,
    conversation: Conversation,
    /// Whether the model is told to think.
    thinks: Option<bool>,
}

/// The conversations.
pub(super) fn cases() -> Vec<Case> {
    let message = Message::new;
    let (user, answer) = (|| message("user", "What is it?"), || message("assistant", "It is so.\n\nAnd so."));
    let thought = || {
        let mut answer = answer();
        answer.extra.insert("reasoning_content".to_owned(), "First this.\nThen that.".into());
        answer
    };
    let call = |n: usize| {
        let mut call = message("assistant", "");
        let calls = (0..n).map(|i| {
            json!({"type": "function", "function": {"name": FUNCTIONS[i], "arguments": {"place": "Oslo", "n": i}}})
        });
        call.extra.insert("tool_calls".to_owned(), calls.collect());
        call
    };
    let result = || message("tool", "{\"degrees\": 7}");
    let (none, system) = (Parts::default(), Parts { system: true, ..Parts::default() });
    let tools = Parts { tools: true, ..none };
    let calls = Parts { calls: true, ..tools };
    let both = |a: Parts, b: Parts| a.union(b);
    let case = |parts: Parts, n_tools: usize, messages: Vec<Message>| {
        let functions = (n_tools > 0).then(|| functions(n_tools));
        let system = parts.system.then(|| "Be brief.".to_owned());
        Case { parts, conversation: Conversation { system, tools: functions, messages }, thinks: None }
    };
    let thinking = |thinks: bool| Case {
        thinks: Some(thinks),
        ..case(Parts { thinking: true, ..none }, 0, vec![user(), answer(), message("user", "Why?")])
    };
    vec![
        case(none, 0, vec![user()]),
        case(none, 0, vec![user(), answer(), message("user", "Why?")]),
        case(none, 0, vec![user(), answer(), message("user", "Why?"), message("assistant", "x"), user()]),
        case(system, 0, vec![user()]),
        case(system, 0, vec![user(), answer(), message("user", "Why?")]),
        case(Parts { thoughts: true, ..none }, 0, vec![user(), thought(), message("user", "Why?")]),
        case(
            both(system, Parts { thoughts: true, ..none }),
            0,
            vec![user(), thought(), user(), answer(), user()],
        ),
        case(tools, 1, vec![user()]),
        case(tools, 2, vec![user(), answer(), user()]),
        case(both(system, tools), 2, vec![user()]),
        case(calls, 1, vec![user(), call(1), result()]),
        case(calls, 2, vec![user(), call(2), result(), answer(), user()]),
        case(both(system, calls), 2, vec![user(), call(1), result(), answer(), user(), call(1), result()]),
        thinking(true),
        thinking(false),
    ]
}

const FUNCTIONS: [&str; 2] = ["get_weather", "get_time"];

fn functions(n: usize) -> Value {
    let function = |name: &&str| {
        json!({"type": "function", "function": {
            "name": name, "description": "Says it.", "parameters": {"type": "object", "properties": {
                "place": {"type": "string", "description": "Where."},
            }, "required": ["place"]},
        }})
    };
    FUNCTIONS[..n].iter().map(function).collect()
}

impl Case {
    /// What the chat template makes of it, with JSON as Ollama writes it; `None` where it refuses it.
    pub fn expected(&self, template: &ChatTemplate) -> Option<String> {
        let template = match self.thinks {
            Some(thinks) => template.clone().thinking(thinks),
            None => template.clone(),
        };
        let text = template.render_prompt(&self.conversation).ok()?;
        Some(self.values().iter().fold(text, |text, value| compacted(&text, value)))
    }

    /// What the template for Ollama makes of it.
    pub fn found(&self, template: &str) -> Result<String, String> {
        // The system prompt is one of the messages as well.
        let system = self.conversation.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain(self.conversation.messages.iter().cloned()).collect();
        let messages = messages.iter().map(|message| {
            let calls = message.extra.get("tool_calls").and_then(Value::as_array);
            let calls: Vec<Value> = calls
                .into_iter()
                .flatten()
                .map(|call| {
                    let function = &call["function"];
                    json!({"Function": {"Name": function["name"], "Arguments": function["arguments"]}})
                })
                .collect();
            json!({
                "Role": message.role, "Content": message.content, "ToolCalls": calls,
                "Thinking": message.extra.get("reasoning_content").unwrap_or(&Value::Null),
            })
        });
        let tools = self.conversation.tools.as_ref().and_then(Value::as_array);
        let tools: Vec<Value> =
            tools.into_iter().flatten().map(|tool| json!({"Function": tool["function"]})).collect();
        let data = json!({
            "System": self.conversation.system.as_deref().unwrap_or_default(),
            "Messages": messages.collect::<Vec<_>>(),
            "Tools": tools,
            "IsThinkSet": self.thinks.is_some(),
            "Think": self.thinks.unwrap_or_default(),
        });
        go::render(template, &data, &|value| match value.get("Function") {
            Some(function) => json!({"type": "function", "function": function}).to_string(),
            None => value.to_string(),
        })
    }

    /// What of it is written as JSON.
    fn values(&self) -> Vec<Value> {
        let tools = self.conversation.tools.as_ref().and_then(Value::as_array).into_iter().flatten();
        let of_tools = tools.flat_map(|tool| [tool.clone(), tool["function"].clone()]);
        let calls = self.conversation.messages.iter().filter_map(|message| message.extra.get("tool_calls"));
        let of_calls =
            calls.filter_map(Value::as_array).flatten().map(|call| call["function"]["arguments"].clone());
        of_tools.chain(of_calls).collect()
    }
}

/// A text in which a value stands as JSON without spaces, wherever it stands as JSON.
fn compacted(text: &str, value: &Value) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = json_in(rest, 0, value) {
        out.push_str(&rest[..at.start]);
        out.push_str(&value.to_string());
        rest = &rest[at.end..];
    }
    out + rest
}

/// Where a text has this value as JSON, from a place on.
pub(super) fn json_in(text: &str, from: usize, value: &Value) -> Option<std::ops::Range<usize>> {
    text[from..].match_indices('{').find_map(|(at, _)| {
        let begin = from + at;
        let mut found = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
        let is_value = found.next()?.ok()? == *value;
        is_value.then(|| begin..begin + found.byte_offset())
    })
}

/// A template for Ollama that writes what the chat template does, made with as many parts as are right, and what the chat template
/// writes and it does not. `None` where questions and answers are wrong already.
pub(super) fn proven(
    chat: &ChatTemplate,
    made: &dyn Fn(Parts) -> Option<String>,
) -> Option<(String, Vec<&'static str>)> {
    let cases: Vec<(Case, String)> = cases()
        .into_iter()
        .filter_map(|case| Some((case.expected(chat)?, case)))
        .map(|(a, b)| (b, a))
        .collect();
    let agrees = |text: &str, (case, expected): &(Case, String)| case.found(text).as_ref() == Ok(expected);
    let try_with = |parts: Parts| {
        let text = made(parts)?;
        let mut known = cases.iter().filter(|(case, _)| parts.has(case.parts));
        known.all(|case| agrees(&text, case)).then_some(text)
    };
    let none = Parts::default();
    let mut parts = none;
    let mut text = try_with(none)?;
    // In the order of their use.
    for more in [
        Parts { system: true, ..none },
        Parts { thinking: true, ..none },
        Parts { tools: true, ..none },
        Parts { calls: true, ..none },
        Parts { thoughts: true, ..none },
    ] {
        let next = parts.union(more);
        if let Some(better) = try_with(next) {
            (parts, text) = (next, better);
        }
    }
    let wrong = cases.iter().filter(|case| !agrees(&text, case));
    let lacks = wrong.fold(none, |all, (case, _)| all.union(case.parts.without(parts)));
    Some((text, lacks.names()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use oarlock_config::config::ChatArgs;

    use super::super::ollama::of_ollama;
    use super::*;
    use crate::data::{Chat, Tokenizer, layout_names};

    /// As DeepSeek V3 writes conversations: what begins a text and what ends an answer end in the same letters.
    const DEEPSEEK: &str = "{% set ns = namespace(system='') %}{% for message in messages %}{% if message['role'] == 'system' %}\
        {% set ns.system = ns.system + message['content'] %}{% endif %}{% endfor %}{{ bos_token }}{{ ns.system }}{% for message in \
        messages %}{% if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% elif message['role'] == 'assistant' \
        %}{{ '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}{% if add_generation_prompt \
        %}{{ '<｜Assistant｜>' }}{% endif %}";

    /// A tokenizer whose first and last tokens are those of DeepSeek.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/minimind-small");
        std::fs::copy(from.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
        let ends = ["<end_of_turn>", "<|eot_id|>", "<|eot|>", "<|end|>", "<|end_of_text|>", "<｜hy_eos｜>"];
        let config = json!({
            "bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>",
            "additional_special_tokens": ends,
        });
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        folder
    }

    /// How many conversations come out as by the chat template, and of how many.
    fn agreeing(chat: &ChatTemplate, text: &str) -> (usize, usize) {
        let cases = cases();
        let expected: Vec<_> = cases.iter().filter_map(|case| Some((case, case.expected(chat)?))).collect();
        let same = expected.iter().filter(|(case, expected)| case.found(text).as_ref() == Ok(expected));
        (same.count(), expected.len())
    }

    #[test]
    fn deepseek_has_its_system_prompt_and_the_whole_end_of_an_answer() {
        let folder = folder();
        std::fs::write(folder.path().join("chat_template.jinja"), DEEPSEEK).unwrap();
        let chat = ChatTemplate::read(folder.path()).unwrap();
        let template = of_ollama(&chat, &Tokenizer::open(folder.path()).unwrap()).unwrap();
        assert_eq!(
            (template.behind_answer.as_str(), &template.lacks[..]),
            ("<｜end▁of▁sentence｜>", &[][..])
        );
        assert!(
            template.text.contains("{{ if .System }}<｜begin▁of▁sentence｜>{{ .System }}{{ else }}"),
            "{}",
            template.text
        );
        let (same, all) = agreeing(&chat, &template.text);
        assert_eq!(same, all);
        // A template that is a little other is seen.
        let broken = template.text.replace("<｜Assistant｜>{{ .Content }}", "<｜Assistant｜> {{ .Content }}");
        assert!(broken != template.text && agreeing(&chat, &broken).0 < all);
    }

    #[test]
    fn every_layout_is_written_as_far_as_the_file_says() {
        let folder = folder();
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        let names = layout_names();
        for name in &names {
            let args = ChatArgs { template: Some(name.clone()), ..ChatArgs::default() };
            let chat = Chat::new(&tokenizer, folder.path(), &args, usize::MAX).unwrap();
            let chat = chat.prompts(&tokenizer, folder.path()).unwrap();
            let template = of_ollama(&chat, &tokenizer).unwrap_or_else(|| panic!("{name}: none"));
            let (same, all) = agreeing(&chat, &template.text);
            assert!(same == all && all >= 10, "{name}: {same} of {all}, without {:?}", template.lacks);
            assert!(template.lacks.is_empty(), "{name}: {:?}", template.lacks);
        }
        assert!(names.len() > 80);
    }

    #[test]
    fn what_a_template_of_ollama_cannot_say_is_named() {
        let folder = folder();
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        let of = |template: &str| {
            std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
            of_ollama(&ChatTemplate::read(folder.path()).unwrap(), &tokenizer)
        };
        // Capital letters are made of no part of a text in Go.
        let shouts = DEEPSEEK.replace("{{ ns.system }}", "{{ ns.system | upper }}");
        let template = of(&shouts).unwrap();
        assert_eq!(template.lacks, ["system prompts"]);
        assert!(!template.text.contains(".System"), "{}", template.text);
        assert!(
            of(&DEEPSEEK.replace("'<｜User｜>' + message['content']", "message['content'] | upper"))
                .is_none()
        );
    }
}
