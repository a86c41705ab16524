//! The order of an engine's passes, one step after the other: who gets a place, whose next token is computed, and which
//! parts of prompts are read meanwhile. It knows no threads and no clock but the one that it is given.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use oarlock_engine::{Error, Result};
use oarlock_tensor::Tensor;

use super::draft::{Draft, End};
use super::lending::{Loan, may_grow, pages};
use super::limits::{Limits, Metrics};
use super::prefixes::{PageNumber, Prefixes};
use super::request::Checked;
use super::sink::Sink;
use super::speculation::{RowCost, share};
use crate::generate::generator::PREFILL_TOKENS;
use crate::generate::model::Model;
use crate::model::{Decoder, LayerCache, for_rows};

/// Says what time it is, from any beginning.
pub(in crate::generate) type Clock = Box<dyn Fn() -> Duration + Send>;

/// The requests of an engine, and what was done with them so far.
pub(in crate::generate) struct Scheduler<S> {
    limits: Limits,
    clock: Clock,
    /// The longest text, in positions.
    longest: usize,
    /// The pages of all answers.
    n_pages: usize,
    page_bytes: usize,
    prefixes: Prefixes,
    /// Whether answers hold the pages of prompts together.
    shares_pages: bool,
    waiting: VecDeque<Checked<S>>,
    /// The answers that are being written, the oldest first.
    drafts: Vec<Draft<S>>,
    metrics: Metrics,
}

impl<S: Sink> Scheduler<S> {
    /// For a model. It is the one that each step is given.
    ///
    /// # Errors
    /// A limit of memory that holds no page.
    pub(in crate::generate) fn new(model: Model<'_>, limits: Limits, clock: Clock) -> Result<Scheduler<S>> {
        let at_once = limits.at_once.max(1);
        let page_bytes = model.decoder.cache_bytes(LayerCache::PAGE, model.dtype);
        let n_pages = match limits.cache_bytes {
            None => pages(model.n_positions).saturating_mul(at_once),
            Some(bytes) => bytes / page_bytes.max(1),
        };
        if n_pages == 0 {
            return Err(Error::Usage(format!(
                "keys and values of {} positions take {page_bytes} bytes, more than the limit of {} bytes",
                LayerCache::PAGE,
                limits.cache_bytes.unwrap_or_default()
            )));
        }
        let longest = model.n_positions.min(n_pages.saturating_mul(LayerCache::PAGE));
        let max_cache_bytes = n_pages.saturating_mul(page_bytes);
        let metrics = Metrics { max_cache_bytes, ..Metrics::default() };
        let limits = Limits { at_once, ..limits };
        let prefixes = Prefixes::new(limits.prefix_bytes / page_bytes.max(1));
        Ok(Scheduler {
            limits,
            clock,
            longest,
            n_pages,
            page_bytes,
            prefixes,
            shares_pages: !model.device.is_cuda(),
            waiting: VecDeque::new(),
            drafts: Vec::new(),
            metrics,
        })
    }

    /// The most positions of a text.
    pub(in crate::generate) fn longest(&self) -> usize {
        self.longest
    }

    /// Puts a request behind those that wait.
    pub(in crate::generate) fn add(&mut self, asked: Checked<S>) {
        self.waiting.push_back(asked);
    }

    /// Whether there is nothing to do.
    pub(in crate::generate) fn is_idle(&self) -> bool {
        self.drafts.is_empty() && self.waiting.is_empty()
    }

    /// What was done so far, and what is being done.
    pub(in crate::generate) fn metrics(&self) -> Metrics {
        let held = self.n_held();
        Metrics {
            n_running: self.drafts.len(),
            n_waiting: self.waiting.len(),
            cache_bytes: held * self.page_bytes,
            prefix_bytes: self.prefixes.len() * self.page_bytes,
            ..self.metrics
        }
    }

