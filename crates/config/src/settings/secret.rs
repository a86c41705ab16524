//! Secrets: values that no output shows, and texts of others in which they may stand.

use std::fmt;

use serde::{Serialize, Serializer};

/// What is shown in the place of a secret.
pub const HIDDEN: &str = "***";

/// A value that no output shows: all its forms in words are `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for whom it is meant for.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

/// Whether the value under a name is a secret, by the names that programs give them: `hub_token`, `OPENAI_API_KEY`,
/// `--password`. Tokens of text, as `eos_token` and `max_new_tokens`, are none.
pub fn is_secret_name(name: &str) -> bool {
    let is_variable = !name.bytes().any(|byte| byte.is_ascii_lowercase());
    let name = name.trim_start_matches('-').replace('-', "_").to_ascii_lowercase();
    let ends = |words: &[&str]| {
        words.iter().any(|word| {
            name.strip_suffix(word).is_some_and(|before| before.is_empty() || before.ends_with('_'))
        })
    };
    let of_a_service = |service: &str| name.ends_with(&format!("{service}_token"));
    ends(&[
        "secret",
        "password",
        "passwd",
        "credentials",
        "api_key",
        "apikey",
        "access_key",
        "secret_key",
        "private_key",
    ]) || ["hub", "hf", "rdzv", "auth", "access", "api", "bot", "bearer"].into_iter().any(of_a_service)
        || name == "token"
        || is_variable && ends(&["token"])
}

/// A text of somebody else with its secrets hidden: whatever follows a secret's name and `=` or `:`, or is the argument of a
/// flag of such a name. A star takes the place of each byte, so that places in the text stay what they are.
pub fn masked(text: &str) -> String {
    let mut out = text.as_bytes().to_vec();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !is_name(bytes[at]) {
            at += 1;
            continue;
        }
        let name_end = bytes[at..].iter().position(|byte| !is_name(*byte)).map_or(bytes.len(), |n| at + n);
        let name = &text[at..name_end];
        // `a.token: File exists` is about a file.
        let is_of_file = bytes[..at].ends_with(b".") && bytes[name_end..].starts_with(b": ");
        let is_secret = is_secret_name(name) && !is_of_file;
        let value = is_secret.then(|| value_behind(bytes, name, name_end)).flatten();
        if let Some(value) = value.clone() {
            out[value].fill(b'*');
        }
        at = value.map_or(name_end, |value| value.end);
    }
    // Whole values are replaced, which begin and end at characters of one byte or at the end.
    String::from_utf8(out).unwrap_or_else(|_| HIDDEN.to_owned())
}

/// The bytes of the value of the name that ends at `end`.
fn value_behind(bytes: &[u8], name: &str, end: usize) -> Option<std::ops::Range<usize>> {
    let skip = |mut at: usize, those: &[u8]| {
        while bytes.get(at).is_some_and(|byte| those.contains(byte)) {
            at += 1;
        }
        at
    };
    // `"name": "value"` of JSON, `name: value`, `name = value`, `--name value`.
    let at = skip(end, b"\"' \t");
    let begin = match bytes.get(at) {
        Some(b'=' | b':') => skip(at + 1, b" \t"),
        _ if name.starts_with("--") && bytes.get(end) == Some(&b' ') => skip(end, b" "),
        _ => return None,
    };
    let (begin, quote) = match bytes.get(begin) {
        Some(quote @ (b'"' | b'\'')) => (begin + 1, Some(*quote)),
        _ => (begin, None),
    };
    let is_end = |byte: &u8| match quote {
        Some(quote) => *byte == quote || *byte == b'\n',
        None => byte.is_ascii_whitespace() || b",;}\"'`".contains(byte),
    };
    let end = bytes[begin..].iter().position(is_end).map_or(bytes.len(), |n| begin + n);
    (end > begin).then_some(begin..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_secret_shows_it() {
        let secret = Secret::new("marker");
        let json = serde_json::to_string(&secret).unwrap();
        for shown in [format!("{secret}"), format!("{secret:?}"), format!("{:?}", Some(&secret)), json] {
            assert!(shown.contains(HIDDEN) && !shown.contains("marker"), "{shown}");
        }
        assert_eq!(secret.reveal(), "marker");
    }

    #[test]
    fn secrets_are_known_by_their_names() {
        for name in [
            "hub_token",
            "hf_hub_token",
            "token",
            "--hub-token",
            "HF_TOKEN",
            "WANDB_API_KEY",
            "OARLOCK_RDZV_TOKEN",
            "swanlab_lark_secret",
            "AWS_SECRET_ACCESS_KEY",
            "password",
            "DB_PASSWORD",
            "GOOGLE_CREDENTIALS",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in [
            "eos_token",
            "pad_token",
            "image_token",
            "max_new_tokens",
            "tokens",
            "tokenizer",
            "PATH",
            "key",
            "TOKENIZERS_PARALLELISM",
            "new_special_tokens",
            "secretary",
            "",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn texts_keep_their_length_and_lose_their_secrets() {
        for (text, shown) in [
            ("hub_token: abc\nlr: 1", "hub_token: ***\nlr: 1"),
            ("hub_token=abc lr=1", "hub_token=*** lr=1"),
            ("--hub_token abc --lr 1", "--hub_token *** --lr 1"),
            ("timeout=3,token=a:b,rank=1", "timeout=3,token=***,rank=1"),
            (r#"{"hub_token": "a b", "x": 1}"#, r#"{"hub_token": "***", "x": 1}"#),
            ("HF_TOKEN='a\"b'", "HF_TOKEN='***'"),
            ("password: \u{e9}\u{e9}", "password: ****"),
            ("hub_token:", "hub_token:"),
            ("a token is text: yes", "a token is text: yes"),
            ("eos_token: </s>", "eos_token: </s>"),
            ("OARLOCK_RDZV_TOKEN=abc torchrun x", "OARLOCK_RDZV_TOKEN=*** torchrun x"),
            ("OARLOCK_RDZV_TOKEN must be the same", "OARLOCK_RDZV_TOKEN must be the same"),
            ("`OARLOCK_RDZV_TOKEN`: the token is weak", "`OARLOCK_RDZV_TOKEN`: the token is weak"),
            ("`--rdzv-conf token`: it has 3 characters", "`--rdzv-conf token`: it has 3 characters"),
        ] {
            assert_eq!(masked(text), shown);
            assert_eq!(masked(text).len(), text.len());
        }
    }
}
