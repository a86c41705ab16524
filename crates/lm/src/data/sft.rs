//! Conversations as fine-tuning sees them: through a layout by name or the tokenizer's chat template, cut to
//! `cutoff_len`, the answers supervised. What compares answers is in `answers`.

use std::borrow::Cow;
use std::path::Path;

use oarlock_config::config::{ChatArgs, ExampleKind};

use super::cut::Cuts;
use super::encoded::Encoded;
use super::error::{Error, Result};
use super::example::{Conversation, Example, Message};
use super::format::is_empty;
use super::hash::hash_bytes;
use super::layout::{Layout, Turn};
use super::template::ChatTemplate;
use super::tokenizer::Tokenizer;

/// How conversations become tokens for fine-tuning.
pub struct Chat {
    writing: Writing,
    pub(super) args: ChatArgs,
    pub(super) cutoff_len: usize,
}

/// How a conversation is written.
enum Writing {
    Layout(Box<Layout>),
    Jinja(Box<ChatTemplate>),
}

/// All messages of an example, the answers that are compared among them.
pub(super) fn messages_of(example: &Example) -> impl Iterator<Item = &Message> {
    let (messages, answers): (&[Message], [Option<&Message>; 2]) = match example {
        Example::Text(_) => (&[], [None, None]),
        Example::Conversation(conversation) => (&conversation.messages, [None, None]),
        Example::UnpairedPreference(judged) => (&judged.conversation.messages, [None, None]),
        Example::Pair(pair) => (&pair.prompt.messages, [Some(&pair.chosen), Some(&pair.rejected)]),
    };
    messages.iter().chain(answers.into_iter().flatten())
}

/// What became of a conversation.
pub(super) enum Outcome {
    Encoded(Encoded, Cuts),
    Dropped(Cow<'static, str>),
}

impl Chat {
    /// The template that `args` name, or the chat template of the tokenizer in `dir`, or else the layout `empty`.
    ///
    /// # Errors
    /// A template that does not exist or is broken, or settings that do not go with it.
    pub fn new(tokenizer: &Tokenizer, dir: &Path, args: &ChatArgs, cutoff_len: usize) -> Result<Chat> {
        let layout = |name: &str| -> Result<Writing> {
            let layout = Layout::named(name)?.with(args)?;
            layout.end_token(tokenizer)?;
            Ok(Writing::Layout(Box::new(layout)))
        };
        let writing = match &args.template {
            Some(name) => layout(name)?,
            None if ChatTemplate::is_in(dir)? => {
                if args.tool_format.is_some() {
                    let cause =
                        "the tokenizer's chat template writes functions its own way; name a template, too";
                    return Err(Error::Setting { key: "tool_format", cause: cause.into() });
                }
                Writing::Jinja(Box::new(ChatTemplate::read(dir)?))
            }
            None => layout("empty")?,
        };
        // Where answers are compared, what comes before them is the prompt as a model sees it when it answers.
        let mask_history = args.mask_history || args.examples != ExampleKind::Answers;
        Ok(Chat { writing, args: ChatArgs { mask_history, ..args.clone() }, cutoff_len })
    }

    /// What it writes conversations with, for people.
    pub fn describe(&self) -> String {
        match (&self.writing, &self.args.template) {
            (Writing::Layout(_), Some(name)) => format!("template {name}"),
            (Writing::Layout(_), None) => "template empty (none is named, and the tokenizer has none)".into(),
            (Writing::Jinja(_), _) => "the chat template of the tokenizer".into(),
        }
    }

    /// The words besides the end token that end an answer.
    pub fn stop_words(&self) -> &[String] {
        match &self.writing {
            Writing::Layout(layout) => layout.stop_words(),
            Writing::Jinja(_) => &[],
        }
    }

