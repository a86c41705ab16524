//! A conversation on a terminal: the history is rendered by the chat template, `clear` forgets it, `exit` ends. Functions
//! that the model calls are shown, and their results asked for.

use std::io::{BufRead, Write};
use std::ops::ControlFlow;
use std::path::Path;

use oarlock_engine::{Error, Result};
use serde_json::Value;

use super::generator::{GenerateOptions, Generator};
use crate::data::{ChatTemplate, Conversation, Message, Tokenizer, ToolCall, tool_calls};

/// A conversation with a model.
pub struct Chat<'a> {
    generator: &'a Generator,
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    options: GenerateOptions,
    /// What was said; what the system says stays when the messages are forgotten.
    conversation: Conversation,
    /// The names of the functions that the model may call.
    functions: Vec<String>,
    /// What the last answer calls.
    calls: Vec<ToolCall>,
}

impl<'a> Chat<'a> {
    /// An empty conversation; `system` is what the model is told before it.
    pub fn new(
        generator: &'a Generator,
        tokenizer: &'a Tokenizer,
        template: &'a ChatTemplate,
        options: GenerateOptions,
        system: Option<&str>,
    ) -> Chat<'a> {
        let conversation = Conversation { system: system.map(str::to_owned), ..Conversation::default() };
        let (functions, calls) = (Vec::new(), Vec::new());
        Chat { generator, tokenizer, template, options, conversation, functions, calls }
    }

    /// Tells the model of functions that it may call: a list of their descriptions.
    ///
    /// # Errors
    /// [`Error::Usage`] where it is not a list of functions with names.
    pub fn with_tools(mut self, tools: Value) -> Result<Chat<'a>> {
        let named =
            |tool: &Value| Some(tool.get("function").unwrap_or(tool).get("name")?.as_str()?.to_owned());
        let names: Option<Vec<String>> = tools.as_array().and_then(|tools| tools.iter().map(named).collect());
        self.functions = names.ok_or_else(|| {
            Error::Usage(
                "tools are a list of functions, each an object with a name and parameters".to_owned(),
            )
        })?;
        self.conversation.tools = Some(tools);
        Ok(self)
    }

    /// What the last answer calls; empty where it calls nothing, or was not an answer.
    pub fn calls(&self) -> &[ToolCall] {
        &self.calls
    }

    /// What was said so far, the system's message not counted.
    pub fn history(&self) -> &[Message] {
        &self.conversation.messages
    }

    /// Forgets what was said.
    pub fn clear(&mut self) {
        self.conversation.messages.clear();
        self.calls.clear();
    }

    /// Answers; `on_text` sees the answer as it comes, in whole characters. A failed turn leaves no trace in the history.
    /// After an answer that calls functions, `text` is the result.
    ///
    /// # Errors
    /// What the template or the generator reports, such as a conversation that is longer than the model allows.
    pub fn reply(
        &mut self,
        text: &str,
        on_text: impl FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<String> {
        let n_before = self.conversation.messages.len();
        let role = if self.calls.is_empty() { "user" } else { "tool" };
        self.conversation.messages.push(Message::new(role, text));
        let answer = self.answer(on_text);
        match &answer {
            Ok(answer) => self.remember(answer),
            Err(_) => self.conversation.messages.truncate(n_before),
        }
        answer
    }

    /// Adds an answer to the history, its calls apart from its text.
    pub(super) fn remember(&mut self, answer: &str) {
        let called = (!self.functions.is_empty()).then(|| tool_calls(answer, &self.functions)).flatten();
        let (text, calls) = called.unwrap_or_else(|| (answer.to_owned(), Vec::new()));
        let mut message = Message::new("assistant", text);
        if !calls.is_empty() {
            let list = calls.iter().map(ToolCall::to_message).collect();
            message.extra.insert("tool_calls".to_owned(), list);
        }
        self.conversation.messages.push(message);
        self.calls = calls;
    }

    fn answer(&self, on_text: impl FnMut(&str) -> Result<ControlFlow<()>>) -> Result<String> {
        let prompt = self.template.render_prompt(&self.conversation)?;
        Ok(self.generator.generate_text(self.tokenizer, &prompt, &self.options, on_text)?.output)
    }

    fn show_calls(&self, output: &mut dyn Write) -> std::io::Result<()> {
        self.calls
            .iter()
            .try_for_each(|ToolCall { name, arguments }| writeln!(output, "[calls {name} with {arguments}]"))
    }

    /// Talks until `exit` or the end of the input.
    ///
    /// # Errors
    /// When input or output fails, or a model or template that cannot be used; a turn that is too long is only told.
    pub fn run(&mut self, input: &mut dyn BufRead, output: &mut dyn Write) -> Result<()> {
        let terminal = Path::new("the terminal");
        let mut line = String::new();
        loop {
            let asks = if self.calls.is_empty() { "User: " } else { "Tool: " };
            write!(output, "{asks}")
                .and_then(|()| output.flush())
                .map_err(Error::io("write to", terminal))?;
            line.clear();
            if input.read_line(&mut line).map_err(Error::io("read", terminal))? == 0 {
                return Ok(());
            }
            let said = match line.trim() {
                "" => Ok(()),
                "exit" => return Ok(()),
                "clear" => {
                    self.clear();
                    writeln!(output, "The conversation is forgotten.")
                }
                text => {
                    write!(output, "Assistant: ").map_err(Error::io("write to", terminal))?;
                    let shown = self.reply(text, |piece| {
                        let written = output.write_all(piece.as_bytes()).and_then(|()| output.flush());
                        written.map(ControlFlow::Continue).map_err(Error::io("write to", terminal))
                    });
                    match shown {
                        Ok(_) => writeln!(output).and_then(|()| self.show_calls(output)),
                        Err(Error::Usage(problem)) => {
                            writeln!(output, "[{problem}; `clear` starts a new conversation]")
                        }
                        Err(e) => return Err(e),
                    }
                }
            };
            said.map_err(Error::io("write to", terminal))?;
        }
    }
}
