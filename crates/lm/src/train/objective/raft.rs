//! RAFT: rejection sampling fine-tuning (Dong et al. 2023). Each step is a round: the model answers each prompt several
//! times, a rule or a reward model scores the answers, and the best one of each prompt is trained on with the loss of
//! supervised fine-tuning.

use fancy_regex::Regex;
use oarlock_config::config::{RaftArgs, RewardArgs, TrainArgs};
use oarlock_engine::{Accelerator, Error, Result, nn};
use oarlock_tensor::Tensor;

use super::answers::Reference;
use super::definition::{Answering, Objective, ObjectiveContext, Source};
use super::inputs::Inputs;
use super::language_model::{LanguageModel, Unrecorded};
use super::metric::{Mean, ObjectiveLoss, Sum};
use super::next_token::NextToken;
use crate::data::{AnsweredPrompt, Batch, Field, Fields, StepBatches};
use crate::generate::{GenerateOptions, Prompt, Sampling, Stop};

/// The mean reward of all answers, that of the best answers, the share of prompts of which no answer is trained on, and the
/// mean number of tokens of an answer.
const METRICS: [&str; 4] = ["rewards/mean", "rewards/best", "rewards/none", "answers/tokens"];

/// The field of a batch with the sum and the weight of each metric.
const REWARDS: &str = "rewards";

/// Answers of a rank that are written at a time.
const AT_ONCE: usize = 32;

/// How often a step begins anew where no answer of any rank is one to train on.
const MOST_ROUNDS: u64 = 4;

/// Best-of-K answers as examples of supervised fine-tuning.
pub struct Raft {
    args: RaftArgs,
    sft: NextToken,
    /// The reward model.
    reference: Reference,
    answering: Option<Answering>,
}

impl Raft {
    /// Of a run.
    pub fn new(args: RaftArgs, train: &TrainArgs, given: ObjectiveContext) -> Raft {
        let sft = NextToken { args: train.loss, seed: train.seed };
        Raft { args, sft, reference: given.reference, answering: given.answering }
    }

    /// All answers of this rank to the prompts of its micro-batches, `[micro-batch][prompt][answer]`.
    fn answers(
        &self,
        accelerator: &Accelerator,
        model: &dyn Unrecorded,
        asked: &[Vec<AnsweredPrompt>],
        round: u64,
    ) -> Result<Vec<Vec<Vec<Answer>>>> {
        let Some(answering) = &self.answering else {
            return Err(Error::Usage(
                "raft: answers need a tokenizer, and this objective has none".to_owned(),
            ));
        };
        let n = self.args.num_generations;
        let sampling = self.args.sampling;
        let options = GenerateOptions {
            sampling: Sampling {
                temperature: sampling.temperature,
                top_k: sampling.top_k,
                top_p: sampling.top_p,
                repetition_penalty: sampling.repetition_penalty,
                seed: self.sft.seed,
                ..Sampling::GREEDY
            },
            max_new_tokens: sampling.max_new_tokens,
            stop_ids: answering.stop_ids.clone(),
            ..GenerateOptions::default()
        };
        // The number of a prompt is its place in the order of the run, whichever rank answers it.
        let prompts = asked.iter().flatten().flat_map(|asked| {
            (0..n as u64).map(move |answer| Prompt {
                number: (asked.position * MOST_ROUNDS + round) * n as u64 + answer,
                ids: asked.prompt.clone(),
            })
        });
        let prompts: Vec<Prompt> = prompts.collect();
        let mut written = model.generate(accelerator, &prompts, &options, AT_ONCE)?.into_iter();
        let mut all = Vec::with_capacity(asked.len());
        for asked in asked {
            let mut of_batch = Vec::with_capacity(asked.len());
            for asked in asked {
                let expected = answering.tokenizer.decode(&asked.answer, true)?;
                let mut answers = Vec::with_capacity(n);
                for generation in written.by_ref().take(n) {
                    let mut ids = generation.output;
                    let text = answering.tokenizer.decode(&ids, true)?;
                    let reward = self.rule(&text, &expected, ids.len())?;
                    if generation.stop == Stop::EndOfText {
                        ids.extend(answering.stop_ids.first());
                    }
                    answers.push(Answer { example: AnsweredPrompt { answer: ids, ..asked.clone() }, reward });
                }
                of_batch.push(answers);
            }
            all.push(of_batch);
        }
        if let Reference::Second(reward_model) = &self.reference {
            score(accelerator, reward_model, &mut all, n)?;
        }
        Ok(all)
    }

