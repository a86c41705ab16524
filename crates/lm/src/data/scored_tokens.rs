//! The vocabulary of a Unigram model, and how much of it may begin at one place of a text.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The tokens of a list of tokens and scores.
#[derive(Default)]
pub(super) struct ScoredTokens(Vec<String>);

impl<'de> Deserialize<'de> for ScoredTokens {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<ScoredTokens, D::Error> {
        struct ListOrNot;
        impl<'de> Visitor<'de> for ListOrNot {
            type Value = ScoredTokens;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of tokens with their scores, or an object of tokens with their ids")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<ScoredTokens, A::Error> {
                let mut tokens = Vec::new();
                while let Some((token, _)) = list.next_element::<(String, f64)>()? {
                    tokens.push(token);
                }
                Ok(ScoredTokens(tokens))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<ScoredTokens, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(ScoredTokens::default())
            }
        }
        from.deserialize_any(ListOrNot)
    }
}

impl ScoredTokens {
    /// The most bytes of tokens that begin at one place of any text.
    pub(super) fn most_at_a_place(&self) -> usize {
        let mut tokens: Vec<&str> = self.0.iter().map(String::as_str).collect();
        tokens.sort_unstable();
        // The tokens that the last one begins with, and itself.
        let (mut open, mut sum, mut most): (Vec<&str>, usize, usize) = (Vec::new(), 0, 0);
        for token in tokens {
            while let Some(begin) = open.last()
                && !token.starts_with(begin)
            {
                sum -= begin.len();
                open.pop();
            }
            open.push(token);
            sum += token.len();
            most = most.max(sum);
        }
        most
    }
}
