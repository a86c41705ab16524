//! The fence around the crate `tokenizers`: what is asked of it, with its panics as messages, a limit to the growth of
//! a text, and an error where it would silently stop at a pattern that backtracks without end.

use fancy_regex::Regex;
use oarlock_config::json;
use serde::Deserialize;
use serde_json::Value;

use super::added_tokens::AddedToken;
use super::distinct_ids;
use super::fence::fenced;
use super::pieces::{MAX_WORD_BYTES, Pieces, check_word};
use super::pre_tokenizer::gave_up;
use super::scored_tokens::ScoredTokens;
use super::token_bytes::Spelling;

type Result<T> = std::result::Result<T, String>;

/// How many times longer the replacements of a tokenizer may make a text; that of SentencePiece's space is 3.
const MAX_GROWTH: usize = 64;

/// The longest added token, and the most bytes of all. The library builds an automaton of them, in a time that grows with
/// the square of a token's length.
const MAX_ADDED_BYTES: usize = 1 << 14;
const MAX_ALL_ADDED_BYTES: usize = 1 << 24;

/// The most characters of a word that WordPiece may look at, in a time that grows with more than their square. BERT's are 100.
const MAX_WORDPIECE_CHARS: u64 = 1024;

/// The most bytes of tokens of a Unigram vocabulary that may begin at one place of a text: the library looks at all of them at
/// each place. Pieces of SentencePiece have up to 16 characters.
const MAX_PIECES_BYTES: usize = 1 << 12;

/// A built `tokenizer.json`.
pub(super) struct Engine {
    tokenizer: tokenizers::Tokenizer,
    /// The short way, where there is one.
    pieces: Option<Pieces>,
    is_byte_level_bpe: bool,
    spelling: Spelling,
    /// The patterns that may backtrack.
    patterns: Vec<Regex>,
}

/// The parts that are looked at here.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    model: Model,
}

/// What is looked at of the model; the library knows the rest.
#[derive(Default, Deserialize)]
struct Model {
    dropout: Option<f32>,
    max_input_chars_per_word: Option<u64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    /// Of a Unigram model; others write an object.
    #[serde(default)]
    vocab: ScoredTokens,
}

impl Model {
    fn check(&self) -> Result<()> {
        if let Some(dropout) = self.dropout.filter(|dropout| *dropout > 0.0) {
            return Err(format!(
                "its model leaves out merges at random (\"dropout\": {dropout}), so that no run could be repeated; write null"
            ));
        }
        if let Some(found) = self.max_input_chars_per_word.filter(|found| *found > MAX_WORDPIECE_CHARS) {
            return Err(format!(
                "its model looks at words of up to {found} characters (\"max_input_chars_per_word\"), and supported are at most \
                 {MAX_WORDPIECE_CHARS}; write a smaller number"
            ));
        }
        let found = self.vocab.most_at_a_place();
        if found > MAX_PIECES_BYTES {
            return Err(format!(
                "tokens of its vocabulary that begin alike, or one of them alone, have {found} bytes, and may have \
                 {MAX_PIECES_BYTES}: a long text would take hours; repair the file"
            ));
        }
        let ends = [&self.continuing_subword_prefix, &self.end_of_word_suffix].into_iter().flatten();
        match ends.map(String::len).find(|n_bytes| *n_bytes > MAX_GROWTH) {
            Some(found) => Err(format!(
                "what its model adds to the parts of a word has {found} bytes, and may have {MAX_GROWTH}; repair the file"
            )),
            None => Ok(()),
        }
    }
}

#[derive(Deserialize)]
struct Added {
    id: Option<u32>,
    #[serde(default)]
    content: String,
}

