//! A layout as a chat template in Jinja, for the folder of a model that was trained with it.

use oarlock_config::config::ChatArgs;

use super::super::error::Result;
use super::super::tokenizer::Tokenizer;
use super::parts::{CONTENT, Class, Layout, Slot, Special};
use super::tools::ToolFormat;

/// What stands between the messages and the end of a template, in order: the system message, then one message after
/// another. A user's message brings the header of the answer with it.
impl Layout {
    /// The template. It writes system messages, questions, answers and results of functions; with the tool format `qwen`
    /// also functions and their calls. Of reasoning models it leaves out earlier thoughts, and gives answers an empty one
    /// to begin with where the run did.
    ///
    /// # Errors
    /// A tokenizer that cannot be used.
    pub(in super::super) fn jinja(&self, tokenizer: &Tokenizer, args: &ChatArgs) -> Result<String> {
        let end = [Slot::Text(CONTENT.into()), Slot::Special { special: Special::Eos }];
        let plain = if self.efficient_eos { &end[..1] } else { &end[..] };
        let slots = |slots: &[Slot], name: &str| self.expression(tokenizer, slots, name);
        let user = slots(&self.user, "content")?;
        let assistant = slots(self.assistant.as_deref().unwrap_or(plain), "content")?;
        let function =
            slots(self.function.as_deref().or(self.assistant.as_deref()).unwrap_or(plain), "content")?;
        let observation = slots(self.observation.as_deref().unwrap_or(&self.user), "content")?;
        let prefix = slots(&self.prefix, "content")?;
        let system = slots(&self.system, "system_message")?;
        let tools = (ToolFormat::named(&self.tools).ok() == Some(ToolFormat::Qwen)).then(qwen_tools);
        let inside = self.class == Class::Llama2;
        let mut out = String::new();
        if !prefix.is_empty() {
            out.push_str(&format!("{{{{ {prefix} }}}}"));
        }
        out.push_str(&format!(
            "{{% if messages[0]['role'] == 'system' %}}{{% set system_message = messages[0]['content'] %}}{{% set loop_messages = \
             messages[1:] %}}{{% else %}}{{% set system_message = {} %}}{{% set loop_messages = messages %}}{{% endif %}}",
            quoted(&self.default_system)
        ));
        if let Some((tools, _)) = &tools {
            out.push_str(tools);
        }
        if !inside {
            out.push_str(&format!("{{% if system_message %}}{{{{ {system} }}}}{{% endif %}}"));
        }
        out.push_str("{% for message in loop_messages %}{% set content = message['content'] or '' %}");
        if inside {
            out.push_str(&format!(
                "{{% if loop.first and system_message and message['role'] == 'user' %}}{{% set content = {system} + content \
                 %}}{{% endif %}}"
            ));
        }
        out.push_str(&format!("{{% if message['role'] == 'user' %}}{{{{ {user} }}}}"));
        out.push_str(&format!(
            "{{% elif message['role'] in ['tool', 'observation', 'ipython'] %}}{{{{ {observation} }}}}"
        ));
        out.push_str("{% elif message['role'] == 'assistant' %}");
        if self.class == Class::Reasoning && !args.preserve_thinking {
            let close = quoted(&self.thought.1);
            out.push_str(&format!(
                "{{% if not loop.last and {close} in content %}}{{% set content = content.split({close})[-1].lstrip('\\n') \
                 %}}{{% endif %}}"
            ));
        }
        match &tools {
            Some((_, calls)) => out.push_str(&format!(
                "{{% if message['tool_calls'] %}}{calls}{{{{ {function} }}}}{{% else %}}{{{{ {assistant} }}}}{{% endif %}}"
            )),
            None => out.push_str(&format!("{{{{ {assistant} }}}}")),
        }
        out.push_str("{% endif %}{% endfor %}");
        if self.class == Class::Reasoning {
            out.push_str(&self.empty_thought(args));
        }
        Ok(out)
    }

    /// The empty thought that an answer begins with where the model is not to think.
    fn empty_thought(&self, args: &ChatArgs) -> String {
        let (open, close) = &self.thought;
        let empty = if self.closes_only { close.clone() } else { format!("{open}{close}") };
        let thinks = match args.enable_thinking {
            Some(true) => "enable_thinking is defined and not enable_thinking",
            _ => "not (enable_thinking is defined and enable_thinking)",
        };
        format!(
            "{{% if add_generation_prompt and loop_messages and loop_messages[-1]['role'] != 'assistant' and ({thinks}) \
             %}}{{{{ {} }}}}{{% endif %}}",
            quoted(&empty)
        )
    }

    /// Slots as a sum of texts and of the variable that stands for the message.
    fn expression(&self, tokenizer: &Tokenizer, slots: &[Slot], name: &str) -> Result<String> {
        let special = tokenizer.special();
        let mut parts = Vec::new();
        for slot in slots {
            match slot {
                Slot::Text(text) => {
                    let (before, after) = text.split_once(CONTENT).unwrap_or((text, ""));
                    parts.extend((!before.is_empty()).then(|| quoted(before)));
                    parts.extend(text.contains(CONTENT).then(|| name.to_owned()));
                    parts.extend((!after.is_empty()).then(|| quoted(after)));
                }
                Slot::Token { token } => parts.push(quoted(token)),
                Slot::Special { special: which } => {
                    let id = match which {
                        Special::Bos => special.bos,
                        Special::Eos => self.end_token(tokenizer)?,
                    };
                    if let Some(id) = id {
                        parts.push(quoted(&tokenizer.decode(&[id], false)?));
                    }
                }
            }
        }
        Ok(parts.join(" + "))
    }
}

/// A text as a literal of Jinja.
fn quoted(text: &str) -> String {
    let mut out = String::from("'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

/// Functions as the format `qwen` tells them, behind the system message; and calls as the content of an answer.
fn qwen_tools() -> (String, String) {
    let described = ToolFormat::Qwen.describe(&[serde_json::Value::from("{{tool}}")]);
    // The list of functions stands between the same texts, whatever it holds.
    let one = "\n{\"type\": \"function\", \"function\": \"{{tool}}\"}";
    let (before, after) = described.split_once(one).unwrap_or((&described, ""));
    let tools = format!(
        "{{% if tools %}}{{% set lines = namespace(text='') %}}{{% for tool in tools %}}{{% if tool['type'] != 'function' %}}{{% set \
         tool = {{'type': 'function', 'function': tool}} %}}{{% endif %}}{{% set lines.text = lines.text + '\\n' + \
         (tool | tojson) %}}{{% endfor %}}{{% set system_message = (system_message or '') + {} + lines.text + {} \
         %}}{{% endif %}}",
        quoted(before),
        quoted(after)
    );
    let calls = "{% set calls = namespace(text=content) %}{% for call in message['tool_calls'] %}{% set function = \
                 call['function'] or call %}{% set calls.text = calls.text + ('' if loop.first else '\\n') + \
                 '<tool_call>\\n{\"name\": \"' + function['name'] + '\", \"arguments\": ' + (function['arguments'] | tojson) + \
                 '}\\n</tool_call>' %}{% endfor %}{% set content = calls.text %}";
    (tools, calls.to_owned())
}
