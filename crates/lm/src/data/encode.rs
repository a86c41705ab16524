//! From an example to tokens, with what is learned of them.

use std::ops::Range;

use super::cut::Cuts;
use super::encoded::{Encoded, Labels};
use super::error::{Error, Result};
use super::example::{Conversation, Example, Message, Pair};
use super::format::{Kind, Read, Reading};
use super::hash::hash_bytes;
use super::record::{Content, Record};
use super::sft::{Chat, Outcome};
use super::source::{Row, Source};
use super::template::ChatTemplate;
use super::tokenizer::Tokenizer;

/// The version of what rows mean: raised when the same row comes to mean something else.
const ROWS: u32 = 3;

/// A row that was read, and what became of it.
pub(super) struct Encoding {
    pub(super) outcome: Outcome,
    /// As which format it was read, where none is written.
    pub(super) guessed: Option<Kind>,
    /// What it holds that nothing reads.
    pub(super) unread: Vec<String>,
    pub(super) record: Record,
    /// Which of the data sets it is of.
    pub(super) part: usize,
}

/// How examples become tokens: texts by the tokenizer alone, conversations through a chat template first.
#[derive(Clone, Copy)]
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    sft: Option<&'a Chat>,
}

impl<'a> From<&'a Tokenizer> for Encoder<'a> {
    fn from(tokenizer: &'a Tokenizer) -> Encoder<'a> {
        Encoder { tokenizer, template: None, sft: None }
    }
}

