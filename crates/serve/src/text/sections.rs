//! The text of an answer, told from its thoughts and calls while it comes.

use super::overlap::overlap;
use crate::backend::{AnswerFormat, CallMarks, ThoughtMarks};
use crate::conversation::Call;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Thought(String),
    Calls(Vec<Call>),
}

/// What finds the calls in the text between their marks, marks included; `None` where they are none.
pub(crate) type FindCalls<'a> = &'a dyn Fn(&str) -> Option<Vec<Call>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    Thoughts,
    Call,
}

/// Takes text and gives parts. It holds back what could be the beginning of a mark and the white space before it: around
/// thoughts and calls white space belongs to the marks.
#[derive(Debug)]
pub(crate) struct Sections {
    thoughts: Option<ThoughtMarks>,
    calls: Option<CallMarks>,
    state: State,
    held: String,
    /// In a call: up to where its end was looked for.
    n_searched: usize,
    /// In a call: the white space before it, which is text if it is none.
    space: String,
    /// Whether white space that comes now belongs to a mark.
    skips_space: bool,
    /// Whether no text has come yet.
    is_first: bool,
}

impl Sections {
    pub(crate) fn new(format: AnswerFormat) -> Sections {
        let has_marks = |marks: &ThoughtMarks| !marks.open.is_empty() && !marks.close.is_empty();
        let thoughts = format.thoughts.filter(has_marks);
        let is_open = thoughts.as_ref().is_some_and(|marks| marks.is_open);
        Sections {
            thoughts,
            calls: format.calls,
            state: if is_open { State::Thoughts } else { State::Text },
            held: String::new(),
            n_searched: 0,
            space: String::new(),
            skips_space: is_open,
            is_first: true,
        }
    }

    /// Whether what comes now is a thought.
    pub(crate) fn is_in_thoughts(&self) -> bool {
        self.state == State::Thoughts
    }

    /// The parts that are certain with this text.
    pub(crate) fn push(&mut self, text: &str, find_calls: FindCalls<'_>, out: &mut Vec<Part>) {
        self.held += text;
        // Each step takes a mark away, or is the last one.
        while match self.state {
            State::Text => self.step_in_text(out),
            State::Thoughts => self.step_in_thoughts(out),
            State::Call => self.step_in_call(find_calls, out),
        } {}
    }

    /// What was held back, when nothing more comes.
    pub(crate) fn finish(&mut self, find_calls: FindCalls<'_>, out: &mut Vec<Part>) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Call => self.end_call(&held, find_calls, out),
            State::Thoughts => thought(held.trim_end(), out),
            State::Text if self.skips_space && held.trim().is_empty() => {}
            State::Text => self.text(&held, out),
        }
        self.state = State::Text;
    }

    fn step_in_text(&mut self, out: &mut Vec<Part>) -> bool {
        self.skip_space();
        let thoughts = self.thoughts.as_ref().map_or("", |marks| &marks.open);
        let calls = self.calls.as_ref().filter(|marks| !marks.is_only_first || self.is_first);
        let is_whole = self.is_first && calls.is_some_and(|marks| marks.open.is_empty());
        let is_only_first = calls.is_some_and(|marks| marks.is_only_first);
        let calls = calls.map_or("", |marks| &marks.open);
        if thoughts.is_empty() && calls.is_empty() && !is_whole {
            let held = std::mem::take(&mut self.held);
            self.text(&held, out);
            return false;
        }
        let find = |mark: &str| self.held.find(mark).filter(|_| !mark.is_empty());
        let is_begin = |at: &usize| self.held[..*at].trim().is_empty();
        let thought_at = find(thoughts).filter(|at| !is_whole || is_begin(at));
        let call_at = find(calls).filter(|at| !is_only_first || is_begin(at));
        match (thought_at, call_at) {
            (Some(at), call) if call.is_none_or(|call| at < call) => {
                let n_mark = thoughts.len();
                let rest = self.held.split_off(at + n_mark);
                let before = std::mem::replace(&mut self.held, rest);
                self.text(before[..at].trim_end(), out);
                (self.state, self.skips_space) = (State::Thoughts, true);
                return true;
            }
            (_, Some(at)) => {
                let n_mark = calls.len();
                let rest = self.held.split_off(at);
                let before = std::mem::replace(&mut self.held, rest);
                let text = before.trim_end();
                self.text(text, out);
                before[text.len()..].clone_into(&mut self.space);
                (self.state, self.n_searched) = (State::Call, n_mark);
                return true;
            }
            _ => {}
        }
        if is_whole {
            let begun = self.held.trim_start();
            if !begun.is_empty() && !thoughts.starts_with(begun) {
                (self.state, self.n_searched) = (State::Call, 0);
                return true;
            }
            return false;
        }
        let begun = self.held.trim_start();
        let n_call = match is_only_first && !calls.starts_with(begun) {
            true => 0,
            false => overlap(&self.held, calls),
        };
        let n_kept = overlap(&self.held, thoughts).max(n_call);
        let before = self.held[..self.held.len() - n_kept].trim_end().len();
        let rest = self.held.split_off(before);
        let before = std::mem::replace(&mut self.held, rest);
        self.text(&before, out);
        false
    }

    fn step_in_thoughts(&mut self, out: &mut Vec<Part>) -> bool {
        self.skip_space();
        let close = self.thoughts.as_ref().map_or("", |marks| &marks.close);
        if let Some(at) = self.held.find(close) {
            thought(self.held[..at].trim_end(), out);
            self.held.drain(..at + close.len());
            (self.state, self.skips_space) = (State::Text, true);
            return true;
        }
        let n_kept = overlap(&self.held, close);
        let before = self.held[..self.held.len() - n_kept].trim_end().len();
        thought(&self.held[..before], out);
        self.skips_space &= before == 0;
        self.held.drain(..before);
        false
    }

    fn step_in_call(&mut self, find_calls: FindCalls<'_>, out: &mut Vec<Part>) -> bool {
        let marks = self.calls.as_ref().filter(|marks| !marks.open.is_empty());
        let Some(close) = marks.and_then(|marks| marks.close.as_deref()).filter(|close| !close.is_empty())
        else {
            return false;
        };
        let mut from = self.n_searched.min(self.held.len());
        while !self.held.is_char_boundary(from) {
            from -= 1;
        }
        let Some(at) = self.held[from..].find(close) else {
            self.n_searched = from.max((self.held.len() + 1).saturating_sub(close.len()));
            return false;
        };
        let rest = self.held.split_off(from + at + close.len());
        let section = std::mem::replace(&mut self.held, rest);
        self.end_call(&section, find_calls, out);
        self.state = State::Text;
        true
    }

    fn end_call(&mut self, section: &str, find_calls: FindCalls<'_>, out: &mut Vec<Part>) {
        let space = std::mem::take(&mut self.space);
        match find_calls(section).filter(|calls| !calls.is_empty()) {
            Some(calls) => {
                out.push(Part::Calls(calls));
                (self.is_first, self.skips_space) = (false, true);
            }
            None => self.text(&(space + section), out),
        }
    }

    fn skip_space(&mut self) {
        if self.skips_space {
            let n = self.held.len() - self.held.trim_start().len();
            self.held.drain(..n);
        }
    }

    fn text(&mut self, text: &str, out: &mut Vec<Part>) {
        if !text.is_empty() {
            out.push(Part::Text(text.to_owned()));
            (self.is_first, self.skips_space) = (false, false);
        }
    }
}

fn thought(text: &str, out: &mut Vec<Part>) {
    if !text.is_empty() {
        out.push(Part::Thought(text.to_owned()));
    }
}

#[cfg(test)]
mod tests;