    /// The reward of an answer of so many tokens by a rule; 0 where a model gives it.
    fn rule(&self, text: &str, expected: &str, n_tokens: usize) -> Result<f64> {
        let is_so = match &self.args.reward {
            RewardArgs::ExactMatch => final_answer(text) == final_answer(expected),
            RewardArgs::Regex(pattern) => {
                let pattern = pattern.replace("{answer}", &fancy_regex::escape(final_answer(expected)));
                let wrong = |error| Error::Usage(format!("reward_pattern: {pattern}: {error}"));
                Regex::new(&pattern).map_err(wrong)?.is_match(text).map_err(wrong)?
            }
            RewardArgs::Length => {
                return Ok(n_tokens as f64 / self.args.sampling.max_new_tokens.max(1) as f64);
            }
            RewardArgs::Model(_) => false,
        };
        Ok(f64::from(u8::from(is_so)))
    }

    /// The best answers of a micro-batch, as a batch with what its metrics come from.
    fn chosen(&self, prompts: Vec<Vec<Answer>>) -> Batch {
        let mut sums = [[0.0; 2]; METRICS.len()];
        let mut chosen = Vec::with_capacity(prompts.len());
        let positive = self.args.min_reward.unwrap_or(0.0);
        for answers in prompts {
            for answer in &answers {
                add(&mut sums[0], answer.reward);
                add(&mut sums[3], answer.example.answer.len() as f64);
            }
            // Of equal answers the first.
            let best =
                answers.into_iter().reduce(|best, next| if next.reward > best.reward { next } else { best });
            let Some(best) = best else { continue };
            add(&mut sums[1], best.reward);
            add(&mut sums[2], f64::from(u8::from(best.reward <= positive)));
            let is_taken = self.args.min_reward.is_none_or(|least| best.reward > least);
            chosen.extend(is_taken.then_some(best.example));
        }
        let mut batch = Batch::of_answered_prompts(&chosen);
        batch.fields.set(REWARDS, Field::Numbers(sums.concat()));
        batch
    }
}

/// An answer of the model with its reward.
#[derive(Clone, Debug)]
struct Answer {
    example: AnsweredPrompt,
    reward: f64,
}

fn add([sum, weight]: &mut [f64; 2], value: f64) {
    *sum += value;
    *weight += 1.0;
}

/// Scores answers by the value at their last tokens. All ranks run as many passes: one for each answer of a micro-batch's
/// prompts.
fn score(
    accelerator: &Accelerator,
    reward_model: &dyn Unrecorded,
    all: &mut [Vec<Vec<Answer>>],
    n: usize,
) -> Result<()> {
    for prompts in all {
        for index in 0..n {
            let examples: Vec<AnsweredPrompt> =
                prompts.iter().map(|answers| answers[index].example.clone()).collect();
            let batch = Batch::of_answered_prompts(&examples);
            let mut places: Vec<usize> = batch.samples.iter().map(|sample| sample.tokens.end - 1).collect();
            if places.is_empty() {
                places.push(0);
            }
            let inputs = Inputs::new(&batch, accelerator.device())?;
            let values = reward_model.unrecorded(&inputs, &|model, inputs| model.values(inputs, &places))?;
            for (answers, value) in prompts.iter_mut().zip(values.to_vec::<f32>()?) {
                // What is not a number is worse than every other.
                answers[index].reward = if value.is_nan() { f64::NEG_INFINITY } else { f64::from(value) };
            }
        }
    }
    Ok(())
}

/// What an answer comes to: what stands behind the last `####`, in the last `\boxed{…}`, or else all of it.
fn final_answer(text: &str) -> &str {
    let boxed = || {
        let (_, inside) = text.rsplit_once("\\boxed{")?;
        let mut depth = 1;
        let end = inside.char_indices().find(|(_, c)| {
            depth += match c {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            depth == 0
        });
        Some(&inside[..end?.0])
    };
    text.rsplit_once("####").map(|(_, last)| last).or_else(boxed).unwrap_or(text).trim()
}

impl Source for Raft {
    fn make(&self, accelerator: &Accelerator, model: &dyn Unrecorded, step: &mut StepBatches) -> Result<()> {
        let asked: Vec<Vec<AnsweredPrompt>> = step.batches.iter().map(Batch::answered_prompts).collect();
        for round in 0..MOST_ROUNDS {
            let answers = self.answers(accelerator, model, &asked, round)?;
            let batches: Vec<Batch> = answers.into_iter().map(|prompts| self.chosen(prompts)).collect();
            let mut sums = [0.0; 2];
            for batch in &batches {
                sums[0] += batch.n_targets as f64;
                sums[1] += batch.samples.iter().map(|sample| sample.tokens.len()).sum::<usize>() as f64;
            }
            accelerator.reduce_sum(&mut sums)?;
            if sums[0] > 0.0 {
                // Ranks that divide sequences have the same examples.
                let copies =
                    (accelerator.num_processes() / accelerator.data_parallel().0.max(1)).max(1) as u64;
                step.n_targets = sums[0] as u64 / copies;
                step.n_tokens = sums[1] as u64 / copies;
                step.batches = batches;
                return Ok(());
            }
        }
        Err(Error::Model(format!(
            "none of {} answers to each prompt of this step has a reward above {}, in {MOST_ROUNDS} rounds: there is nothing \
             to train on; raise num_generations, temperature or the number of prompts of a step, or begin with supervised \
             fine-tuning",
            self.args.num_generations,
            self.args.min_reward.unwrap_or(0.0)
        )))
    }
}

impl Objective for Raft {
    fn weight(&self, batch: &Batch) -> f64 {
        self.sft.weight(batch)
    }

    fn loss(&self, model: &dyn LanguageModel, inputs: &Inputs) -> nn::Result<ObjectiveLoss> {
        let mut loss = self.sft.loss(model, inputs)?;
        if !inputs.evaluates {
            loss.metrics = means(&inputs.fields, inputs.ids.device())?;
        }
        Ok(loss)
    }

    fn metrics(&self, evaluates: bool) -> &'static [&'static str] {
        if evaluates { self.sft.metrics(true) } else { &METRICS }
    }

    fn is_token_loss(&self) -> bool {
        self.sft.is_token_loss()
    }

    fn source(&self) -> Option<&dyn Source> {
        Some(self)
    }

    fn noise(&self, hidden_size: usize, inputs: &Inputs) -> nn::Result<Option<Tensor>> {
        self.sft.noise(hidden_size, inputs)
    }
}