    /// Pages of answers, each counted once. Those that are kept of prompts are not counted here.
    fn n_held(&self) -> usize {
        let held: usize = self.drafts.iter().map(|draft| draft.loan.held).sum();
        if !self.shares_pages {
            return held;
        }
        let shared: Vec<PageNumber> = self.drafts.iter().flat_map(|draft| draft.paged()).copied().collect();
        // Pages that were given up are held by answers alone.
        let given_up: BTreeSet<&PageNumber> =
            shared.iter().filter(|page| !self.prefixes.holds(**page)).collect();
        held.saturating_sub(shared.len()) + given_up.len()
    }

    /// One step: the next token of every answer, and parts of prompts. Before each pass `goes_on` is told of it, as in
    /// [`Model::generate_in_step`].
    ///
    /// # Errors
    /// What a pass reports, or `goes_on`. The answers of that pass have ended with it; the others go on with the next step.
    pub(in crate::generate) fn step(
        &mut self,
        model: Model<'_>,
        goes_on: &dyn Fn(bool) -> Result<bool>,
    ) -> Result<()> {
        self.drop_cancelled();
        self.admit(model)?;
        let wrote = self.pass_last_tokens(model, goes_on);
        self.sweep();
        let was_writing = wrote?;
        let read = self.read_prompts(model, goes_on, was_writing);
        self.sweep();
        read
    }

