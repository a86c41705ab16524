//! The continuation of one text, token by token.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::Duration;

use oarlock_engine::Result;

use super::engine::Limits;
use super::engine::request::{Checked, Request};
use super::engine::scheduler::Scheduler;
use super::engine::sink::{Finished, Sink, Token};
use super::generator::{GenerateOptions, Generation, Generator};
use crate::data::Tokenizer;

/// An answer whose owner sees each token as it comes.
struct Shown<'a, F> {
    on_token: F,
    /// The tokens so far.
    ids: Vec<u32>,
    /// What `on_token` reports.
    wrong: Result<()>,
    answer: &'a RefCell<Option<Result<Generation<Vec<u32>>>>>,
}

impl<F: FnMut(u32) -> Result<ControlFlow<()>>> Sink for Shown<'_, F> {
    fn token(&mut self, token: Token) -> ControlFlow<()> {
        self.ids.push(token.id);
        (self.on_token)(token.id).unwrap_or_else(|error| {
            self.wrong = Err(error);
            ControlFlow::Break(())
        })
    }

    fn end(self, end: Result<Finished>) {
        let complete = |Finished { stop, n_tokens, .. }| Generation { output: self.ids, stop, n_tokens };
        *self.answer.borrow_mut() = Some(self.wrong.and(end).map(complete));
    }
}

impl Generator {
    /// Continues `prompt`; `on_token` sees each token as it comes and may end the answer.
    ///
    /// # Errors
    /// An empty prompt, one that is longer than the model allows or holds tokens that it does not know, sampling
    /// settings that make no sense, and whatever the model or `on_token` reports.
    pub fn generate(
        &self,
        prompt: &[u32],
        options: &GenerateOptions,
        on_token: impl FnMut(u32) -> Result<ControlFlow<()>>,
    ) -> Result<Generation<Vec<u32>>> {
        let (model, answer) = (self.as_model(), RefCell::new(None));
        let limits = Limits {
            at_once: 1,
            prefix_bytes: 0,
            speculative_tokens: options.speculative_tokens,
            ..Limits::default()
        };
        let mut scheduler = Scheduler::new(model, limits, Box::new(|| Duration::ZERO))?;
        let request = Request::with_options(prompt.to_vec(), options);
        let shown = Shown { on_token, ids: Vec::new(), wrong: Ok(()), answer: &answer };
        scheduler.add(Checked::new(request, shown, model, Duration::ZERO)?);
        loop {
            scheduler.step(model, &Ok)?;
            if let Some(answer) = answer.take() {
                return answer;
            }
        }
    }

    /// As [`Generator::generate`], with text: `on_text` sees whole characters only.
    ///
    /// # Errors
    /// As [`Generator::generate`], or a tokenizer that cannot be used.
    pub fn generate_text(
        &self,
        tokenizer: &Tokenizer,
        prompt: &str,
        options: &GenerateOptions,
        mut on_text: impl FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<Generation<String>> {
        let mut stream = tokenizer.stream(true);
        let mut text = String::new();
        let mut emit = |piece: String| {
            text += &piece;
            if piece.is_empty() { Ok(ControlFlow::Continue(())) } else { on_text(&piece) }
        };
        let answer = self.generate(&tokenizer.encode(prompt)?, options, |id| emit(stream.push(id)?))?;
        // The answer is over: whether the caller wants more makes no difference.
        let _ = emit(stream.finish()?)?;
        Ok(Generation { output: text, stop: answer.stop, n_tokens: answer.n_tokens })
    }
}