/// The metrics of a batch of best answers.
fn means(fields: &Fields, device: &oarlock_tensor::Device) -> nn::Result<Vec<Mean>> {
    let numbers = fields.numbers(REWARDS);
    let of = |index: usize| -> nn::Result<Mean> {
        let number = |at: usize| numbers.get(at).copied().unwrap_or(0.0);
        let sum = Tensor::from_slice(&[number(2 * index) as f32], [], device)?;
        Ok(Mean { sum: Sum::from(&sum), weight: number(2 * index + 1) })
    };
    (0..METRICS.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use oarlock_config::config::{PredictArgs, TokenLossArgs};

    fn raft(reward: RewardArgs, min_reward: Option<f64>) -> Raft {
        let sampling = PredictArgs {
            max_new_tokens: 4,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            repetition_penalty: 1.0,
            skip_special_tokens: true,
        };
        Raft {
            args: RaftArgs { num_generations: 2, sampling, reward, min_reward },
            sft: NextToken { args: TokenLossArgs::default(), seed: 0 },
            reference: Reference::Absent,
            answering: None,
        }
    }

    #[test]
    fn an_answer_is_what_it_comes_to() {
        for (text, expected) in [
            ("6 times 7\n#### 42 ", "42"),
            ("so \\boxed{1} and \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
            ("so \\boxed{1", "so \\boxed{1"),
            (" Paris\n", "Paris"),
        ] {
            assert_eq!(final_answer(text), expected);
        }
    }

    #[test]
    fn rules_give_the_rewards_that_they_say() {
        let reward = |args: RewardArgs, text: &str| raft(args, None).rule(text, "#### 3.5", 3).unwrap();
        assert_eq!(reward(RewardArgs::ExactMatch, "I think #### 3.5"), 1.0);
        assert_eq!(reward(RewardArgs::ExactMatch, "3.50"), 0.0);
        let pattern = |text: &str| RewardArgs::Regex(text.to_owned());
        assert_eq!(reward(pattern("= {answer}$"), "7 / 2 = 3.5"), 1.0);
        // The point of the answer is not a pattern.
        assert_eq!(reward(pattern("= {answer}$"), "7 / 2 = 315"), 0.0);
        assert_eq!(reward(RewardArgs::Length, "abc"), 0.75);
        assert!(raft(pattern("("), None).rule("", "", 0).is_err());
    }

    #[test]
    fn the_best_answer_of_each_prompt_is_trained_on() {
        let answers = |position: u64, rewards: [f64; 2]| -> Vec<Answer> {
            let example = |id: u32| AnsweredPrompt { position, prompt: vec![1], answer: vec![id] };
            vec![
                Answer { example: example(2), reward: rewards[0] },
                Answer { example: example(3), reward: rewards[1] },
            ]
        };
        let prompts = || vec![answers(0, [0.0, 1.0]), answers(1, [0.0, 0.0]), answers(2, [1.0, 1.0])];
        let batch = raft(RewardArgs::ExactMatch, Some(0.0)).chosen(prompts());
        assert_eq!(batch.input_ids, [1, 3, 1, 2]);
        let sums = [3.0, 6.0, 2.0, 3.0, 1.0, 3.0, 6.0, 6.0];
        assert_eq!(batch.fields.numbers(REWARDS), sums);
        // Scores of a reward model have no zero of their own.
        let batch = raft(RewardArgs::ExactMatch, None).chosen(prompts());
        assert_eq!(batch.input_ids, [1, 3, 1, 2, 1, 2]);
    }
}