    /// What the messages of an example hold that it does not write: fields beside the text, as files of other programs have
    /// them.
    pub(super) fn unread(&self, example: &Example) -> Vec<String> {
        let mut unread: Vec<String> = Vec::new();
        let has_tools = match example {
            Example::Text(_) => false,
            Example::Conversation(conversation) => conversation.tools.is_some(),
            Example::UnpairedPreference(judged) => judged.conversation.tools.is_some(),
            Example::Pair(pair) => pair.prompt.tools.is_some(),
        };
        if has_tools && matches!(self.writing, Writing::Jinja(_)) && !self.writes("tools") {
            unread.push("\"tools\", of which the chat template of the tokenizer knows nothing,".to_owned());
        }
        for message in messages_of(example) {
            for (field, value) in &message.extra {
                if !is_empty(value) && !self.writes(field) {
                    let reported = format!("\"{field}\" of messages");
                    if !unread.contains(&reported) {
                        unread.push(reported);
                    }
                }
            }
        }
        unread
    }

    /// The chat template of a model that is trained with a layout; `None` where the tokenizer has it already.
    ///
    /// # Errors
    /// A tokenizer that cannot be used.
    pub fn template(&self, tokenizer: &Tokenizer) -> Result<Option<String>> {
        match &self.writing {
            Writing::Layout(layout) => layout.jinja(tokenizer, &self.args).map(Some),
            Writing::Jinja(_) => Ok(None),
        }
    }

    /// Whether a field of messages can reach what is written.
    pub(super) fn writes(&self, field: &str) -> bool {
        match &self.writing {
            Writing::Layout(_) => field == "tool_calls",
            Writing::Jinja(template) => template.source().contains(field),
        }
    }

    /// What writes the prompts of a model that was trained with this; `dir` is the folder of the tokenizer.
    ///
    /// # Errors
    /// A tokenizer that cannot be used.
    pub fn prompts(&self, tokenizer: &Tokenizer, dir: &Path) -> Result<ChatTemplate> {
        match self.template(tokenizer)? {
            Some(source) => ChatTemplate::written(source, dir),
            None => ChatTemplate::read(dir),
        }
    }

    /// Where a layout writes another conversation than the chat template of the tokenizer in `dir` does: a line for
    /// people, with the first token that differs. `None` where they agree, and where there is nothing to compare.
    ///
    /// # Errors
    /// A tokenizer that cannot be used.
    pub fn disagreement(&self, tokenizer: &Tokenizer, dir: &Path) -> Result<Option<String>> {
        let Writing::Layout(layout) = &self.writing else { return Ok(None) };
        let Ok(own) = ChatTemplate::read(dir) else { return Ok(None) };
        let said = [("user", "Hi"), ("assistant", "Hello"), ("user", "1+1?"), ("assistant", "2")];
        let messages = said.map(|(role, text)| Message::new(role, text)).to_vec();
        let conversation = Conversation { messages, ..Conversation::default() };
        let Ok(turns) = layout.turns(tokenizer, &conversation, &self.args)? else { return Ok(None) };
        // Thoughts are what the keys of thinking say, whatever the tokenizer's template does.
        let Ok(rendered) = own.render(&conversation) else { return Ok(None) };
        let ours: Vec<u32> = turns.into_iter().flat_map(|turn| [turn.source, turn.target].concat()).collect();
        let theirs = tokenizer.encode(&rendered.text)?;
        let Some(at) = (0..ours.len().max(theirs.len())).find(|&at| ours.get(at) != theirs.get(at)) else {
            return Ok(None);
        };
        let shown = |ids: &[u32]| -> Result<String> { Ok(format!("{:?}", tokenizer.decode(ids, false)?)) };
        let token = |ids: &[u32]| match ids.get(at) {
            Some(id) => shown(&[*id]),
            None => Ok("its end".into()),
        };
        Ok(Some(format!(
            "warning: {} and the chat template of the tokenizer write a conversation differently: after {} the former has \
             {}, the latter {}; the model is saved with the former",
            self.describe(),
            shown(&ours[at.saturating_sub(8)..at])?,
            token(&ours)?,
            token(&theirs)?
        )))
    }

