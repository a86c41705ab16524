//! The bytes that single tokens add to a text. A token may be a part of a character.

use serde_json::Value;

/// How the tokens of a vocabulary are spelled, by the decoder of `tokenizer.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each byte is a character of GPT-2's alphabet.
    ByteLevel,
    /// `▁` is a space and `<0x0A>` a byte; whether a space at the beginning of a text is left out.
    Marked { strips: bool },
    /// In some other way: a token is what the decoder makes of it alone.
    Other,
}

impl Spelling {
    /// By the decoder of `tokenizer.json`.
    pub(super) fn of(decoder: &Value) -> Spelling {
        let steps: Vec<&Value> = match decoder["decoders"].as_array() {
            Some(steps) => steps.iter().collect(),
            None => vec![decoder],
        };
        let has = |kind: &str| steps.iter().any(|step| step["type"] == kind);
        let marks = |step: &&Value| step["type"] == "Replace" && step["pattern"]["String"] == "▁";
        if has("ByteLevel") {
            return Spelling::ByteLevel;
        }
        if let Some(metaspace) = steps.iter().find(|step| step["type"] == "Metaspace") {
            return Spelling::Marked { strips: metaspace["prepend_scheme"] != "never" };
        }
        match steps.iter().any(marks) {
            true => Spelling::Marked { strips: has("Strip") },
            false => Spelling::Other,
        }
    }

    /// The bytes of a token that is written so in the vocabulary; `None` where only the decoder knows.
    pub(super) fn bytes(self, token: &str, begins_text: bool) -> Option<Vec<u8>> {
        match self {
            Spelling::ByteLevel => Some(token.chars().flat_map(byte_level).collect()),
            Spelling::Marked { strips } => Some(match byte(token) {
                Some(byte) => vec![byte],
                None => {
                    let text = token.replace('▁', " ");
                    let text =
                        if strips && begins_text { text.strip_prefix(' ').unwrap_or(&text) } else { &text };
                    text.as_bytes().to_vec()
                }
            }),
            Spelling::Other => None,
        }
    }
}

/// The byte that a character of GPT-2's alphabet stands for; a character outside of it stands for itself. (`bytes_to_unicode` of
/// GPT-2: bytes that print stand for themselves, the others follow from 256 on in their order.)
fn byte_level(c: char) -> Vec<u8> {
    let prints = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let code = u32::from(c);
    if code < 256 && prints(code) {
        return vec![code as u8];
    }
    let others = (0..256).filter(|byte| !prints(*byte));
    let found = code.checked_sub(256).and_then(|n| others.into_iter().nth(n as usize));
    found.map_or_else(|| c.to_string().into_bytes(), |byte| vec![byte as u8])
}

/// The byte of a token such as `<0x0A>`.
fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_are_spelled_as_their_decoder_says() {
        let bytes = Spelling::of(&json!({"type": "ByteLevel"}));
        assert_eq!(bytes.bytes("ĠÃ", true).unwrap(), [b' ', 0xc3]);
        assert_eq!(bytes.bytes("Ċab", false).unwrap(), b"\nab");
        assert_eq!(bytes.bytes("¶ľł", false).unwrap(), [0xb6, 0x9c, 0xa0]);
        let all: Vec<u8> = (0..=255_u32)
            .flat_map(|n| {
                let is_own = matches!(n, 33..=126 | 161..=172 | 174..=255);
                let shift = (0..n).filter(|m| !matches!(m, 33..=126 | 161..=172 | 174..=255)).count() as u32;
                byte_level(char::from_u32(if is_own { n } else { 256 + shift }).unwrap())
            })
            .collect();
        assert_eq!(all, (0..=255).collect::<Vec<u8>>());
        let marked = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]});
        let marked = Spelling::of(&marked);
        assert_eq!(marked.bytes("▁ab▁", true).unwrap(), b"ab ");
        assert_eq!(marked.bytes("▁ab", false).unwrap(), b" ab");
        assert_eq!(marked.bytes("<0xE4>", true).unwrap(), [0xe4]);
        assert_eq!(marked.bytes("<0xEX>", true).unwrap(), b"<0xEX>");
        assert_eq!(
            Spelling::of(&json!({"type": "Metaspace", "prepend_scheme": "always"})),
            Spelling::Marked { strips: true }
        );
        assert_eq!(Spelling::of(&json!({"type": "WordPiece"})).bytes("##a", true), None);
    }
}
