//! An answer that is being written: its text, its keys and values, and what is next for it.

use std::time::Duration;

use oarlock_engine::{Error, Result};
use oarlock_tensor::Tensor;

use super::lending::{Loan, pages};
use super::prefixes::{PageNumber, Prefixes, Reading};
use super::request::Checked;
use super::sink::{Finished, Sink, Timings, Token};
use super::speculation::Speculation;
use super::told::Told;
use crate::generate::constraint::{Constraint, TokenSet};
use crate::generate::generator::{PREFILL_TOKENS, Stop};
use crate::generate::model::Model;
use crate::generate::own_probs::OwnProbs;
use crate::generate::sampler::{Sampler, Text, check_logits};
use crate::model::{Decoder, LayerCache, for_rows};

/// Prompts are cut at multiples of so many positions: attention computes so many queries together.
const GRAIN: usize = 32;

/// How an answer ends.
#[derive(Debug)]
pub(super) enum End {
    Complete(Stop),
    Cancelled,
    Failed(Error),
}

/// When something happened to a request.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    submitted: Duration,
    begun: Duration,
    first: Option<Duration>,
}

/// An answer that is being written.
pub(super) struct Draft<S> {
    sink: S,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    pub(super) adapter: Option<usize>,
    /// The prompt and the answer so far.
    text: Vec<u32>,
    n_prompt: usize,
    /// So much of the text is read as a prompt; the rest is passed token by token.
    as_prompt: usize,
    /// Positions whose keys and values are there.
    n_read: usize,
    cache: Vec<LayerCache>,
    /// The first pages of the cache that are those of [`Prefixes`].
    paged: Vec<PageNumber>,
    n_cached: usize,
    max_new_tokens: usize,
    /// The longest that the text may become.
    longest: usize,
    stop_ids: Vec<u32>,
    n_top_logprobs: Option<usize>,
    /// The tokens of the prompt that were read so far, where their log-probabilities are asked for.
    told: Option<Told>,
    times: Times,
    pub(super) loan: Loan,
    pub(super) speculation: Speculation,
    /// Set when nothing follows.
    pub(super) end: Option<End>,
}

impl<S: Sink> Draft<S> {
    /// The answer to a request that gets its place now, with an empty cache of each layer; `longest` is the most positions
    /// that any text may have.
    pub(super) fn new(asked: Checked<S>, cache: Vec<LayerCache>, longest: usize, now: Duration) -> Draft<S> {
        let most = pages(asked.longest_text(longest));
        let Checked { request, sampler, sink, submitted } = asked;
        let n_prompt = request.ids.len();
        let told = request.n_prompt_logprobs.map(|n_top| Told::new(&request.ids, n_top));
        let is_over = request.max_new_tokens == 0 && told.is_none();
        let mut draft = Draft {
            sink,
            sampler,
            constraint: request.constraint,
            adapter: request.adapter,
            text: request.ids,
            n_prompt,
            as_prompt: n_prompt,
            n_read: 0,
            cache,
            paged: Vec::new(),
            n_cached: 0,
            max_new_tokens: request.max_new_tokens,
            longest,
            stop_ids: request.stop_ids,
            n_top_logprobs: request.n_top_logprobs,
            told,
            times: Times { submitted, begun: now, first: None },
            loan: Loan { held: pages(n_prompt), most },
            speculation: Speculation::new(),
            end: is_over.then_some(End::Complete(Stop::MaxNewTokens)),
        };
        draft.cache.iter_mut().for_each(|layer| layer.expect_prompt(n_prompt));
        draft
    }

    /// Whether a part of a prompt is read next, not a token of the answer.
    pub(super) fn is_reading(&self) -> bool {
        self.n_read < self.as_prompt
    }

    /// How many tokens are to be read as a prompt.
    pub(super) fn n_unread(&self) -> usize {
        self.as_prompt.saturating_sub(self.n_read)
    }

    /// The positions that it has once its last token was passed through the model.
    pub(super) fn n_positions(&self) -> usize {
        self.text.len()
    }

    /// Whether its owner wants no more of it.
    pub(super) fn is_cancelled(&self) -> bool {
        self.sink.is_cancelled()
    }

    /// Reads the answer so far as a prompt, where from its length on all positions are turned in another way.
    pub(super) fn read_anew_if_turned(&mut self, decoder: &Decoder) {
        if !self.is_reading() && decoder.turns_anew(self.as_prompt, self.text.len()) {
            (self.n_read, self.as_prompt) = (0, self.text.len());
            self.paged.clear();
            for layer in &mut self.cache {
                layer.truncate(0);
                layer.expect_prompt(self.as_prompt);
            }
        }
    }

    /// Positions in pages that are those of [`Prefixes`].
    fn n_paged(&self) -> usize {
        self.paged.len() * LayerCache::PAGE
    }

