//! Where special tokens are written out in a text.

/// Special tokens as they are written: those that do not begin with another one, in order. Where any of them begins, the
/// last that is not behind the text in this order does, so that a place costs one search however many there are.
#[derive(Debug, Default)]
pub(super) struct Marks {
    shortest: Vec<String>,
}

impl Marks {
    pub(super) fn of(mut marks: Vec<String>) -> Marks {
        marks.retain(|mark| !mark.is_empty());
        marks.sort_unstable();
        // What begins with another one stands right behind it, with nothing between but what does so, too.
        marks.dedup_by(|mark, shorter| mark.starts_with(shorter.as_str()));
        Marks { shortest: marks }
    }

    /// Behind the first character of each special token in a text (places in bytes).
    pub(super) fn places(&self, text: &str) -> Vec<usize> {
        let begins = |at: usize| {
            let rest = &text[at..];
            let behind = self.shortest.partition_point(|mark| mark.as_str() <= rest);
            behind.checked_sub(1).is_some_and(|last| rest.starts_with(self.shortest[last].as_str()))
        };
        let found = text.char_indices().filter(|(at, _)| begins(*at));
        found.map(|(at, c)| at + c.len_utf8()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_a_look_at_every_token() {
        let sets: [&[&str]; 5] = [
            &[],
            &["<|a|>", "<|b|>"],
            &["<", "<|a|>", "<<"],
            &["ab", "abc", "b", "é", "éa"],
            &["", "x", "x"],
        ];
        for marks in sets {
            let found = Marks::of(marks.iter().map(|mark| (*mark).to_owned()).collect());
            for text in ["", "<|a|><|b|>", "<<|a|>é<", "abcababxéaé", "xxx <|", "ab"] {
                let each = text.char_indices().filter(|(at, _)| {
                    marks.iter().any(|mark| !mark.is_empty() && text[*at..].starts_with(mark))
                });
                let each: Vec<usize> = each.map(|(at, c)| at + c.len_utf8()).collect();
                assert_eq!(found.places(text), each, "{marks:?} in {text:?}");
            }
        }
    }

    /// A look at every token for every place would compare two hundred million texts.
    #[test]
    fn many_tokens_of_one_beginning_cost_one_search() {
        let marks = Marks::of((0..20_000).map(|n| format!("<|reserved_special_token_{n:05}|>")).collect());
        let text = "<|reserved_special_token_".repeat(400) + "<|reserved_special_token_00007|>";
        assert_eq!(marks.places(&text), [text.len() - 31]);
    }
}