    fn drop_cancelled(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| !waiting.sink.is_cancelled());
        self.metrics.n_cancelled += (before - self.waiting.len()) as u64;
        for draft in self.drafts.iter_mut().filter(|draft| draft.is_cancelled()) {
            draft.end = Some(End::Cancelled);
        }
        self.sweep();
    }

    /// Gives places to requests in the order in which they came, as long as there are places and memory.
    fn admit(&mut self, model: Model<'_>) -> Result<()> {
        while self.drafts.len() < self.limits.at_once
            && let Some(next) = self.waiting.front()
        {
            let (most, mut loans) = (next.longest_text(self.longest), self.loans());
            loans.push(Loan { held: 0, most: pages(most) });
            if !may_grow(&loans, self.drafts.len(), pages(next.request.ids.len()), self.n_pages) {
                break;
            }
            let cache = model.empty_cache(most);
            let Some(asked) = self.waiting.pop_front() else { break };
            match cache {
                Ok(cache) => self.drafts.push(Draft::new(asked, cache, self.longest, (self.clock)())),
                Err(error) => {
                    self.metrics.n_failed += 1;
                    asked.sink.end(Err(Error::Model(error.to_string())));
                    return Err(error);
                }
            }
        }
        self.sweep();
        Ok(())
    }

    fn loans(&self) -> Vec<Loan> {
        self.drafts.iter().map(|draft| draft.loan).collect()
    }

    /// Lends the answer at `index` the pages of so many positions, if that is safe.
    fn lend(&mut self, index: usize, n_positions: usize) -> bool {
        let wanted = pages(n_positions);
        let extra = wanted.saturating_sub(self.drafts[index].loan.held);
        if extra > 0 {
            if !may_grow(&self.loans(), index, extra, self.n_pages) {
                return false;
            }
            self.drafts[index].loan.held = wanted;
        }
        true
    }

    /// The next token of each answer that has the memory for it; whether there was any.
    fn pass_last_tokens(&mut self, model: Model<'_>, goes_on: &dyn Fn(bool) -> Result<bool>) -> Result<bool> {
        self.drafts.iter_mut().for_each(|draft| draft.read_anew_if_turned(model.decoder));
        let mut chosen = Vec::with_capacity(self.drafts.len());
        for index in 0..self.drafts.len() {
            let draft = &self.drafts[index];
            let n_positions = draft.n_positions();
            if !draft.is_reading() && self.lend(index, n_positions) {
                chosen.push(index);
            }
        }
        if chosen.is_empty() {
            return Ok(false);
        }
        self.guess(model, &chosen);
        goes_on(true).and_then(|_| self.pass(model, &chosen)).map_err(|error| self.failed(&chosen, error))?;
        Ok(true)
    }

    /// Guesses what some answers go on with.
    fn guess(&mut self, model: Model<'_>, chosen: &[usize]) {
        // On a GPU the sums of several rows are not those of one.
        let most = if model.device.is_cuda() { 0 } else { self.limits.speculative_tokens };
        if most == 0 {
            return;
        }
        chosen.iter().for_each(|&index| self.drafts[index].guess(model.decoder, most));
        let cost = match self.limits.at_once {
            // Up to eight rows are summed as one is, and more are not.
            ..=Decoder::FEW_ROWS => RowCost { n_free: 1, each: 0.2, most: Decoder::FEW_ROWS },
            // Fewer rows than these are padded.
            _ => RowCost { n_free: Decoder::FEW_ROWS + 1, each: 0.1, most: usize::MAX },
        };
        let of_pass = self.drafts.iter_mut().enumerate().filter(|(index, _)| chosen.contains(index));
        share(of_pass.map(|(_, draft)| &mut draft.speculation), cost);
        for &index in chosen {
            let (n_positions, n) = (self.drafts[index].n_positions(), self.drafts[index].n_passed() - 1);
            // Guesses take the pages that their answer will need, if nobody waits for them.
            let fitting = (0..=n).rev().find(|n| self.lend(index, n_positions + n)).unwrap_or(0);
            if fitting < n {
                self.drafts[index].speculation.keep(fitting);
            }
        }
    }

    fn pass(&mut self, model: Model<'_>, chosen: &[usize]) -> Result<()> {
        let mut drafts: Vec<&mut Draft<S>> = Vec::with_capacity(chosen.len());
        let mut left = chosen.iter().copied().peekable();
        for (index, draft) in self.drafts.iter_mut().enumerate() {
            if left.next_if_eq(&index).is_some() {
                drafts.push(draft);
            }
        }
        let (mut ids, mut adapters) = (Vec::new(), Vec::new());
        let mut sequences: Vec<(&mut [LayerCache], usize)> = Vec::with_capacity(drafts.len());
        for draft in &mut drafts {
            let (n, adapter) = (draft.n_passed(), draft.adapter);
            let (tokens, cache) = draft.last_tokens();
            ids.extend(tokens.map(|id| id as i32));
            adapters.resize(ids.len(), adapter);
            sequences.push((cache, n));
        }
        // A product of few rows has sums of another order. Where there may be more, there always are, so that the bits of an
        // answer do not depend on those beside it.
        if self.limits.at_once > Decoder::FEW_ROWS
            && ids.len() <= Decoder::FEW_ROWS
            && !model.device.is_cuda()
        {
            ids.resize(Decoder::FEW_ROWS + 1, ids[0]);
        }
        let ids = Tensor::from_slice(&ids, [ids.len(), 1], model.device)?;
        adapters.resize(ids.sizes()[0], None);
        let logits = for_rows(&adapters, || model.decoder.logits_of_each(&ids, &mut sequences))?;
        let n_draft = (drafts.iter().map(|draft| draft.n_passed()).sum::<usize>() - drafts.len()) as u64;
        let (n_tokens, n_accepted) = take_each(drafts.into_iter(), &logits, (self.clock)())?;
        self.metrics.n_generated_tokens += n_tokens;
        self.metrics.n_draft_tokens += n_draft;
        self.metrics.n_accepted_tokens += n_accepted;
        Ok(())
    }

    /// Parts of the prompts that are not read yet. While answers are written, only as many tokens as the limits say: the
    /// shortest prompts first, so that none waits for long ones, and a part of the oldest in any case.
    fn read_prompts(
        &mut self,
        model: Model<'_>,
        goes_on: &dyn Fn(bool) -> Result<bool>,
        was_writing: bool,
    ) -> Result<()> {
        let budget = self.limits.prompt_tokens.max(1);
        let mut left = if was_writing { budget } else { budget.max(PREFILL_TOKENS) };
        let mut unread: Vec<(usize, usize)> = Vec::new();
        for index in 0..self.drafts.len() {
            let draft = &self.drafts[index];
            let (n_unread, n_positions) = (draft.n_unread(), draft.n_positions());
            // What is read anew may have outgrown its pages.
            if n_unread > 0 && self.lend(index, n_positions) {
                unread.push((n_unread, index));
            }
        }
        let n_unread: usize = unread.iter().map(|(n, _)| n).sum();
        let oldest = unread.first().filter(|_| unread.len() > 1 && n_unread > left).map(|&(_, index)| index);
        unread.sort_unstable();
        let parts = oldest.map(|index| (index, 1)).into_iter();
        for (index, most) in parts.chain(unread.into_iter().map(|(_, index)| (index, usize::MAX))) {
            let mut most = most.min(left);
            while most > 0 && self.drafts[index].is_reading() {
                let read = goes_on(true).and_then(|_| self.read_part(model, index, most));
                let n_read = read.map_err(|error| self.failed(&[index], error))?;
                (most, left) = (most.saturating_sub(n_read), left.saturating_sub(n_read));
            }
        }
        Ok(())
    }

    fn read_part(&mut self, model: Model<'_>, index: usize, budget: usize) -> Result<usize> {
        let draft = &mut self.drafts[index];
        self.metrics.n_cached_tokens += draft.take_over(&mut self.prefixes, model.decoder)? as u64;
        let (n_read, logits) = draft.read_part(model, budget)?;
        self.metrics.n_prompt_tokens += n_read as u64;
        draft.leave_to(&mut self.prefixes, model.decoder)?;
        if !draft.is_reading() {
            self.metrics.n_generated_tokens += take_each(std::iter::once(draft), &logits, (self.clock)())?.0;
        }
        Ok(n_read)
    }

    /// Ends answers with an error, which is given on.
    fn failed(&mut self, chosen: &[usize], error: Error) -> Error {
        for &index in chosen {
            self.drafts[index].end = Some(End::Failed(Error::Model(error.to_string())));
        }
        error
    }

    /// Takes away the answers that have ended.
    fn sweep(&mut self) {
        if self.drafts.iter().all(|draft| draft.end.is_none()) {
            return;
        }
        let now = (self.clock)();
        for mut draft in std::mem::take(&mut self.drafts) {
            match draft.end.take() {
                None => self.drafts.push(draft),
                Some(end) => {
                    match end {
                        End::Complete(_) => self.metrics.n_finished += 1,
                        End::Cancelled => self.metrics.n_cancelled += 1,
                        End::Failed(_) => self.metrics.n_failed += 1,
                    }
                    draft.finish(end, now);
                }
            }
        }
    }
}

