//! Answers that are compared or labeled, each behind its prompt, as segments that do not see each other.

use std::borrow::Cow;

use super::cut::{Cuts, divide};
use super::encoded::{Encoded, Labels};
use super::error::Result;
use super::example::{Conversation, Message, Pair, UnpairedPreference};
use super::sft::{Chat, Outcome, dropped};
use super::tokenizer::Tokenizer;

const NOTHING_LEFT: &str = "nothing of one of its answers is left within cutoff_len";

/// A prompt and an answer to it.
struct Answered {
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

impl Chat {
    /// Two answers to one prompt: a segment for the better one and a segment for the worse one, each with the prompt. Both
    /// are cut alike: the room is that of the longer answer.
    pub(super) fn pair(&self, tokenizer: &Tokenizer, pair: &Pair) -> Result<Outcome> {
        let with = |answer: &Message| {
            let mut whole = pair.prompt.clone();
            whole.messages.push(answer.clone());
            self.answered(tokenizer, &whole)
        };
        match (with(&pair.chosen)?, with(&pair.rejected)?) {
            (Ok(chosen), Ok(rejected)) => self.segments(&[chosen, rejected]),
            (Err(reason), _) | (_, Err(reason)) => Ok(Outcome::Dropped(reason)),
        }
    }

    /// One answer as a pair of which the other answer is missing: its segment is empty. It is whole, and cut where rows are
    /// made, as its prompt also comes with another answer.
    pub(super) fn unpaired(&self, tokenizer: &Tokenizer, judged: &UnpairedPreference) -> Result<Outcome> {
        let Answered { prompt, answer } = match self.answered(tokenizer, &judged.conversation)? {
            Ok(answered) => answered,
            Err(reason) => return Ok(Outcome::Dropped(reason)),
        };
        let (of_prompt, of_answer) = divide(prompt.len(), answer.len(), self.cutoff_len);
        // Nothing predicts the first token.
        if of_answer <= usize::from(of_prompt == 0) {
            return dropped(NOTHING_LEFT);
        }
        let cuts = Cuts {
            questions: u64::from(of_prompt < prompt.len()),
            answers: u64::from(of_answer < answer.len()),
            turns: 0,
            left_out: [prompt.len() - of_prompt, answer.len() - of_answer].map(|tokens| tokens as u64),
        };
        let begin = prompt.len().max(1) as u32;
        let ids = [prompt, answer].concat();
        let segments = vec![if judged.desired { ids.len() as u32 } else { 0 }];
        #[expect(clippy::single_range_in_vec_init, reason = "one run of tokens")]
        let labels = Labels::Spans(vec![begin..ids.len() as u32]);
        Ok(Outcome::Encoded(Encoded { ids, labels, segments }, cuts))
    }

    /// The last answer of a conversation and what stands before it.
    fn answered(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
    ) -> Result<std::result::Result<Answered, Cow<'static, str>>> {
        let mut turns = match self.turns(tokenizer, conversation)? {
            Ok(turns) => turns,
            Err(reason) => return Ok(Err(reason)),
        };
        let Some(last) = turns.pop() else { return Ok(Err("it has no message".into())) };
        let mut prompt: Vec<u32> =
            turns.into_iter().flat_map(|turn| [turn.source, turn.target]).flatten().collect();
        prompt.extend(last.source);
        let mut answer = last.target;
        answer.extend(self.late_end(tokenizer)?);
        Ok(Ok(Answered { prompt, answer }))
    }

