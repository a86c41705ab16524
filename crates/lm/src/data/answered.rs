//! Prompts out of rows, and rows of the answers to them: what a source of examples needs that makes them while training.

use super::batch::{Batch, Sample};

/// A target that counts for nothing.
const IGNORED: i32 = -100;

/// A prompt and an answer to it, as an example of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweredPrompt {
    /// The samples of the run before it.
    pub position: u64,
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// The tokens of the answer, with the one that ends it.
    pub answer: Vec<u32>,
}

impl Batch {
    /// The examples of a batch of whole conversations, one after another: the prompt is what stands before the first target,
    /// and the targets are the answer.
    pub fn answered_prompts(&self) -> Vec<AnsweredPrompt> {
        let ids = |ids: &[i32]| ids.iter().map(|&id| id as u32).collect::<Vec<_>>();
        let of = |sample: &Sample| {
            let (own, labels) = (&self.input_ids[sample.tokens.clone()], &self.labels[sample.tokens.clone()]);
            // The label of a token is the next one.
            let first =
                labels.iter().position(|&label| label != IGNORED).unwrap_or(own.len().saturating_sub(1));
            let answer: Vec<i32> = labels.iter().copied().filter(|&label| label != IGNORED).collect();
            AnsweredPrompt {
                position: sample.position,
                prompt: ids(&own[..(first + 1).min(own.len())]),
                answer: ids(&answer),
            }
        };
        self.samples.iter().map(of).collect()
    }

    /// Examples one after another as the documents of one row, whose answers are the targets. Without an example it is one
    /// token that is not a target, so that a rank takes part all the same.
    pub fn of_answered_prompts(examples: &[AnsweredPrompt]) -> Batch {
        let mut batch = Batch { rows: 1, ..Batch::default() };
        let mut starts = Vec::new();
        for AnsweredPrompt { position, prompt, answer } in examples {
            let begin = batch.input_ids.len();
            batch.input_ids.extend(prompt.iter().chain(answer).map(|&id| id as i32));
            let end = batch.input_ids.len();
            starts.resize(end, begin as i32);
            batch.labels.resize(end, IGNORED);
            // Nothing predicts the first token.
            for at in (begin + prompt.len()).max(begin + 1)..end {
                batch.labels[at - 1] = batch.input_ids[at];
                batch.n_targets += 1;
            }
            batch.samples.push(Sample { position: *position, tokens: begin..end });
        }
        if batch.input_ids.is_empty() {
            batch.input_ids.push(0);
            batch.labels.push(IGNORED);
            starts.push(0);
        }
        batch.len = batch.input_ids.len();
        batch.doc_start = Some(starts);
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_answers_gives_them_back() {
        let example = |position: u64, prompt: &[u32], answer: &[u32]| AnsweredPrompt {
            position,
            prompt: prompt.to_vec(),
            answer: answer.to_vec(),
        };
        let examples = [example(4, &[1, 2, 3], &[4, 5]), example(9, &[6], &[7])];
        let batch = Batch::of_answered_prompts(&examples);
        assert_eq!(batch.input_ids, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(batch.labels, [-100, -100, 4, 5, -100, 7, -100]);
        assert_eq!(batch.doc_start.as_deref(), Some(&[0, 0, 0, 0, 0, 5, 5][..]));
        assert_eq!((batch.rows, batch.len, batch.n_targets), (1, 7, 3));
        assert_eq!(batch.answered_prompts(), examples);
        let none = Batch::of_answered_prompts(&[]);
        assert_eq!((none.len, none.n_targets, none.answered_prompts().len()), (1, 0, 0));
    }
}