/// Lets each draft choose by its rows of the logits: by the first one, and by that behind each guess as long as they are
/// right. How many tokens that gives, and how many guesses were right.
fn take_each<'r, S: Sink + 'r>(
    drafts: impl Iterator<Item = &'r mut Draft<S>>,
    logits: &Tensor,
    now: Duration,
) -> Result<(u64, u64)> {
    let vocab_size = logits.shape().last();
    // The drafts change this copy into what they choose by; the tensor keeps the logits.
    let mut scores = logits.to_f32_vec()?;
    let (mut n_tokens, mut n_accepted, mut first) = (0, 0, 0);
    for draft in drafts {
        let (before, n_rows) = (draft.n_positions(), draft.n_passed());
        let mut n_right = 0;
        for (at, scores) in scores.chunks_exact_mut(vocab_size).enumerate().skip(first).take(n_rows) {
            let raw = |id: u32| {
                let mut logit = [0.0];
                logits.read_f32(at * vocab_size + id as usize, &mut logit)?;
                Ok(logit[0])
            };
            draft.take(scores, raw, now);
            if !draft.is_right(n_right) {
                break;
            }
            n_right += 1;
        }
        draft.settle(n_right);
        first += n_rows;
        n_accepted += n_right as u64;
        n_tokens += (draft.n_positions() - before) as u64;
    }
    Ok((n_tokens, n_accepted))
}
