//! Log-probabilities of tokens, in the forms of chats and of completions.

use serde_json::{Map, Value, json};

use crate::events::Token;
use crate::text::utf8::Utf8;

/// JSON has no infinities: what is impossible has the lowest number.
fn finite(logprob: f32) -> f32 {
    match logprob.is_finite() {
        true => logprob,
        false => f32::MIN,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `content` of a chat: the bytes of a token that is a part of a character stand beside its text.
pub(crate) fn of_chat(tokens: &[Token]) -> Value {
    let entry = |bytes: &[u8], logprob: f32| json!({ "token": text(bytes), "logprob": finite(logprob), "bytes": bytes });
    let one = |token: &Token| {
        let top: Vec<Value> = token.top.iter().map(|other| entry(&other.bytes, other.logprob)).collect();
        let mut entry = entry(&token.bytes, token.logprob.unwrap_or(f32::MIN));
        entry["top_logprobs"] = Value::Array(top);
        entry
    };
    json!({ "content": tokens.iter().map(one).collect::<Vec<_>>(), "refusal": null })
}

/// The lists of a completion, which go on from piece to piece.
#[derive(Debug, Default)]
pub(crate) struct OfCompletion {
    utf8: Utf8,
    /// How many characters the text has so far.
    n_chars: usize,
}

impl OfCompletion {
    /// The lists of further tokens.
    pub(crate) fn lists(&mut self, tokens: &[Token]) -> Value {
        let mut offsets = Vec::with_capacity(tokens.len());
        for token in tokens {
            offsets.push(self.n_chars);
            self.n_chars += self.utf8.push(&token.bytes).chars().count();
        }
        let top = |token: &Token| -> Value {
            if token.logprob.is_none() {
                return Value::Null;
            }
            let mut top = Map::new();
            for other in &token.top {
                // Of parts of characters with the same text the likeliest counts.
                top.entry(text(&other.bytes)).or_insert(json!(finite(other.logprob)));
            }
            Value::Object(top)
        };
        json!({
            "tokens": tokens.iter().map(|token| text(&token.bytes)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| token.logprob.map(finite)).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Alternative;

    #[test]
    fn parts_of_characters_and_infinities_are_written() {
        let bytes = "é".as_bytes();
        let other = Alternative { id: 2, bytes: b"b".to_vec(), logprob: f32::NEG_INFINITY };
        let tokens = [
            Token { id: 1, bytes: bytes[..1].to_vec(), logprob: Some(-0.5), top: vec![other] },
            Token { id: 1, bytes: bytes[1..].to_vec(), logprob: Some(f32::NAN), top: Vec::new() },
            Token { id: 3, bytes: b"x".to_vec(), logprob: None, top: Vec::new() },
        ];
        let chat = of_chat(&tokens);
        assert_eq!(chat["content"][0]["token"], "\u{fffd}");
        assert_eq!(chat["content"][0]["bytes"], json!([195]));
        assert_eq!(chat["content"][0]["top_logprobs"][0]["logprob"], json!(f32::MIN));
        assert_eq!(chat["content"][1]["logprob"], json!(f32::MIN));
        let lists = OfCompletion::default().lists(&tokens);
        assert_eq!(lists["text_offset"], json!([0, 0, 1]));
        assert_eq!(lists["token_logprobs"], json!([-0.5, f32::MIN, null]));
        assert_eq!(lists["top_logprobs"], json!([{ "b": f32::MIN }, {}, null]));
    }
}