    /// Everything apart from the tokenizer and the records that decides which tokens come out.
    pub(super) fn identity(&self) -> String {
        let writing = match &self.writing {
            Writing::Layout(layout) => layout.identity(),
            Writing::Jinja(template) => template.source().into_owned(),
        };
        let identity = format!("{writing}\n{:?}\n{}", self.args, self.cutoff_len);
        format!("sft {:x}", hash_bytes(identity.as_bytes()))
    }

    /// The end token that stands for that of the tokenizer.
    ///
    /// # Errors
    /// A tokenizer that cannot be used.
    pub fn end_token(&self, tokenizer: &Tokenizer) -> Result<Option<u32>> {
        match &self.writing {
            Writing::Layout(layout) => layout.end_token(tokenizer),
            Writing::Jinja(_) => Ok(tokenizer.special().eos),
        }
    }

    /// The turns of a conversation, or why it has none.
    pub(super) fn turns(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
    ) -> Result<std::result::Result<Vec<Turn>, Cow<'static, str>>> {
        match &self.writing {
            Writing::Layout(layout) => {
                Ok(layout.turns(tokenizer, conversation, &self.args)?.map_err(Cow::from))
            }
            Writing::Jinja(template) => self.rendered(tokenizer, template, conversation),
        }
    }

    /// The end token of layouts whose answers have none of their own.
    pub(super) fn late_end(&self, tokenizer: &Tokenizer) -> Result<Option<u32>> {
        match &self.writing {
            Writing::Layout(layout) if layout.ends_late() => layout.end_token(tokenizer),
            _ => Ok(None),
        }
    }

    /// The turns of a conversation as the chat template of the tokenizer renders it.
    fn rendered(
        &self,
        tokenizer: &Tokenizer,
        template: &ChatTemplate,
        conversation: &Conversation,
    ) -> Result<std::result::Result<Vec<Turn>, Cow<'static, str>>> {
        let mut written = conversation.clone();
        if written.system.is_none() {
            written.system.clone_from(&self.args.default_system);
        }
        if written.messages.last().is_none_or(|last| last.role != "assistant") {
            return Ok(Err("it does not end with an answer (Invalid message count)".into()));
        }
        if self.args.split_special_tokens {
            let texts = written.messages.iter_mut().map(|message: &mut Message| &mut message.content);
            for text in texts.chain(written.system.as_mut()) {
                *text = broken(text, &tokenizer.special_places(text));
            }
        }
        let rendered = match template.render(&written) {
            Ok(rendered) => rendered,
            // Templates refuse conversations that the model does not know, such as two questions in a row.
            Err(Error::Template { cause, .. }) => return Ok(Err(cause.into())),
            Err(error) => return Err(error),
        };
        let mut turns: Vec<Turn> = Vec::with_capacity(rendered.assistant.len());
        let mut begin = 0;
        let encode = |part: &str| -> Result<Vec<u32>> {
            let (text, breaks) = mended(part);
            tokenizer.encode_broken(&text, &breaks)
        };
        for span in &rendered.assistant {
            let source = encode(&rendered.text[begin..span.start])?;
            let target = encode(&rendered.text[span.clone()])?;
            turns.push(Turn { source, target });
            begin = span.end;
        }
        if turns.iter().all(|turn| turn.target.is_empty()) {
            return Ok(Err("the chat template writes nothing of its answers".into()));
        }
        Ok(Ok(turns))
    }
}

pub(super) fn dropped(reason: &'static str) -> Result<Outcome> {
    Ok(Outcome::Dropped(Cow::Borrowed(reason)))
}

/// In a message for a chat template, where a special token that is text is broken. No text has this character.
const BREAK: char = '\u{fdd2}';

/// The text with a mark at each place.
fn broken(text: &str, places: &[usize]) -> String {
    let mut out = text.to_owned();
    places.iter().rev().for_each(|&at| out.insert(at, BREAK));
    out
}

/// The text without the marks, and where they were.
fn mended(text: &str) -> (String, Vec<usize>) {
    let (mut out, mut breaks) = (String::with_capacity(text.len()), Vec::new());
    for c in text.chars() {
        match c {
            BREAK => breaks.push(out.len()),
            c => out.push(c),
        }
    }
    (out, breaks)
}
