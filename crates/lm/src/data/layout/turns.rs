//! A conversation as turns of tokens: what the model reads, and what it answers.

use std::borrow::Cow;

use oarlock_config::config::ChatArgs;
use serde_json::Value;

use super::super::error::Result;
use super::super::example::{Conversation, Message};
use super::super::tokenizer::Tokenizer;
use super::parts::{CONTENT, Class, Layout, Slot, Special, setting};
use super::tools::ToolFormat;

/// A question and its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Turn {
    /// What the model reads.
    pub(in super::super) source: Vec<u32>,
    /// What it answers.
    pub(in super::super) target: Vec<u32>,
}

/// Between the results of functions that follow each other.
const RESULTS: &str = "\n</tool_response>\n<tool_response>\n";

/// Who speaks in a turn.
#[derive(Clone, Copy, PartialEq)]
enum Speaker {
    User,
    Observation,
    Assistant,
    Function,
}

/// A message with the text that stands in its slot.
struct Said<'m> {
    speaker: Speaker,
    text: Cow<'m, str>,
}

impl Layout {
    /// The turns of a conversation that ends with an answer.
    ///
    /// # Errors
    /// A tokenizer that cannot be used, functions or calls in a format that is not there, and in the inner result why
    /// the conversation cannot be written.
    pub(in super::super) fn turns(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
        args: &ChatArgs,
    ) -> Result<std::result::Result<Vec<Turn>, &'static str>> {
        let mut said = match self.said(&conversation.messages)? {
            Ok(said) => said,
            Err(reason) => return Ok(Err(reason)),
        };
        if !said.len().is_multiple_of(2) || said.is_empty() {
            return Ok(Err("it does not end with an answer (Invalid message count)"));
        }
        let n_turns = said.len() / 2;
        // Of a conversation of which only the last answer is supervised, the thoughts before it are not there when it is
        // given.
        let forgets = args.mask_history && !args.preserve_thinking;
        let reasons = self.class == Class::Reasoning;
        if reasons {
            for (i, answer) in said.iter_mut().skip(1).step_by(2).enumerate() {
                if args.enable_thinking == Some(false) || forgets && i + 1 < n_turns {
                    answer.text = self.without_thought(&answer.text).into();
                }
            }
        }
        let mut turns = Vec::with_capacity(n_turns);
        for (i, pair) in said.chunks_exact(2).enumerate() {
            let (question, answer) = (&pair[0], &pair[1]);
            let mut turn = Turn::default();
            let mut text = Cow::Borrowed(&*question.text);
            if i == 0
                && let Some(inside) = self.begin(tokenizer, conversation, args, &mut turn.source)?
                && question.speaker == Speaker::User
            {
                text = (inside + &text).into();
            }
            self.write(tokenizer, question.speaker, &text, args, &mut turn.source)?;
            self.write(tokenizer, answer.speaker, &answer.text, args, &mut turn.target)?;
            if reasons && !(forgets && i + 1 < n_turns) && !self.has_thought(&answer.text) {
                let (open, close) = &self.thought;
                let empty = if self.closes_only { close.clone() } else { format!("{open}{close}") };
                let ids = tokenizer.encode(&empty)?;
                match args.enable_thinking {
                    Some(true) => drop(turn.target.splice(..0, ids)),
                    _ => turn.source.extend(ids),
                }
            }
            turns.push(turn);
        }
        Ok(Ok(turns))
    }

    /// Writes what stands before the first message; gives the system text where that stands inside of it.
    fn begin(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
        args: &ChatArgs,
        ids: &mut Vec<u32>,
    ) -> Result<Option<String>> {
        self.fill(tokenizer, &self.prefix, "", false, ids)?;
        let own = conversation.system.as_deref().filter(|system| !system.is_empty());
        let mut system = own.unwrap_or(&self.default_system).to_owned();
        if let Some(Value::Array(tools)) = &conversation.tools
            && !tools.is_empty()
        {
            system.push_str(&ToolFormat::named(&self.tools)?.describe(tools));
        }
        // An empty list of functions describes none, but is something to be told: LLaMA-Factory writes a system message
        // without a text then.
        if system.is_empty() && conversation.tools.is_none() {
            return Ok(None);
        }
        if self.class == Class::Llama2 {
            let text = self.system.iter().find_map(|slot| match slot {
                Slot::Text(text) => Some(text.replacen(CONTENT, &system, 1)),
                _ => None,
            });
            return Ok(text);
        }
        self.fill(tokenizer, &self.system, &system, args.split_special_tokens, ids)?;
        Ok(None)
    }

    fn write(
        &self,
        tokenizer: &Tokenizer,
        speaker: Speaker,
        text: &str,
        args: &ChatArgs,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let end = [Slot::Text(CONTENT.into()), Slot::Special { special: Special::Eos }];
        let plain = if self.efficient_eos { &end[..1] } else { &end[..] };
        let assistant = self.assistant.as_deref().unwrap_or(plain);
        let slots = match speaker {
            Speaker::User => &self.user,
            Speaker::Observation => self.observation.as_ref().unwrap_or(&self.user),
            Speaker::Assistant => assistant,
            Speaker::Function if args.tool_format.is_some() => plain,
            Speaker::Function => self.function.as_deref().unwrap_or(assistant),
        };
        // Where thoughts are written with special tokens, an answer with a thought holds them rightly.
        let (open, close) = &self.thought;
        let thinks = matches!(speaker, Speaker::Assistant | Speaker::Function)
            && !(tokenizer.special_places(open).is_empty() && tokenizer.special_places(close).is_empty());
        self.fill(tokenizer, slots, text, args.split_special_tokens && !thinks, ids)
    }

    /// The tokens of slots with `content` in them; with `as_text` special tokens in the content are text.
    fn fill(
        &self,
        tokenizer: &Tokenizer,
        slots: &[Slot],
        content: &str,
        as_text: bool,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        for slot in slots {
            match slot {
                Slot::Text(text) => {
                    let breaks = match text.find(CONTENT) {
                        Some(at) if as_text => {
                            tokenizer.special_places(content).into_iter().map(|place| at + place).collect()
                        }
                        _ => Vec::new(),
                    };
                    ids.extend(tokenizer.encode_broken(&text.replacen(CONTENT, content, 1), &breaks)?);
                }
                Slot::Token { token } => match tokenizer.id_of(token)? {
                    Some(id) => ids.push(id),
                    None => {
                        let cause = format!(
                            "its token {token} is not a token of this tokenizer; take the template of the model's family"
                        );
                        return Err(setting(cause));
                    }
                },
                Slot::Special { special: Special::Bos } => ids.extend(tokenizer.special().bos),
                Slot::Special { special: Special::Eos } => ids.extend(self.end_token(tokenizer)?),
            }
        }
        Ok(())
    }

    /// The messages with the texts of their slots: calls written out, results of functions that follow each other as one.
    fn said<'m>(&self, messages: &'m [Message]) -> Result<std::result::Result<Vec<Said<'m>>, &'static str>> {
        let mut out: Vec<Said> = Vec::with_capacity(messages.len());
        for message in messages {
            let calls =
                message.extra.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
            let (speaker, text) = match (message.role.as_str(), calls) {
                ("assistant", Some(calls)) => {
                    let calls = calls.iter().map(|call| call.get("function").unwrap_or(call));
                    let calls: Vec<(&str, &Value)> = calls
                        .map(|call| (call["name"].as_str().unwrap_or_default(), &call["arguments"]))
                        .collect();
                    match ToolFormat::named(&self.calls)?.call(&calls) {
                        Some(text) => (Speaker::Function, Cow::Owned(format!("{}{text}", message.content))),
                        None => {
                            return Ok(Err(
                                "it calls several functions at once, which the template cannot write",
                            ));
                        }
                    }
                }
                ("assistant", None) => (Speaker::Assistant, Cow::Borrowed(message.content.as_str())),
                ("user", _) => (Speaker::User, Cow::Borrowed(message.content.as_str())),
                ("tool", _) => match out.last_mut().filter(|last| last.speaker == Speaker::Observation) {
                    Some(last) => {
                        last.text.to_mut().push_str(RESULTS);
                        last.text.to_mut().push_str(&message.content);
                        continue;
                    }
                    None => (Speaker::Observation, Cow::Borrowed(message.content.as_str())),
                },
                _ => return Ok(Err("a message has an unknown role (Invalid role tag)")),
            };
            let asks = matches!(speaker, Speaker::User | Speaker::Observation);
            if asks != out.len().is_multiple_of(2) {
                return Ok(Err("its roles do not alternate (Invalid role tag)"));
            }
            out.push(Said { speaker, text });
        }
        Ok(Ok(out))
    }

    /// Whether an answer holds a thought, or a part of one.
    fn has_thought(&self, answer: &str) -> bool {
        let (open, close) = &self.thought;
        answer.contains(open.trim()) || answer.contains(close.trim())
    }

    /// An answer without its thoughts and the line ends before it.
    fn without_thought(&self, answer: &str) -> String {
        let (open, close) = &self.thought;
        let (mut out, mut rest) = (String::with_capacity(answer.len()), answer);
        while let Some(begin) = rest.find(open.as_str())
            && let Some(inside) = rest[begin + open.len()..].find(close.as_str())
        {
            out.push_str(&rest[..begin]);
            rest = &rest[begin + open.len() + inside + close.len()..];
        }
        out.push_str(rest);
        out.trim_start_matches('\n').to_owned()
    }
}
