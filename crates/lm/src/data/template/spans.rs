//! Which parts of a rendered conversation the assistant says.

use std::cell::Cell;
use std::ops::Range;

use serde_json::Map;

use super::super::error::Result;
use super::super::example::{Conversation, Message};
use super::compiled::Compiled;
use super::rendered::{BEGIN, END, Rendered};

/// Conversations of so many messages are rendered as a whole for each turn. In longer ones, where that would take a time
/// that grows with the square of their length, a turn is rendered with those around it.
const MAX_WHOLE: usize = 48;

/// How many messages before a turn and after it are rendered with it.
const N_AROUND: usize = 2;

/// The most messages that are rendered for one conversation, all renderings together.
const MAX_RENDERED: u64 = 1_000_000;

/// The renderings of a conversation.
pub(super) struct Spans<'a> {
    template: &'a Compiled,
    of: &'a Conversation,
    /// How many messages were rendered, in all renderings.
    n_rendered: Cell<u64>,
}

impl<'a> Spans<'a> {
    pub(super) fn new(template: &'a Compiled, of: &'a Conversation) -> Spans<'a> {
        Spans { template, of, n_rendered: Cell::new(0) }
    }

    /// The whole conversation, and which parts of it the assistant says.
    pub(super) fn render(&self) -> Result<Rendered> {
        let messages = &self.of.messages;
        let text = self.text(messages, false)?;
        if text.contains(BEGIN) {
            return self.blocks(&text);
        }
        let mut assistant: Vec<Range<usize>> = Vec::new();
        let mut last: Option<usize> = None;
        for i in (0..messages.len()).filter(|&i| messages[i].role == "assistant") {
            if self.n_rendered.get() > MAX_RENDERED {
                return Err(self.template.error(format!(
                    "the chat template renders each message in another way when there are more before it, which takes too \
                     long for a conversation of {} messages; write {{% generation %}} and {{% endgeneration %}} around what \
                     the assistant says in it",
                    messages.len()
                )));
            }
            let before = last.zip(assistant.last()).filter(|_| messages.len() > MAX_WHOLE);
            let nearby = before.and_then(|(last, span)| self.span_nearby(last, span, i, &text));
            let span = nearby.or_else(|| self.span(messages, i, &text));
            let behind_last =
                |span: &Range<usize>| assistant.last().is_none_or(|last| last.end <= span.start);
            assistant.push(span.filter(behind_last).ok_or_else(|| {
                self.template.error(format!(
                    "the chat template renders message {} so that what the assistant says cannot be distinguished from the \
                     rest; write {{% generation %}} and {{% endgeneration %}} around it in the template",
                    i + 1
                ))
            })?);
            last = Some(i);
        }
        Ok(Rendered { text, assistant })
    }

    fn text(&self, messages: &[Message], prompt: bool) -> Result<String> {
        self.n_rendered.set(self.n_rendered.get() + messages.len() as u64);
        self.template.text(self.of, messages, prompt)
    }

    /// The text without the marks of its `{% generation %}` blocks, and where these were.
    fn blocks(&self, marked: &str) -> Result<Rendered> {
        let (mut text, mut assistant) = (String::with_capacity(marked.len()), Vec::new());
        let mut parts = marked.split(BEGIN);
        text.extend(parts.next());
        for part in parts {
            let block = part.split_once(END).filter(|(_, behind)| !behind.contains(END));
            let (said, behind) = block.ok_or_else(|| {
                self.template.error("the generation blocks of the chat template are nested")
            })?;
            assistant.push(text.len()..text.len() + said.len());
            text.push_str(said);
            text.push_str(behind);
        }
        Ok(Rendered { text, assistant })
    }

    /// Where the message `i`, one of the assistant, stands in the text of the whole, which is that of `messages`.
    ///
    /// The conversation up to it is rendered with the generation prompt, which is what the model sees when it answers;
    /// and with the message, which ends the turn. Both are beginnings of the whole text, unless the template treats
    /// the last turn differently; then the message is replaced by a mark that shows where it stands.
    fn span(&self, messages: &[Message], i: usize, whole: &str) -> Option<Range<usize>> {
        let cut = |n: usize, prompt: bool| self.text(&messages[..n], prompt).ok();
        let begins = |text: &String| whole.starts_with(text.as_str());
        if let Some(until) = cut(i + 1, false).filter(begins)
            && let Some(before) = cut(i, false).filter(|text| until.starts_with(text.as_str()))
            && let Some(prompt) = cut(i, true)
        {
            // A prompt that begins an empty thought differs from a turn with a thought inside of what it asks for.
            let start = common_prefix(&prompt, &until);
            if start == prompt.len() || start > before.len() {
                return Some(start..until.len());
            }
        }
        // First without the calls and thoughts beside it: they are a part of what is said.
        let extras = [Map::new(), messages[i].extra.clone()];
        extras.into_iter().find_map(|extra| {
            let mut marked = messages.to_vec();
            marked[i] = Message { extra, ..Message::new("assistant", BEGIN) };
            self.span_by_mark(&marked, i, whole)
        })
    }

    /// As `span`, of messages in which a mark replaces the message `i`.
    fn span_by_mark(&self, marked: &[Message], i: usize, whole: &str) -> Option<Range<usize>> {
        let all = self.text(marked, false).ok()?;
        let until = self.text(&marked[..=i], false).ok()?;
        let (before, behind) = all.split_once(BEGIN)?;
        let (_, end_of_turn) = until.split_once(BEGIN)?;
        let fits = whole.starts_with(before)
            && whole.ends_with(behind)
            && behind.starts_with(end_of_turn)
            && before.len() + behind.len() <= whole.len();
        fits.then(|| before.len()..whole.len() - behind.len() + end_of_turn.len())
    }

    /// As `span`, in a time that does not grow with the conversation: of the messages around `i`, from the assistant's
    /// turn before it, `last`, which stands at `before`. What is rendered from the end of that turn to the end of this one
    /// must be what the whole has there; `None` where it is not.
    ///
    /// Templates look for the last question before a turn and for one behind it (to leave out the thoughts of turns that
    /// are answered), so these are there even if they are further away.
    fn span_nearby(&self, last: usize, before: &Range<usize>, i: usize, whole: &str) -> Option<Range<usize>> {
        let messages = &self.of.messages;
        let is_user = |at: &usize| messages[*at].role == "user";
        let question = (0..last).rev().find(is_user);
        let begin = last.saturating_sub(N_AROUND).max(question.map_or(0, |at| at + 1)).min(last);
        let end = messages.len().min(i + 1 + N_AROUND);
        let answered = (i + 1..end).any(|at| is_user(&at));
        let next = if answered { None } else { (end..messages.len()).find(is_user) };
        let around = question.into_iter().chain(begin..end).chain(next);
        let around: Vec<Message> = around.map(|at| messages[at].clone()).collect();
        let at = |message: usize| message - begin + usize::from(question.is_some());
        let text = self.text(&around, false).ok()?;
        let own_before = self.span(&around, at(last), &text)?;
        let own = self.span(&around, at(i), &text)?;
        let same = whole.get(before.clone()) == text.get(own_before.clone())
            && own_before.end <= own.start
            && whole.get(before.end..)?.starts_with(text.get(own_before.end..own.end)?);
        let moved = |place: usize| place - own_before.end + before.end;
        same.then(|| moved(own.start)..moved(own.end))
    }
}

/// How many bytes two texts have in common at their beginnings, in whole characters.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

#[cfg(test)]
mod tests;
