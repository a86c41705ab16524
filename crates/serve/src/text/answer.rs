//! One answer while it comes: tokens go in, parts of text, thoughts and calls come out, with the tokens that they are of.

use std::collections::VecDeque;

use super::sections::{FindCalls, Part, Sections};
use super::stops::Stops;
use super::utf8::Utf8;
use crate::backend::AnswerFormat;
use crate::events::Token;

/// What can be shown of an answer.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Shown {
    pub(crate) parts: Vec<Part>,
    /// The tokens whose text has left the stop strings, where log-probabilities are asked for.
    pub(crate) tokens: Vec<Token>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    utf8: Utf8,
    stops: Stops,
    sections: Sections,
    /// The length of the text so far.
    n_text_bytes: usize,
    /// Tokens whose text was not passed on, with the place where it begins; `None` where nobody asks for them.
    tokens: Option<VecDeque<(usize, Token)>>,
    pub(crate) n_tokens: usize,
    pub(crate) n_thought_tokens: usize,
    pub(crate) n_calls: usize,
}

impl Answer {
    pub(crate) fn new(format: AnswerFormat, stops: Vec<String>, keeps_tokens: bool) -> Answer {
        Answer {
            utf8: Utf8::default(),
            stops: Stops::new(stops),
            sections: Sections::new(format),
            n_text_bytes: 0,
            tokens: keeps_tokens.then(VecDeque::new),
            n_tokens: 0,
            n_thought_tokens: 0,
            n_calls: 0,
        }
    }

    /// Takes a token. Behind a stop string nothing more is shown.
    pub(crate) fn push(&mut self, token: Token, find_calls: FindCalls<'_>) -> Shown {
        self.n_tokens += 1;
        self.n_thought_tokens += usize::from(self.sections.is_in_thoughts());
        let text = self.utf8.push(&token.bytes);
        if let Some(tokens) = &mut self.tokens {
            tokens.push_back((self.n_text_bytes, token));
        }
        self.n_text_bytes += text.len();
        let text = self.stops.push(&text);
        self.show(&text, find_calls)
    }

    /// The stop string that has ended it.
    pub(crate) fn stop(&self) -> Option<&str> {
        self.stops.found()
    }

    /// What was held back, when nothing more comes.
    pub(crate) fn finish(&mut self, find_calls: FindCalls<'_>) -> Shown {
        let rest = self.utf8.finish();
        let mut text = self.stops.push(&rest);
        text += &self.stops.finish();
        let mut shown = self.show(&text, find_calls);
        self.sections.finish(find_calls, &mut shown.parts);
        self.count_calls(&shown.parts);
        if let Some(tokens) = &mut self.tokens
            && self.stops.found().is_none()
        {
            // Tokens without text of their own, at the end.
            shown.tokens.extend(tokens.drain(..).map(|(_, token)| token));
        }
        shown
    }

    fn show(&mut self, text: &str, find_calls: FindCalls<'_>) -> Shown {
        let mut shown = Shown::default();
        self.sections.push(text, find_calls, &mut shown.parts);
        self.count_calls(&shown.parts);
        let n_passed = self.stops.n_passed();
        if let Some(tokens) = &mut self.tokens {
            while tokens.front().is_some_and(|(begin, _)| *begin < n_passed) {
                shown.tokens.extend(tokens.pop_front().map(|(_, token)| token));
            }
        }
        shown
    }

    fn count_calls(&mut self, parts: &[Part]) {
        let calls = parts.iter().map(|part| if let Part::Calls(calls) = part { calls.len() } else { 0 });
        self.n_calls += calls.sum::<usize>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(bytes: &[u8]) -> Token {
        Token { id: 0, bytes: bytes.to_vec(), logprob: Some(-1.0), top: Vec::new() }
    }

    /// For each token, and for the end, the text and the bytes of tokens that come out.
    fn shown(stops: &[&str], tokens: &[&[u8]]) -> Vec<(String, Vec<u8>)> {
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut answer = Answer::new(AnswerFormat::default(), stops, true);
        let mut all: Vec<Shown> = tokens.iter().map(|bytes| answer.push(token(bytes), &|_| None)).collect();
        all.push(answer.finish(&|_| None));
        let text = |part: Part| if let Part::Text(text) = part { text } else { String::new() };
        let one = |shown: Shown| {
            let bytes = shown.tokens.into_iter().flat_map(|token| token.bytes).collect();
            (shown.parts.into_iter().map(text).collect(), bytes)
        };
        all.into_iter().map(one).collect()
    }

    fn pair(text: &str, bytes: &[u8]) -> (String, Vec<u8>) {
        (text.to_owned(), bytes.to_vec())
    }

    #[test]
    fn tokens_come_with_their_text() {
        let smile = "😀".as_bytes();
        assert_eq!(
            shown(&[], &[b"a", &smile[..2], &smile[2..], b"b"]),
            [pair("a", b"a"), pair("", b""), pair("😀", smile), pair("b", b"b"), pair("", b"")]
        );
        assert_eq!(shown(&[], &[&smile[..2]]), [pair("", b""), pair("\u{fffd}", &smile[..2])]);
    }

    #[test]
    fn neither_a_stop_string_nor_its_tokens_are_shown() {
        assert_eq!(
            shown(&["END"], &[b"a", b" E", b"ND", b" b"]),
            [pair("a", b"a"), pair(" ", b" E"), pair("", b""), pair("", b""), pair("", b"")]
        );
        assert_eq!(shown(&["END"], &[b"E", b"N"]), [pair("", b""), pair("", b""), pair("EN", b"EN")]);
    }
}