impl Engine {
    /// Builds the vocabulary of a `tokenizer.json`, and adds tokens to it: those that the vocabulary lacks get the next ids.
    pub(super) fn build(json: &[u8], added: &[AddedToken]) -> Result<Engine> {
        let whole = |cause: String| format!("{cause}; is it a whole tokenizer.json?");
        let parts: Parts = json::from_slice(json).map_err(|e| whole(e.to_string()))?;
        let of_file = parts.added_tokens.iter().map(|token| token.content.len());
        let sizes: Vec<usize> = of_file.chain(added.iter().map(|token| token.content.len())).collect();
        if let Some(found) = sizes.iter().find(|n_bytes| **n_bytes > MAX_ADDED_BYTES) {
            return Err(format!(
                "an added token has {found} bytes, and one may have {MAX_ADDED_BYTES}; repair the file"
            ));
        }
        if sizes.iter().sum::<usize>() > MAX_ALL_ADDED_BYTES {
            let most = MAX_ALL_ADDED_BYTES >> 20;
            return Err(format!("its added tokens have more than {most} MiB; repair the file"));
        }
        let growing = [
            (&parts.normalizer, "normalizer"),
            (&parts.pre_tokenizer, "pre_tokenizer"),
            (&parts.decoder, "decoder"),
        ];
        for (part, name) in growing {
            if growth(part) > MAX_GROWTH {
                return Err(format!(
                    "its {name} can make a text more than {MAX_GROWTH} times as long; repair the file"
                ));
            }
        }
        parts.model.check()?;
        let mut patterns = Vec::new();
        for part in [&parts.normalizer, &parts.pre_tokenizer] {
            collect_patterns(part, &mut patterns)?;
        }
        let mut tokenizer = fence(|| tokenizers::Tokenizer::from_bytes(json)).map_err(whole)?;
        // Every text would be made of no tokens, and nothing would be trained without a word.
        if tokenizer.get_vocab_size(false) == 0 {
            return Err(whole("its vocabulary is empty".into()));
        }
        // Rows are cut and filled here; what the file says about it would hide tokens.
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        let added = added.iter().map(|token| tokenizers::AddedToken {
            content: token.content.clone(),
            single_word: token.single_word,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: token.is_normalized(),
            special: token.special,
        });
        fence(|| tokenizer.add_tokens(added))?;
        let of_file = parts.added_tokens.iter();
        distinct_ids::check(
            &tokenizer,
            of_file.filter_map(|token| Some((token.content.as_str(), token.id?))),
        )?;
        let pieces = Pieces::of(&tokenizer);
        let is_byte_level_bpe = is_byte_level_bpe(&parts.normalizer, &parts.pre_tokenizer);
        let spelling = Spelling::of(&parts.decoder);
        Ok(Engine { tokenizer, pieces, is_byte_level_bpe, spelling, patterns })
    }

    /// Whether a text may be cut anywhere and its parts encoded alone: one regular expression splits it, and tokens are
    /// taken not to depend on the text before them.
    pub(super) fn is_byte_level_bpe(&self) -> bool {
        self.is_byte_level_bpe
    }

    /// The number of ids. They may have gaps, so the largest decides.
    pub(super) fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    pub(super) fn id_of(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        if let Some(pieces) = &self.pieces
            && let Some(ids) = fence(|| pieces.encode(self.tokenizer.get_model(), text))?
        {
            return Ok(ids);
        }
        self.encode_whole(text)
    }

    /// As [`encode`](Self::encode), without the short way.
    pub(super) fn encode_whole(&self, text: &str) -> Result<Vec<u32>> {
        self.check(text)?;
        Ok(fence(|| self.tokenizer.encode_fast(text, false))?.get_ids().to_vec())
    }

    /// The ids of `text`, and the byte of it at which each begins.
    pub(super) fn encode_with_begins(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>)> {
        self.check(text)?;
        let encoding = fence(|| self.tokenizer.encode(text, false))?;
        let begins = encoding.get_offsets().iter().map(|(begin, _)| *begin).collect();
        Ok((encoding.get_ids().to_vec(), begins))
    }

    /// The bytes that a token adds to a text; `None` where there is no such token.
    pub(super) fn token_bytes(&self, id: u32, begins_text: bool) -> Result<Option<Vec<u8>>> {
        let Some(token) = self.tokenizer.id_to_token(id) else { return Ok(None) };
        let is_added = self.tokenizer.get_added_tokens_decoder().contains_key(&id);
        match (is_added, self.spelling.bytes(&token, begins_text)) {
            (true, _) => Ok(Some(token.into_bytes())),
            (false, Some(bytes)) => Ok(Some(bytes)),
            (false, None) => self.decode(&[id], false).map(|text| Some(text.into_bytes())),
        }
    }

