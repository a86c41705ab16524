//! Answers to many prompts at a time: the products of all of them are one, so that each reads the weights once. Prompts
//! have lengths of their own and no padding; where an answer ends, the next prompt takes its place.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::Duration;

use oarlock_engine::{Error, Result};

use super::engine::Limits;
use super::engine::request::{Checked, Request};
use super::engine::scheduler::Scheduler;
use super::engine::sink::{Finished, Sink, Token};
use super::generator::{GenerateOptions, Generation, Generator};
use super::model::Model;
use super::sampler::Sampling;

/// A prompt with the number that its random numbers are drawn by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its number: the same number, seed and prompt give the same answer, whatever else is generated beside it.
    pub number: u64,
    /// Its tokens.
    pub ids: Vec<u32>,
}

/// The answers so far, and who is told of each.
struct Answers<'a> {
    answers: Vec<Option<Generation<Vec<u32>>>>,
    n_done: usize,
    error: Option<Error>,
    on_answer: &'a mut dyn FnMut(usize),
}

/// An answer that is collected.
struct Collected<'a, 'b> {
    index: usize,
    ids: Vec<u32>,
    all: &'a RefCell<Answers<'b>>,
}

impl Sink for Collected<'_, '_> {
    fn token(&mut self, token: Token) -> ControlFlow<()> {
        self.ids.push(token.id);
        ControlFlow::Continue(())
    }

    fn end(self, end: Result<Finished>) {
        let mut all = self.all.borrow_mut();
        match end {
            Ok(Finished { stop, n_tokens, .. }) => {
                all.answers[self.index] = Some(Generation { output: self.ids, stop, n_tokens });
                all.n_done += 1;
                let n_done = all.n_done;
                (all.on_answer)(n_done);
            }
            Err(error) => drop(all.error.get_or_insert(error)),
        }
    }
}

impl Generator {
    /// The answers to prompts, `at_once` of them at a time. On a CPU each has the bits that it has beside any
    /// other prompts, and up to eight at a time those of [`Generator::generate`]. More at a time are summed in another order.
    ///
    /// # Errors
    /// As [`Generator::generate`].
    pub fn generate_batch(
        &self,
        prompts: &[Prompt],
        options: &GenerateOptions,
        at_once: usize,
    ) -> Result<Vec<Generation<Vec<u32>>>> {
        self.as_model().generate_batch(prompts, options, at_once, &mut |_| ())
    }
}

impl Model<'_> {
    /// The answers to prompts, `at_once` of them at a time; `on_answer` is told how many there are after each.
    ///
    /// # Errors
    /// As [`Generator::generate`].
    pub fn generate_batch(
        &self,
        prompts: &[Prompt],
        options: &GenerateOptions,
        at_once: usize,
        on_answer: &mut dyn FnMut(usize),
    ) -> Result<Vec<Generation<Vec<u32>>>> {
        self.generate_in_step(prompts, options, at_once, on_answer, &Ok)
    }

    /// As [`Model::generate_batch`], on ranks whose passes move weights between them, so that all run equally many. Before
    /// each pass `goes_on` is told whether this rank has one to run, and says whether any rank has: one that has not takes
    /// part with a token of its own.
    ///
    /// # Errors
    /// As [`Generator::generate`], and what `goes_on` reports.
    pub fn generate_in_step(
        &self,
        prompts: &[Prompt],
        options: &GenerateOptions,
        at_once: usize,
        on_answer: &mut dyn FnMut(usize),
        goes_on: &dyn Fn(bool) -> Result<bool>,
    ) -> Result<Vec<Generation<Vec<u32>>>> {
        let answers = vec![None; prompts.len()];
        let all = RefCell::new(Answers { answers, n_done: 0, error: None, on_answer });
        // Nobody waits for a token here: prompts are read as fast as places become free.
        let limits = Limits {
            at_once,
            prompt_tokens: usize::MAX,
            prefix_bytes: 0,
            speculative_tokens: options.speculative_tokens,
            ..Limits::default()
        };
        let mut scheduler = Scheduler::new(*self, limits, Box::new(|| Duration::ZERO))?;
        for (index, prompt) in prompts.iter().enumerate() {
            let seed = options.sampling.seed ^ prompt.number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let request = Request {
                sampling: Sampling { seed, ..options.sampling },
                ..Request::with_options(prompt.ids.clone(), options)
            };
            let collected = Collected { index, ids: Vec::new(), all: &all };
            scheduler.add(Checked::new(request, collected, *self, Duration::ZERO)?);
        }
        while !scheduler.is_idle() {
            scheduler.step(*self, goes_on)?;
            if let Some(error) = all.borrow_mut().error.take() {
                return Err(error);
            }
        }
        drop(scheduler);
        while goes_on(false)? {
            self.next_logits(&[0], &mut self.empty_cache(1)?)?;
        }
        Ok(all.into_inner().answers.into_iter().flatten().collect())
    }
}
