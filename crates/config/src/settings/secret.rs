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
    mask(text, Form::Prose)
}

/// The same for the lines of a file, in which a value may hold blanks and go on in lines that are further to the right.
pub fn masked_lines(text: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '-', '\t']).len();
    let mut out = String::with_capacity(text.len());
    // How far to the right the name of a secret stands whose value may go on.
    let mut secret_at = None;
    for line in text.split_inclusive('\n') {
        let (at, content) = (indent(line), line.trim_end());
        if secret_at.is_some_and(|secret_at| at > secret_at || content.is_empty()) {
            out.extend(
                line.bytes().map(|byte| if byte.is_ascii_whitespace() { char::from(byte) } else { '*' }),
            );
            continue;
        }
        out.push_str(&mask(line, Form::Line));
        let (name, value) = content.split_once(':').unwrap_or_default();
        let goes_on = value.is_empty() || !value.ends_with([',', '}']) && value.starts_with(' ');
        let is_secret = is_secret_name(name.trim_matches([' ', '-', '\t', '"', '\'']));
        secret_at = (is_secret && goes_on).then_some(at);
    }
    out
}

/// The words of a command with their secrets hidden, each as long as it was: a word, and the one behind a flag, may hold
/// blanks.
pub fn masked_words<'w>(words: impl IntoIterator<Item = &'w str>) -> Vec<String> {
    let mut is_value = false;
    let hidden = |word: &'w str| {
        let is_behind = std::mem::replace(&mut is_value, word.starts_with('-') && is_secret_name(word));
        let name = word.split_once('=').map_or("", |(name, _)| name);
        let name = if name.bytes().all(is_of_name) { name } else { "" };
        match word.len() - name.len() {
            n if is_behind => "*".repeat(n + name.len()),
            // A lone `token` is one of the parts of `--rdzv-conf`.
            n if is_secret_name(name) && name != "token" => format!("{name}={}", "*".repeat(n - 1)),
            _ => mask(word, Form::Word),
        }
    };
    words.into_iter().map(hidden).collect()
}

/// A command as it is shown: its words with their secrets hidden, and blanks between them.
pub fn shown_command<S: AsRef<str>>(words: &[S]) -> String {
    masked_words(words.iter().map(AsRef::as_ref)).join(" ")
}

/// Where a value without quotes ends.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// At a blank.
    Prose,
    /// At the end of the line; behind another setting in the same line also at a comma or a brace.
    Line,
    /// At the comma before the next setting, as in `token=a b,is_host=true`; behind a blank at a blank, as in commands for a
    /// shell.
    Word,
}

fn mask(text: &str, form: Form) -> String {
    let mut out = text.as_bytes().to_vec();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !is_of_name(bytes[at]) {
            at += 1;
            continue;
        }
        let name_end = bytes[at..].iter().position(|byte| !is_of_name(*byte)).map_or(bytes.len(), |n| at + n);
        let name = &text[at..name_end];
        // `a.token: File exists` is about a file.
        let is_of_file = bytes[..at].ends_with(b".") && bytes[name_end..].starts_with(b": ");
        let is_secret = is_secret_name(name) && !is_of_file;
        let value = is_secret.then(|| value_behind(bytes, at..name_end, form)).flatten();
        if let Some(value) = value.clone() {
            out[value].fill(b'*');
        }
        at = value.map_or(name_end, |value| value.end);
    }
    // Whole values are replaced, which begin and end at characters of one byte or at the end.
    String::from_utf8(out).unwrap_or_else(|_| HIDDEN.to_owned())
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// The bytes of the value of the name at `place`.
fn value_behind(bytes: &[u8], place: std::ops::Range<usize>, form: Form) -> Option<std::ops::Range<usize>> {
    let (before, name, end) = (&bytes[..place.start], &bytes[place.clone()], place.end);
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
        _ if name.starts_with(b"--") && bytes.get(end) == Some(&b' ') => skip(end, b" "),
        _ => return None,
    };
    let (begin, quote) = match (bytes.get(begin), before.last()) {
        (Some(quote @ (b'"' | b'\'')), _) => (begin + 1, Some(*quote)),
        // `'name=value'` of a shell.
        (_, Some(quote @ (b'"' | b'\''))) if bytes.get(end) == Some(&b'=') => (begin, Some(*quote)),
        _ => (begin, None),
    };
    let is_first = before.iter().all(|byte| b" \t-#\"'".contains(byte));
    let is_inside = before.contains(&b' ');
    let ends = |at: usize| {
        let byte = bytes[at];
        match (quote, form) {
            (Some(quote), _) => byte == quote || byte == b'\n',
            (None, Form::Line) => b"\r\n".contains(&byte) || !is_first && b",;}".contains(&byte),
            (None, Form::Word) if !is_inside => {
                let next = skip_name(bytes, at + 1);
                byte == b',' && next > at + 1 && bytes.get(next) == Some(&b'=')
            }
            (None, _) => byte.is_ascii_whitespace() || b",;}\"'`".contains(&byte),
        }
    };
    let end = (begin..bytes.len()).find(|at| ends(*at)).unwrap_or(bytes.len());
    (end > begin).then_some(begin..end)
}

/// Where the name that begins at a place ends.
fn skip_name(bytes: &[u8], begin: usize) -> usize {
    let behind = bytes.get(begin..).unwrap_or_default();
    begin + behind.iter().position(|byte| !is_of_name(*byte)).unwrap_or(behind.len())
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
    fn secrets_with_blanks_are_hidden_whole_in_words_and_lines() {
        for (words, shown) in [
            (
                &["train", "x.yaml", "hub_token=correct horse, battery", "lr=1"][..],
                "train x.yaml hub_token=********************** lr=1",
            ),
            (&["--hub_token", "correct horse", "--lr", "1"], "--hub_token ************* --lr 1"),
            (&["--hf_hub_token=a b"], "--hf_hub_token=***"),
            (&["--rdzv-conf", "token=a b c,d,foo=1", "x"], "--rdzv-conf token=*******,foo=1 x"),
            (&["--rdzv-conf=timeout=3,token=a b,foo=1"], "--rdzv-conf=timeout=3,token=***,foo=1"),
            (
                &["ssh", "a", "cd /x; oarlock train 'hub_token=a b' lr=1"],
                "ssh a cd /x; oarlock train 'hub_token=***' lr=1",
            ),
            (&["--eos_token", "a b", "--master_port", "1"], "--eos_token a b --master_port 1"),
        ] {
            assert_eq!(shown_command(words), shown);
        }
        for (text, shown) in [
            ("lr: 1\nhub_token: correct horse\nx: a b\n", "lr: 1\nhub_token: *************\nx: a b\n"),
            ("{lr: 1, hub_token: a b, x: 2}", "{lr: 1, hub_token: ***, x: 2}"),
            ("hub_token: |\n  a b\n  c\nx: 1", "hub_token: *\n  * *\n  *\nx: 1"),
            ("hub_token: a\n  b\nx: 1", "hub_token: *\n  *\nx: 1"),
            ("{\n  \"hub_token\": \"a b\",\n  \"x\": 1\n}", "{\n  \"hub_token\": \"***\",\n  \"x\": 1\n}"),
            ("HF_TOKEN=a b\nX=1", "HF_TOKEN=***\nX=1"),
            ("a: 1\r\nhub_token: a b\r\nb: 2\r\n", "a: 1\r\nhub_token: ***\r\nb: 2\r\n"),
        ] {
            assert_eq!(masked_lines(text), shown);
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
