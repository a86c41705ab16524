//! What becomes of an example of a chat: tokens with their targets, or why it is dropped.

use oarlock_config::config::ExampleKind;

use super::cut::{Joining, join};
use super::encoded::Labels;
use super::error::Result;
use super::example::{Conversation, Example};
use super::sft::{Chat, Outcome, dropped, messages_of};
use super::tokenizer::Tokenizer;

impl Chat {
    /// The tokens of an example.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, example: &Example) -> Result<Outcome> {
        // What would be learned is an answer without its calls, which often is an empty one.
        if !self.writes("tool_calls")
            && messages_of(example).any(|message| message.extra.contains_key("tool_calls"))
        {
            return dropped(
                "it calls functions, and the chat template of the tokenizer does not write calls; name a template that does",
            );
        }
        match (self.args.examples, example) {
            (ExampleKind::Answers, Example::Conversation(conversation)) => {
                self.conversation(tokenizer, conversation)
            }
            (ExampleKind::Pairs, Example::Pair(pair)) => self.pair(tokenizer, pair),
            (ExampleKind::UnpairedPreferences, Example::UnpairedPreference(judged)) => {
                self.unpaired(tokenizer, judged)
            }
            (ExampleKind::Answers, Example::Pair(_)) => {
                dropped("it has two answers, which stage sft does not compare")
            }
            (ExampleKind::UnpairedPreferences, Example::Pair(_)) => {
                dropped("it has two answers, and stage kto trains on single ones")
            }
            (ExampleKind::Answers, Example::UnpairedPreference(_)) => {
                dropped("its answer has a kto_tag, which stage sft does not train on")
            }
            (ExampleKind::Pairs, Example::Conversation(_) | Example::UnpairedPreference(_)) => {
                dropped("it has one answer (columns chosen and rejected hold two)")
            }
            (ExampleKind::UnpairedPreferences, Example::Conversation(_)) => {
                dropped("its answer has no label (the column kto_tag holds true or false)")
            }
            (_, Example::Text(_)) => dropped("it is a text without turns"),
        }
    }

    fn conversation(&self, tokenizer: &Tokenizer, conversation: &Conversation) -> Result<Outcome> {
        let turns = match self.turns(tokenizer, conversation)? {
            Ok(turns) => turns,
            Err(reason) => return Ok(Outcome::Dropped(reason)),
        };
        let late_end = self.late_end(tokenizer)?;
        let joining = Joining {
            cutoff_len: self.cutoff_len,
            train_on_prompt: self.args.train_on_prompt,
            mask_history: self.args.mask_history,
            late_end,
        };
        let (encoded, cuts) = join(&turns, &joining);
        match &encoded.labels {
            Labels::Spans(spans) if spans.is_empty() => {
                dropped("nothing of its answers is left within cutoff_len")
            }
            _ => Ok(Outcome::Encoded(encoded, cuts)),
        }
    }
}