    /// Whether a token is marked special.
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.tokenizer.get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
    }

    /// The ids that the tokenizer puts around a text.
    pub(super) fn around(&self) -> Result<Vec<u32>> {
        Ok(fence(|| self.tokenizer.encode_fast("", true))?.get_ids().to_vec())
    }

    pub(super) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        fence(|| self.tokenizer.decode(ids, skip_special_tokens))
    }

    /// The library takes a search that was given up for the end of the text, which would give other tokens.
    fn check(&self, text: &str) -> Result<()> {
        if text.len() > MAX_WORD_BYTES {
            text.split_whitespace().try_for_each(check_word)?;
        }
        let broken = |regex: &Regex| {
            regex.find_iter(text).find_map(|found| found.err().map(|e| gave_up(regex.as_str(), &e)))
        };
        self.patterns.iter().find_map(broken).map_or(Ok(()), Err)
    }
}

/// Runs the library; its errors and its panics become messages.
fn fence<T, E: ToString>(body: impl FnOnce() -> std::result::Result<T, E>) -> Result<T> {
    fenced(body).ok_or("a part of it is not what its type asks for")?.map_err(|e| e.to_string())
}

/// Whether a tokenizer is one regular expression and the byte alphabet.
fn is_byte_level_bpe(normalizer: &Value, pre_tokenizer: &Value) -> bool {
    let byte_level = |part: &Value, splits: bool| {
        part["type"] == "ByteLevel"
            && part["add_prefix_space"] == false
            && part["use_regex"].as_bool().unwrap_or(true) == splits
    };
    let one_split = || match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([split, bytes]) => {
            pre_tokenizer["type"] == "Sequence"
                && split["type"] == "Split"
                && split["behavior"] == "Isolated"
                && split["invert"] == false
                && split["pattern"]["Regex"].is_string()
                && byte_level(bytes, false)
        }
        _ => false,
    };
    (normalizer.is_null() || normalizer["type"] == "NFC") && (byte_level(pre_tokenizer, true) || one_split())
}

/// How many times longer a part can make a text: the product over its replacements. Saturates.
fn growth(part: &Value) -> usize {
    match part {
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "Replace") => {
            // A pattern matches at least one byte; an empty one matches everywhere.
            let shortest = part["pattern"]["String"].as_str().map_or(1, str::len);
            let content = part["content"].as_str().map_or(0, str::len);
            if shortest == 0 { content.saturating_add(1) } else { content.div_ceil(shortest).max(1) }
        }
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "Prepend") => {
            part["prepend"].as_str().map_or(1, |content| content.len().saturating_add(1))
        }
        // Each byte beyond ASCII becomes a letter of two bytes.
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "ByteLevel") => 2,
        Value::Object(fields) => fields.values().map(growth).fold(1, usize::saturating_mul),
        Value::Array(parts) => parts.iter().map(growth).fold(1, usize::saturating_mul),
        _ => 1,
    }
}