    /// The pages of its cache that may be held by others as well.
    pub(super) fn paged(&self) -> &[PageNumber] {
        &self.paged
    }

    fn reading(&self, decoder: &Decoder) -> Reading {
        Reading { turning: decoder.turning(self.as_prompt), adapter: self.adapter }
    }

    /// Takes over what earlier prompts have of what is read next; how many tokens that are.
    pub(super) fn take_over(&mut self, prefixes: &mut Prefixes, decoder: &Decoder) -> Result<usize> {
        let before = self.n_read;
        // What is not read has no logits.
        if self.told.is_some() {
            return Ok(0);
        }
        while self.n_paged() == self.n_read && may_follow(self.n_read + LayerCache::PAGE, self.as_prompt) {
            let ids = &self.text[self.n_read..self.n_read + LayerCache::PAGE];
            let reading = self.reading(decoder);
            let Some(page) =
                prefixes.share_with(&mut self.cache, self.paged.last().copied(), reading, ids)?
            else {
                break;
            };
            self.paged.push(page);
            self.n_read += LayerCache::PAGE;
            self.n_cached = self.n_cached.max(self.n_read);
        }
        Ok(self.n_read - before)
    }

    /// Leaves what was read of the prompt to later prompts. To be called before the answer goes on: what is passed token by token
    /// has other bits.
    pub(super) fn leave_to(&mut self, prefixes: &mut Prefixes, decoder: &Decoder) -> Result<()> {
        while self.n_paged() + LayerCache::PAGE <= self.n_read {
            let first = self.n_paged();
            let ids = &self.text[first..first + LayerCache::PAGE];
            let (before, reading) = (self.paged.last().copied(), self.reading(decoder));
            let Some(kept) = prefixes.keep(&mut self.cache, first, before, reading, ids)? else { break };
            self.paged.push(kept);
        }
        Ok(())
    }

    /// Guesses up to `most` tokens behind the last one: no more than its answer has room for, and none from which on all
    /// positions are turned in another way.
    pub(super) fn guess(&mut self, decoder: &Decoder, most: usize) {
        let len = self.text.len();
        let n_left =
            (self.n_prompt.saturating_add(self.max_new_tokens)).min(self.longest).saturating_sub(len);
        let mut most = most.min(n_left.saturating_sub(1));
        while most > 0 && decoder.turns_anew(self.as_prompt, len + most) {
            most -= 1;
        }
        self.speculation.guess(&self.text, most);
    }

    /// The last token and the guesses behind it, and the caches to pass them over.
    pub(super) fn last_tokens(&mut self) -> (impl Iterator<Item = u32>, &mut [LayerCache]) {
        self.n_read = self.text.len();
        let last = self.text.last().copied().unwrap_or_default();
        (std::iter::once(last).chain(self.speculation.guesses().iter().copied()), &mut self.cache)
    }

    /// How many tokens it passes: the last one and the guesses.
    pub(super) fn n_passed(&self) -> usize {
        1 + self.speculation.guesses().len()
    }

    /// Whether the logits behind the guess of this number hold, which they do behind the right ones.
    pub(super) fn is_right(&self, guess: usize) -> bool {
        self.end.is_none() && self.text.last() == self.speculation.guesses().get(guess)
    }

    /// Forgets the guesses, of which the first ones were right, and what was computed of the others.
    pub(super) fn settle(&mut self, n_right: usize) {
        if self.speculation.guesses().is_empty() {
            return;
        }
        self.speculation.learn(n_right);
        // Nothing was passed of the last token.
        self.n_read = self.text.len().saturating_sub(1);
        self.cache.iter_mut().for_each(|layer| layer.truncate(self.n_read));
    }

    /// Passes the next part of the prompt for a budget of tokens; how many tokens that were, and the logits behind them.
    pub(super) fn read_part(&mut self, model: Model<'_>, budget: usize) -> Result<(usize, Tensor)> {
        let begin = self.n_read;
        self.n_read = end_of_part(begin, self.as_prompt, budget);
        let ids = &self.text[begin..self.n_read];
        let logits = for_rows(&[self.adapter], || match &mut self.told {
            None => model.next_logits(ids, &mut self.cache),
            Some(told) => {
                let prompt = &self.text[..self.n_prompt];
                model.logits_of_all(ids, &mut self.cache, GRAIN, &mut |at, logits| {
                    told.take(prompt, begin + at, &logits.to_f32_vec()?, logits.shape().last())
                })
            }
        })?;
        Ok((ids.len(), logits))
    }

    /// Chooses the next token by these logits, of which `raw` still gives each; what follows stands in `end`.
    pub(super) fn take(&mut self, logits: &mut [f32], raw: impl Fn(u32) -> Result<f32>, now: Duration) {
        self.times.first.get_or_insert(now);
        if let Some(told) = self.told.take() {
            self.sink.prompt(told.tokens);
        }
        if self.max_new_tokens == 0 {
            self.end = Some(End::Complete(Stop::MaxNewTokens));
            return;
        }
        self.end = match self.choose(logits, raw) {
            Ok(end) => end,
            Err(error) => Some(End::Failed(error)),
        };
    }

