//! A conversation on a terminal: the history is rendered by the chat template, `clear` forgets it, `exit` ends.

use std::io::{BufRead, Write};
use std::ops::ControlFlow;
use std::path::Path;

use crate::data::{ChatTemplate, Conversation, Message, Tokenizer};
use crate::error::{Error, Result};
use crate::generate::{GenerateOptions, Generator};

/// A conversation with a model.
pub struct Chat<'a> {
    generator: &'a Generator,
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    options: GenerateOptions,
    /// What was said; what the system says stays when the messages are forgotten.
    conversation: Conversation,
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
        Chat { generator, tokenizer, template, options, conversation }
    }

    /// What was said so far, the system's message not counted.
    pub fn history(&self) -> &[Message] {
        &self.conversation.messages
    }

    /// Forgets what was said.
    pub fn clear(&mut self) {
        self.conversation.messages.clear();
    }

    /// Answers; `on_text` sees the answer as it comes, in whole characters. A failed turn leaves no trace in the history.
    ///
    /// # Errors
    /// What the template or the generator reports, such as a conversation that is longer than the model allows.
    pub fn reply(
        &mut self,
        text: &str,
        on_text: impl FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<String> {
        let n_before = self.conversation.messages.len();
        self.conversation.messages.push(Message::new("user", text));
        let answer = self.answer(on_text);
        match &answer {
            Ok(answer) => self.conversation.messages.push(Message::new("assistant", answer.as_str())),
            Err(_) => self.conversation.messages.truncate(n_before),
        }
        answer
    }

    fn answer(&self, on_text: impl FnMut(&str) -> Result<ControlFlow<()>>) -> Result<String> {
        let prompt = self.template.render_prompt(&self.conversation)?;
        Ok(self.generator.generate_text(self.tokenizer, &prompt, &self.options, on_text)?.output)
    }

    /// Talks until `exit` or the end of the input.
    ///
    /// # Errors
    /// When input or output fails, or a model or template that cannot be used; a turn that is too long is only told.
    pub fn run(&mut self, input: &mut dyn BufRead, output: &mut dyn Write) -> Result<()> {
        let terminal = Path::new("the terminal");
        let mut line = String::new();
        loop {
            write!(output, "User: ")
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
                        Ok(_) => writeln!(output),
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
