//! Answers to many prompts at a time: the products of all of them are one, so that each reads the weights once. Prompts
//! have lengths of their own and no padding; where an answer ends, the next prompt takes its place.

use oarlock_engine::{Error, Result};
use oarlock_tensor::{DType, Device, Tensor};

use super::generator::{GenerateOptions, Generation, Generator, PREFILL_TOKENS, Stop};
use super::sampler::{Sampler, Sampling};
use crate::model::hf::LoadedModel;
use crate::model::{Decoder, LayerCache};

/// A model that generates, wherever its weights came from.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    /// The model. Where its weights are sharded, all ranks answer in step ([`Model::generate_in_step`]).
    pub decoder: &'a Decoder,
    /// The dtype that it computes in.
    pub dtype: DType,
    /// Where it lives.
    pub device: &'a Device,
    /// The longest sequence that it can take.
    pub n_positions: usize,
}

/// A prompt with the number that its random numbers are drawn by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its number: the same number, seed and prompt give the same answer, whatever else is generated beside it.
    pub number: u64,
    /// Its tokens.
    pub ids: Vec<u32>,
}

/// An answer that is being written.
struct Row {
    /// Which prompt it answers.
    index: usize,
    sampler: Sampler,
    cache: Vec<LayerCache>,
    /// The prompt and the answer so far.
    ids: Vec<u32>,
    n_prompt: usize,
}

impl Generator {
    /// The model with what it computes in.
    pub(super) fn as_model(&self) -> Model<'_> {
        let LoadedModel { decoder, dtype, device, n_positions, .. } = &self.model;
        Model { decoder, dtype: *dtype, device, n_positions: *n_positions }
    }

    /// The answers to prompts, `at_once` of them at a time.
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
        let mut answers: Vec<Option<Generation<Vec<u32>>>> = vec![None; prompts.len()];
        let mut waiting = prompts.iter().enumerate();
        let (mut rows, mut n_done) = (Vec::new(), 0);
        loop {
            let mut logits: Vec<Vec<f32>> = self.next_logits(&mut rows, goes_on)?;
            while rows.len() < at_once.max(1) {
                let Some((index, prompt)) = waiting.next() else { break };
                let (row, first) = self.begin(index, prompt, options, goes_on)?;
                rows.push(row);
                logits.push(first);
            }
            if rows.is_empty() {
                break;
            }
            let mut going_on = Vec::with_capacity(rows.len());
            for (mut row, logits) in rows.into_iter().zip(logits) {
                match row.take(&logits, options, self.n_positions)? {
                    None => going_on.push(row),
                    Some(stop) => {
                        let output = row.ids.split_off(row.n_prompt);
                        answers[row.index] = Some(Generation { n_tokens: output.len(), output, stop });
                        n_done += 1;
                        on_answer(n_done);
                    }
                }
            }
            rows = going_on;
        }
        while goes_on(false)? {
            let ids = Tensor::from_slice(&[0], [1, 1], self.device)?;
            let mut cache = self.decoder.empty_cache(1, self.dtype, self.device)?;
            self.decoder.next_logits(&ids, &mut cache)?;
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Reads a prompt; with the logits after it.
    fn begin(
        &self,
        index: usize,
        prompt: &Prompt,
        options: &GenerateOptions,
        goes_on: &dyn Fn(bool) -> Result<bool>,
    ) -> Result<(Row, Vec<f32>)> {
        let n_positions = self.check_prompt(&prompt.ids)?;
        let n_prompt = prompt.ids.len();
        let capacity = n_positions.min(n_prompt.saturating_add(options.max_new_tokens));
        let mut cache = self.decoder.empty_cache(capacity, self.dtype, self.device)?;
        cache.iter_mut().for_each(|layer| layer.expect_prompt(n_prompt));
        let mut logits = Vec::new();
        for part in prompt.ids.chunks(PREFILL_TOKENS) {
            let ids: Vec<i32> = part.iter().map(|&id| id as i32).collect();
            let ids = Tensor::from_slice(&ids, [1, ids.len()], self.device)?;
            goes_on(true)?;
            logits = self.decoder.next_logits(&ids, &mut cache)?.to_f32_vec()?;
        }
        let seed = options.sampling.seed ^ prompt.number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let sampler = Sampler::new(Sampling { seed, ..options.sampling })?;
        Ok((Row { index, sampler, cache, ids: prompt.ids.clone(), n_prompt }, logits))
    }

    /// The logits after the last token of each row.
    fn next_logits(&self, rows: &mut [Row], goes_on: &dyn Fn(bool) -> Result<bool>) -> Result<Vec<Vec<f32>>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        goes_on(true)?;
        let last: Vec<i32> = rows.iter().filter_map(|row| row.ids.last()).map(|&id| id as i32).collect();
        let ids = Tensor::from_slice(&last, [last.len(), 1], self.device)?;
        let mut caches: Vec<&mut [LayerCache]> = rows.iter_mut().map(|row| &mut row.cache[..]).collect();
        let logits = self.decoder.next_logits_of_each(&ids, &mut caches)?;
        let vocab = logits.shape().last();
        Ok(logits.to_f32_vec()?.chunks_exact(vocab).map(<[f32]>::to_vec).collect())
    }

    /// The longest sequence, when the prompt fits into it.
    pub(super) fn check_prompt(&self, prompt: &[u32]) -> Result<usize> {
        if prompt.is_empty() {
            return Err(Error::Usage("the prompt is empty; give at least one token to continue".to_string()));
        }
        if prompt.len() >= self.n_positions {
            return Err(Error::Usage(format!(
                "the prompt has {} tokens, but the longest sequence is {}; shorten it",
                prompt.len(),
                self.n_positions
            )));
        }
        let vocab_size = self.decoder.config().vocab_size;
        if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(Error::Usage(format!(
                "the prompt holds token {id}, but the model knows {vocab_size}; the tokenizer belongs to another model"
            )));
        }
        Ok(self.n_positions)
    }
}

impl Row {
    /// Takes the next token; says why the answer ends, if it does.
    fn take(
        &mut self,
        logits: &[f32],
        options: &GenerateOptions,
        n_positions: usize,
    ) -> Result<Option<Stop>> {
        if options.max_new_tokens == 0 {
            return Ok(Some(Stop::MaxNewTokens));
        }
        let id = self.sampler.next(logits, &self.ids)?;
        if options.stop_ids.contains(&id) {
            return Ok(Some(Stop::EndOfText));
        }
        self.ids.push(id);
        Ok(match self.ids.len() {
            len if len - self.n_prompt == options.max_new_tokens => Some(Stop::MaxNewTokens),
            len if len == n_positions => Some(Stop::ModelLength),
            _ => None,
        })
    }
}