    /// Answers with their prompts, cut to the room of each.
    fn segments(&self, answers: &[Answered]) -> Result<Outcome> {
        let longest = |len: fn(&Answered) -> usize| answers.iter().map(len).max().unwrap_or(0);
        let (of_prompt, of_answer) =
            divide(longest(|a| a.prompt.len()), longest(|a| a.answer.len()), self.cutoff_len);
        let mut encoded = Encoded { ids: Vec::new(), labels: Labels::All, segments: Vec::new() };
        let (mut cuts, mut spans) = (Cuts::default(), Vec::new());
        for (index, Answered { prompt, answer }) in answers.iter().enumerate() {
            let first = encoded.ids.len();
            if index > 0 {
                encoded.segments.push(first as u32);
            }
            let (kept_prompt, kept) = (prompt.len().min(of_prompt), answer.len().min(of_answer));
            // The two answers of a pair have one question.
            cuts.questions = cuts.questions.max(u64::from(kept_prompt < prompt.len()));
            cuts.answers += u64::from(kept < answer.len());
            encoded.ids.extend_from_slice(&prompt[..kept_prompt]);
            encoded.ids.extend_from_slice(&answer[..kept]);
            // Nothing predicts the first token of a segment.
            let begin = (first + kept_prompt).max(first + 1) as u32;
            spans.push(begin..encoded.ids.len() as u32);
        }
        if spans.iter().any(|span| span.start >= span.end) {
            return dropped(NOTHING_LEFT);
        }
        encoded.labels = Labels::Spans(spans);
        Ok(Outcome::Encoded(encoded, cuts))
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode::Encoder;
    use super::super::example::Example;
    use super::super::tokenizer::tests::small;
    use super::*;
    use oarlock_config::config::{ChatArgs, ExampleKind};

    fn chat(tokenizer: &Tokenizer, dir: &std::path::Path, examples: ExampleKind, cutoff_len: usize) -> Chat {
        let args = ChatArgs { template: Some("empty".into()), examples, ..ChatArgs::default() };
        Chat::new(tokenizer, dir, &args, cutoff_len).unwrap()
    }

    fn asked(text: &str) -> Conversation {
        Conversation { messages: vec![Message::new("user", text)], ..Conversation::default() }
    }

    fn spans(encoded: &Encoded) -> Vec<(u32, u32)> {
        let Labels::Spans(spans) = &encoded.labels else { panic!("answers have spans") };
        spans.iter().map(|span| (span.start, span.end)).collect()
    }

    #[test]
    fn a_pair_is_two_segments_that_are_cut_alike() {
        let (dir, tokenizer) = small();
        let len = |text: &str| tokenizer.encode(text).unwrap().len() as u32;
        let (question, good, bad) = ("what is it", "a river", "a hill and another hill");
        let [q, g, b] = [question, good, bad].map(len);
        let answer = |text: &str| Message::new("assistant", text);
        let pair = Pair { prompt: asked(question), chosen: answer(good), rejected: answer(bad) };
        let example = Example::Pair(Box::new(pair));
        let encode = |cutoff_len: usize| {
            let chat = chat(&tokenizer, dir.path(), ExampleKind::Pairs, cutoff_len);
            Encoder::sft(&tokenizer, &chat).encode(&example)
        };
        let whole = encode(1000).unwrap();
        assert_eq!(whole.segments, [q + g]);
        assert_eq!(spans(&whole), [(q, q + g), (q + g + q, q + g + q + b)]);
        assert_eq!(whole.ids[..q as usize], whole.ids[(q + g) as usize..(q + g + q) as usize]);
        // The room is divided between the prompt and the longer answer, and each answer keeps as much of it as it needs.
        let cutoff_len = (q + b - 2) as usize;
        let (of_prompt, of_answer) = divide(q as usize, b as usize, cutoff_len);
        let cut = encode(cutoff_len).unwrap();
        let kept = of_prompt + (g as usize).min(of_answer);
        assert_eq!((cut.segments[0] as usize, cut.ids.len()), (kept, kept + of_prompt + of_answer));
        let sft = chat(&tokenizer, dir.path(), ExampleKind::Answers, 1000);
        let error = Encoder::sft(&tokenizer, &sft).encode(&example).unwrap_err().to_string();
        assert!(error.contains("two answers"), "{error}");
    }

    #[test]
    fn an_unpaired_preference_is_a_pair_without_the_other_answer() {
        let (dir, tokenizer) = small();
        let judged = |desired: bool| {
            let mut conversation = asked("what is it");
            conversation.messages.push(Message::new("assistant", "a river"));
            Example::UnpairedPreference(Box::new(UnpairedPreference { conversation, desired }))
        };
        let chat = chat(&tokenizer, dir.path(), ExampleKind::UnpairedPreferences, 1000);
        let encode = |desired| Encoder::sft(&tokenizer, &chat).encode(&judged(desired)).unwrap();
        let (wanted, unwanted) = (encode(true), encode(false));
        assert_eq!((wanted.segments, unwanted.segments), (vec![wanted.ids.len() as u32], vec![0]));
        assert_eq!((wanted.ids, wanted.labels), (unwanted.ids, unwanted.labels));
    }
}