/// The regular expressions of a part that can look around or back, and so backtrack.
fn collect_patterns(part: &Value, found: &mut Vec<Regex>) -> Result<()> {
    match part {
        Value::Object(fields) => {
            if let Some(Value::String(pattern)) = fields.get("Regex") {
                let regex =
                    Regex::new(pattern).map_err(|e| format!("its pattern {pattern:?} is broken: {e}"))?;
                let hard = ["(?=", "(?!", "(?<", "(?>", "\\"].iter().any(|mark| pattern.contains(mark));
                found.extend(hard.then_some(regex));
            }
            fields.values().try_for_each(|part| collect_patterns(part, found))
        }
        Value::Array(parts) => parts.iter().try_for_each(|part| collect_patterns(part, found)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tokenizer::{Tokenizer, tests::small};
    use super::MAX_WORD_BYTES;

    /// A working tokenizer of which `damage` has changed a part.
    fn damaged(damage: impl FnOnce(&mut serde_json::Value)) -> Result<Vec<u32>, String> {
        let (dir, _) = small();
        let path = dir.path().join("tokenizer.json");
        let mut json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        damage(&mut json);
        std::fs::write(&path, json.to_string()).unwrap();
        let tokenizer = Tokenizer::open(dir.path()).map_err(|e| e.to_string())?;
        let ids = tokenizer.encode("the end ﷺ of aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa the day");
        let ids = ids.map_err(|e| e.to_string());
        ids.inspect_err(|e| assert!(e.contains("tokenizer.json: "), "{e}"))
    }

    fn replace(pattern: serde_json::Value, content: &str) -> serde_json::Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    #[test]
    fn a_token_has_an_id_of_its_own_which_the_file_says_once() {
        let (dir, whole) = small();
        let n = whole.vocab_size().unwrap();
        let id = |token: &str| json!(whole.id_of(token).unwrap().unwrap());
        let message = damaged(|json| json["model"]["vocab"]["the"] = id("a")).unwrap_err();
        assert!(message.contains("its tokens \"a\" and \"the\" have one id"), "{message}");
        let added = |content: &str, id: usize| {
            let token = json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                               "normalized": false, "special": true});
            damaged(move |json| json["added_tokens"].as_array_mut().unwrap().push(token))
        };
        assert!(added("<new>", n).is_ok());
        assert!(added("the", whole.id_of("the").unwrap().unwrap() as usize).is_ok());
        for (content, wrong) in [("<new>", n + 5), ("<new>", 1), ("the", n)] {
            let message = added(content, wrong).unwrap_err();
            assert!(message.contains(&format!("give {content:?} the id {wrong}, and it gets ")), "{message}");
        }
        // The same key twice, with another value.
        let path = dir.path().join("tokenizer.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let at = text.find("\"vocab\"").and_then(|at| Some(at + text[at..].find('{')? + 1)).unwrap();
        std::fs::write(&path, format!("{}\"a\": 7,{}", &text[..at], &text[at..])).unwrap();
        let message = Tokenizer::open(dir.path()).unwrap().encode("the").unwrap_err().to_string();
        assert!(message.contains("\"a\" stands twice with two values, first in "), "{message}");
    }

    #[test]
    fn damaged_files_end_in_messages() {
        assert!(damaged(|_| ()).is_ok());
        // Each of these ends the library in a panic.
        let message = damaged(|json| json["normalizer"] = replace(json!({"String": ""}), "x")).unwrap_err();
        assert!(message.contains("a part of it is not what its type asks for"), "{message}");
        let charsmap = json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8AAAAA"});
        let message = damaged(|json| json["normalizer"] = charsmap).unwrap_err();
        assert!(message.contains("a part of it is not what its type asks for"), "{message}");
        let message =
            damaged(|json| json["model"]["continuing_subword_prefix"] = json!("#######")).unwrap_err();
        assert!(message.contains("is it a whole tokenizer.json?"), "{message}");
        let message = damaged(|json| json["normalizer"] = replace(json!({"Regex": "(a"}), "x")).unwrap_err();
        assert!(message.contains("its pattern \"(a\" is broken"), "{message}");
        let empty = |json: &mut serde_json::Value| {
            json["model"]["vocab"] = json!({});
            json["model"]["merges"] = json!([]);
        };
        let message = damaged(empty).unwrap_err();
        assert!(message.contains("its vocabulary is empty"), "{message}");
    }

    #[test]
    fn an_added_token_without_end_is_refused() {
        let first = small().1.vocab_size().unwrap();
        let added = |length: usize, n: usize| {
            let token = |id: usize| {
                json!({"id": first + id, "content": "x".repeat(length - 4) + &format!("{id:04}"), "special": true, "lstrip": false,
                    "rstrip": false, "single_word": false, "normalized": false})
            };
            damaged(|json| json["added_tokens"].as_array_mut().unwrap().extend((0..n).map(token)))
        };
        assert!(added(64, 10).is_ok());
        let message = added(1_000_000, 1).unwrap_err();
        assert!(message.contains("an added token has 1000000 bytes, and one may have 16384"), "{message}");
        let message = added(16_000, 1100).unwrap_err();
        assert!(message.contains("its added tokens have more than 16 MiB"), "{message}");
    }

    #[test]
    fn a_text_does_not_grow_without_end() {
        for (part, n) in [(replace(json!({"String": "a"}), "aa"), 40), (json!({"type": "ByteLevel"}), 40)] {
            let sequence = json!({"type": "Sequence", "normalizers": vec![part; n]});
            let message = damaged(|json| json["normalizer"] = sequence).unwrap_err();
            assert!(
                message.contains("its normalizer can make a text more than 64 times as long"),
                "{message}"
            );
        }
        let prepend = |content: &str| json!({"type": "Prepend", "prepend": content});
        let message = damaged(|json| json["normalizer"] = prepend(&"x".repeat(100_000))).unwrap_err();
        assert!(message.contains("its normalizer can make a text more than 64 times as long"), "{message}");
        // SentencePiece's.
        let spaces = [prepend("▁"), replace(json!({"String": " "}), "▁")];
        assert!(
            damaged(|json| json["normalizer"] = json!({"type": "Sequence", "normalizers": spaces})).is_ok()
        );
    }

    #[test]
    fn a_model_that_draws_or_takes_too_long_is_refused() {
        for (key, value, expected) in [
            ("dropout", json!(0.5), "leaves out merges at random (\"dropout\": 0.5)"),
            ("max_input_chars_per_word", json!(1_000_000), "supported are at most 1024"),
            ("end_of_word_suffix", json!("x".repeat(100_000)), "has 100000 bytes, and may have 64"),
            ("continuing_subword_prefix", json!("x".repeat(100_000)), "has 100000 bytes, and may have 64"),
        ] {
            let message = damaged(|json| json["model"][key] = value).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        let unigram = |pieces: Vec<String>| {
            damaged(move |json| {
                let vocab: Vec<_> = pieces.iter().map(|piece| json!([piece, -1.0])).collect();
                json["model"] = json!({"type": "Unigram", "unk_id": 0, "vocab": vocab});
            })
        };
        let nested = |n: usize| (1..=n).map(|n| "a".repeat(n)).collect::<Vec<_>>();
        // Many that begin alike, and one that nothing begins but itself.
        for pieces in [nested(100), vec!["a".repeat(5000)]] {
            let message = unigram(pieces).unwrap_err();
            assert!(message.contains("bytes, and may have 4096: a long text would take hours"), "{message}");
        }
        let reported = unigram(nested(32)).err().unwrap_or_default();
        assert!(!reported.contains("may have 4096"), "{reported}");
        let usual = |json: &mut serde_json::Value| {
            json["model"]["dropout"] = json!(0.0);
            json["model"]["end_of_word_suffix"] = json!("");
        };
        assert!(damaged(usual).is_ok());
    }

    #[test]
    fn a_word_without_end_is_refused() {
        let (dir, tokenizer) = small();
        let path = dir.path().join("tokenizer.json");
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json["pre_tokenizer"]["add_prefix_space"] = json!(true);
        let general = dir.path().join("general");
        std::fs::create_dir(&general).unwrap();
        std::fs::write(general.join("tokenizer.json"), json.to_string()).unwrap();
        let general = Tokenizer::open(&general).unwrap();
        let word = "a".repeat(MAX_WORD_BYTES + 1);
        // The short way, a text with a special token in it, and a tokenizer that has no short way.
        let special = format!("the <think> {word}");
        for (tokenizer, text) in [(&tokenizer, &word), (&tokenizer, &special), (&general, &word)] {
            let message = tokenizer.encode(text).unwrap_err().to_string();
            let expected =
                "the word \"aaaaaaaaaaaaaaaaaaaa\"… has 17 MiB, and a word may have 16; put spaces into it";
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_pattern_that_backtracks_without_end_is_named() {
        let split = |pattern: &str, behavior: &str| {
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})
        };
        // Both ways: the short one takes only isolated pieces.
        for behavior in ["Isolated", "MergedWithNext"] {
            let pattern = r"(?:a+)+(?=!)|\S+|\s+";
            let message = damaged(|json| json["pre_tokenizer"] = split(pattern, behavior)).unwrap_err();
            assert!(
                message.contains(&format!("its pattern {pattern:?} does not come to an end")),
                "{message}"
            );
            assert!(damaged(|json| json["pre_tokenizer"] = split(r"\S+(?=\s)|\S+|\s+", behavior)).is_ok());
        }
    }
}