    fn choose(&mut self, logits: &mut [f32], raw: impl Fn(u32) -> Result<f32>) -> Result<Option<End>> {
        check_logits(logits)?;
        let probs = self.n_top_logprobs.map(|n| OwnProbs::new(logits, n));
        let mut allowed = self.constraint.as_ref().map(|_| TokenSet::empty(logits.len()));
        if let (Some(constraint), Some(allowed)) = (&mut self.constraint, &mut allowed) {
            constraint.allow(&self.text[self.n_prompt..], allowed)?;
        }
        let text = Text { ids: &self.text, n_prompt: self.n_prompt };
        let id = self.sampler.next(logits, text, allowed.as_ref())?;
        if self.stop_ids.contains(&id) {
            return Ok(Some(End::Complete(Stop::EndOfText)));
        }
        self.text.push(id);
        let logprob = probs.as_ref().map(|probs| Ok::<f32, Error>(probs.of(raw(id)?)));
        let token = Token {
            id,
            logprob: logprob.transpose()?,
            top: probs.map_or_else(Vec::new, |probs| probs.top()),
        };
        if self.sink.token(token).is_break() {
            return Ok(Some(End::Cancelled));
        }
        Ok(match self.text.len() {
            len if len - self.n_prompt == self.max_new_tokens => Some(End::Complete(Stop::MaxNewTokens)),
            len if len == self.longest => Some(End::Complete(Stop::ModelLength)),
            _ => None,
        })
    }

    /// Tells its owner how it ends.
    pub(super) fn finish(self, end: End, now: Duration) {
        let Times { submitted, begun, first } = self.times;
        let first = first.unwrap_or(now);
        let finished = |stop| Finished {
            stop,
            n_prompt: self.n_prompt,
            n_cached: self.n_cached.min(self.n_prompt),
            n_tokens: self.text.len() - self.n_prompt,
            timings: Timings {
                waiting: begun.saturating_sub(submitted),
                prompt: first.saturating_sub(begun),
                answer: now.saturating_sub(first),
            },
        };
        self.sink.end(match end {
            End::Complete(stop) => Ok(finished(stop)),
            End::Cancelled => Ok(finished(Stop::Caller)),
            End::Failed(error) => Err(error),
        });
    }
}

/// The end of the part of a prompt of `n` tokens that begins at `begin`.
///
/// Prompts are read in blocks of 512 positions, and a budget cuts those further. A cut changes no bit: it stands at a
/// multiple of [`GRAIN`], so attention sees the same queries together, and no part is so short that products take the way
/// of few rows, which sums in another order, unless the whole block is.
fn end_of_part(begin: usize, n: usize, budget: usize) -> usize {
    let block = n.min((begin / PREFILL_TOKENS + 1) * PREFILL_TOKENS);
    let end = begin.saturating_add(budget).max(begin + 1).min(block).next_multiple_of(GRAIN);
    if end + Decoder::FEW_ROWS >= block { block } else { end }
}

/// Whether a part of a prompt of `n` tokens may begin at `begin`, a multiple of [`GRAIN`]: what is left is neither nothing nor
/// a part of few rows, but for a whole block.
fn may_follow(begin: usize, n: usize) -> bool {
    let block = n.min((begin / PREFILL_TOKENS + 1) * PREFILL_TOKENS);
    begin < n && (begin.is_multiple_of(PREFILL_TOKENS) || block - begin > Decoder::FEW_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_of_whole_grains_but_for_the_last_and_never_of_few_rows() {
        for n in 1..1100 {
            for budget in [0, 1, 7, 32, 64, 100, 512, usize::MAX] {
                let mut begin = 0;
                while begin < n {
                    let end = end_of_part(begin, n, budget);
                    let block = (begin / PREFILL_TOKENS + 1) * PREFILL_TOKENS;
                    let is_whole_block = begin % PREFILL_TOKENS == 0 && end == n.min(block);
                    assert!(begin < end && end <= n.min(block), "{begin}..{end} of {n}");
                    assert!(begin.is_multiple_of(GRAIN), "{begin}..{end} of {n}");
                    assert!(end - begin > Decoder::FEW_ROWS || is_whole_block, "{begin}..{end} of {n}");
                    let most = budget.max(1).saturating_add(GRAIN + Decoder::FEW_ROWS);
                    assert!(end - begin <= most, "{begin}..{end} of {n} for {budget}");
                    assert!(end == n || may_follow(end, n), "{end} of {n}");
                    begin = end;
                }
            }
        }
    }
}