impl<'a> Encoder<'a> {
    /// Encodes conversations and pairs; what the assistant says is learned.
    pub fn chat(tokenizer: &'a Tokenizer, template: &'a ChatTemplate) -> Encoder<'a> {
        Encoder { tokenizer, template: Some(template), sft: None }
    }

    /// Encodes rows of any format as `stage: sft` does.
    pub fn sft(tokenizer: &'a Tokenizer, chat: &'a Chat) -> Encoder<'a> {
        Encoder { tokenizer, template: None, sft: Some(chat) }
    }

    /// What of each record it needs.
    pub fn content(&self) -> Content {
        if self.template.is_some() || self.sft.is_some() { Content::Object } else { Content::Text }
    }

    /// Everything apart from the records that decides which tokens come out.
    pub(super) fn identity(&self) -> String {
        let template = self.template.map(|t| format!(" {:x}", hash_bytes(t.source().as_bytes())));
        let sft = self.sft.map(|chat| format!(" {ROWS} {}", chat.identity()));
        format!(
            "{:x}{}{}",
            self.tokenizer.fingerprint(),
            template.unwrap_or_default(),
            sft.unwrap_or_default()
        )
    }

    /// Whether rows are read by the format of their data set.
    pub(super) fn reads_formats(&self) -> bool {
        self.sft.is_some()
    }

    /// Reads a row and encodes it.
    ///
    /// # Errors
    /// As [`Encoder::encode`]; a row without text, and one that `stage: sft` cannot use, is dropped instead.
    pub(super) fn row(&self, mut row: Row) -> Result<Encoding> {
        let twice: Vec<String> = row.record.unread().into_iter().collect();
        let Some(chat) = self.sft else {
            if row.record.lacks_text() {
                let (part, record) = (row.part, row.record);
                let outcome = Outcome::Dropped("its text is null".into());
                return Ok(Encoding { outcome, guessed: None, unread: twice, part, record });
            }
            let example = Example::read(&mut row.record, self.content())?;
            let encoded = self.encode(&example).map_err(|error| row.record.explain(error))?;
            return Ok(Encoding {
                outcome: Outcome::Encoded(encoded, Cuts::default()),
                guessed: None,
                unread: twice,
                part: row.part,
                record: row.record,
            });
        };
        let Read { reading, guessed, mut unread } = row.read()?;
        unread.extend(twice);
        let outcome = match reading {
            Reading::Dropped(reason) => Outcome::Dropped(reason),
            Reading::Example(example) => {
                unread.extend(chat.unread(&example));
                chat.encode(self.tokenizer, &example).map_err(|error| row.record.explain(error))?
            }
        };
        Ok(Encoding { outcome, guessed, unread, part: row.part, record: row.record })
    }

    /// The examples of a source as tokens, in order and uncut. Rows that cannot be used are left out.
    pub fn examples(self, source: &Source) -> impl Iterator<Item = Result<Encoded>> + use<'a> {
        source.rows(self.content()).filter_map(move |row| match row.and_then(|row| self.row(row)) {
            Err(error) => Some(Err(error)),
            Ok(Encoding { outcome: Outcome::Encoded(encoded, _), .. }) => Some(Ok(encoded)),
            Ok(_) => None,
        })
    }

    pub(super) fn vocab_size(&self) -> Result<usize> {
        self.tokenizer.vocab_size()
    }

    /// The tokens of an example.
    ///
    /// # Errors
    /// A tokenizer that cannot be used, a conversation that the template refuses or that holds no message of the
    /// assistant, an example of the other kind.
    pub fn encode(&self, example: &Example) -> Result<Encoded> {
        if let Some(chat) = self.sft {
            return match chat.encode(self.tokenizer, example)? {
                Outcome::Encoded(encoded, _) => Ok(encoded),
                Outcome::Dropped(reason) => Err(Error::Setting { key: "stage", cause: reason.into_owned() }),
            };
        }
        match (example, self.template) {
            (Example::Text(text), None) => {
                let ids = self.tokenizer.encode(text)?;
                Ok(Encoded { ids, labels: Labels::All, segments: Vec::new() })
            }
            (Example::Conversation(conversation), Some(template)) => {
                let (ids, spans) = self.conversation(template, conversation)?;
                Ok(Encoded { ids, labels: Labels::Spans(spans), segments: Vec::new() })
            }
            (Example::Pair(pair), Some(template)) => {
                let Pair { prompt, chosen, rejected } = &**pair;
                let (mut ids, first) = self.answer(template, prompt, chosen)?;
                let begin = ids.len() as u32;
                let (more, second) = self.answer(template, prompt, rejected)?;
                ids.extend(more);
                let spans = vec![first, begin + second.start..begin + second.end];
                Ok(Encoded { ids, labels: Labels::Spans(spans), segments: vec![begin] })
            }
            _ => Err(Error::Setting {
                key: "template",
                cause: "texts are encoded without a chat template, conversations with one".into(),
            }),
        }
    }

    /// The tokens of a conversation, and the runs of them that the assistant says.
    fn conversation(
        &self,
        template: &ChatTemplate,
        conversation: &Conversation,
    ) -> Result<(Vec<u32>, Vec<Range<u32>>)> {
        let rendered = template.render(conversation)?;
        let cuts: Vec<usize> = rendered.assistant.iter().flat_map(|span| [span.start, span.end]).collect();
        let (ids, cuts) = self.tokenizer.encode_with_cuts(&rendered.text, &cuts)?;
        let spans = cuts.chunks_exact(2).map(|cut| (cut[0].max(1) as u32)..(cut[1] as u32));
        let spans: Vec<Range<u32>> = spans.filter(|span| !span.is_empty()).collect();
        match spans.is_empty() {
            true => Err(template.error("the conversation holds nothing that the assistant says")),
            false => Ok((ids, spans)),
        }
    }

    /// The tokens of a conversation with an answer to it, and the run of them that is the answer.
    fn answer(
        &self,
        template: &ChatTemplate,
        prompt: &Conversation,
        answer: &Message,
    ) -> Result<(Vec<u32>, Range<u32>)> {
        let mut whole = prompt.clone();
        whole.messages.push(answer.clone());
        let (ids, spans) = self.conversation(template, &whole)?;
        let last = spans.last().cloned().filter(|_| answer.role == "assistant");
        Ok((ids, last.ok_or_else(|| template.error("an answer is not a message of the assistant"))?))
    }
}

#[cfg(test)]
mod tests;
