//! A Hugging Face tokenizer folder: text to ids and back, and the ids with a special meaning.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use oarlock_config::config::NewTokens;
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::added_tokens::{self, AddedToken, settings, side_file};
use super::engine::Engine;
use super::error::{Error, Result};
use super::hash::hash_bytes;
use super::marks::Marks;
use crate::gguf;

/// The ids with a special meaning; a tokenizer need not have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Fills a row.
    pub pad: Option<u32>,
}

/// A tokenizer. Opening reads the files and the special ids; the vocabulary is built when it is first needed, since
/// most ranks of a run never encode.
pub struct Tokenizer {
    path: PathBuf,
    json: Vec<u8>,
    /// The tokens that the files beside `tokenizer.json` and the settings of a run add to it.
    added: Vec<AddedToken>,
    /// Whether the settings of a run add some.
    has_new: bool,
    special: SpecialIds,
    /// The tokens that are marked special, as they are written.
    marks: Marks,
    engine: OnceLock<std::result::Result<Engine, String>>,
}

/// What is read of `tokenizer.json` without building it.
#[derive(Deserialize)]
struct Outline {
    #[serde(default)]
    added_tokens: Vec<Numbered>,
}

#[derive(Deserialize)]
struct Numbered {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

impl Tokenizer {
    /// Opens the folder `dir`: `tokenizer.json`, and the special ids from `tokenizer_config.json`, or where that is
    /// silent from `config.json`.
    ///
    /// # Errors
    /// When `tokenizer.json` is missing or no JSON, or a special token is not a text or none of its tokens.
    pub fn open(dir: impl AsRef<Path>) -> Result<Tokenizer> {
        Tokenizer::open_with(dir, &NewTokens::default())
    }

    /// As [`Tokenizer::open`], with more tokens, which get the next ids.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn open_with(dir: impl AsRef<Path>, new: &NewTokens) -> Result<Tokenizer> {
        let dir = dir.as_ref();
        let path = dir.join("tokenizer.json");
        let json = gguf::read_file(&path, oarlock_comm::MAX_TOKENIZER_BYTES).map_err(|e| {
            let cause = if !dir.exists() {
                format!("{} does not exist", dir.display())
            } else if dir.is_file() && !gguf::is_gguf(dir) {
                format!("{} is a file, and not in GGUF", dir.display())
            } else {
                format!("{e}; give a folder that holds a tokenizer.json (a fast tokenizer)")
            };
            Error::Tokenizer { path: path.clone(), cause }
        })?;
        let outline: Outline = serde_json::from_slice(&json)
            .map_err(|e| broken(&path, &format!("{e}; is it a whole tokenizer.json?")))?;
        let special = SpecialIds::default();
        let (named, numbered) = (settings(dir)?, side_file(dir, "config.json")?);
        let (ids, known): (Vec<u32>, Vec<AddedToken>) =
            outline.added_tokens.into_iter().map(|Numbered { id, token }| (id, token)).unzip();
        let mut added = added_tokens::beside(dir, &named, &known)?;
        let has_new = added_tokens::add_new(&mut added, &known, new);
        let marks = known.iter().chain(&added).filter(|token| token.special && !token.content.is_empty());
        let marks = Marks::of(marks.map(|token| token.content.clone()).collect());
        let mut tokenizer = Tokenizer { path, json, added, has_new, special, marks, engine: OnceLock::new() };
        let find = |what: &str| -> Result<Option<u32>> {
            if let Some(token) = token_name(dir, &format!("{what}_token"), &named)? {
                let id = match known.iter().position(|known| known.content == token) {
                    Some(at) => Some(ids[at]),
                    None => tokenizer.engine()?.id_of(token),
                };
                return id.map(Some).ok_or_else(|| Error::Tokenizer {
                    path: dir.join("tokenizer_config.json"),
                    cause: format!(
                        "{what}_token {token:?} is not a token; name one of tokenizer.json, or null"
                    ),
                });
            }
            let id = &numbered[&format!("{what}_token_id")];
            Ok(id.get(0).unwrap_or(id).as_u64().and_then(|id| u32::try_from(id).ok()))
        };
        tokenizer.special = SpecialIds { bos: find("bos")?, eos: find("eos")?, pad: find("pad")? };
        Ok(tokenizer)
    }

    /// The ids with a special meaning.
    pub fn special(&self) -> SpecialIds {
        self.special
    }

    /// The number of ids, special tokens included.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub fn vocab_size(&self) -> Result<usize> {
        Ok(self.engine()?.vocab_size())
    }

    /// The id of a token, such as `<|im_start|>`.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub fn id_of(&self, token: &str) -> Result<Option<u32>> {
        Ok(self.engine()?.id_of(token))
    }

    /// The ids of `text`, without any added beginning or end. Special tokens written out in it become their ids.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used; a word of more than 16 MiB.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.engine()?.encode(text).map_err(|cause| broken(&self.path, &cause))
    }

    /// The ids of `text`, and for each of the ascending places `cuts` in it (bytes) how many of the ids stand before
    /// it. Where a token does not depend on the text before it, as in byte-level BPE, none reaches across a cut: the
    /// ids before a cut are those of that text alone, as when it is a prompt. Elsewhere a token that reaches across
    /// counts to the text in which it begins.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used; a word of more than 16 MiB.
    pub fn encode_with_cuts(&self, text: &str, cuts: &[usize]) -> Result<(Vec<u32>, Vec<usize>)> {
        let engine = self.engine()?;
        if !engine.is_byte_level_bpe() {
            let (ids, begins) =
                engine.encode_with_begins(text).map_err(|cause| broken(&self.path, &cause))?;
            let before = |cut: &usize| begins.partition_point(|begin| begin < cut);
            return Ok((ids, cuts.iter().map(before).collect()));
        }
        let (mut ids, mut begin, mut n_before) = (Vec::new(), 0, Vec::with_capacity(cuts.len()));
        for &cut in cuts {
            ids.extend(self.encode(&text[begin..cut])?);
            n_before.push(ids.len());
            begin = cut;
        }
        ids.extend(self.encode(&text[begin..])?);
        Ok((ids, n_before))
    }

    /// Where special tokens are written out in `text`: behind the first character of each (places in bytes).
    pub(super) fn special_places(&self, text: &str) -> Vec<usize> {
        self.marks.places(text)
    }

    /// The ids of `text`, in which no token reaches across the ascending places `breaks` (bytes): a special token that is
    /// broken is text.
    pub(super) fn encode_broken(&self, text: &str, breaks: &[usize]) -> Result<Vec<u32>> {
        let (mut ids, mut begin) = (Vec::new(), 0);
        for &at in breaks.iter().chain([&text.len()]) {
            if at > begin {
                ids.extend(self.encode(&text[begin..at])?);
            }
            begin = at;
        }
        Ok(ids)
    }

    /// The ids of many texts, on all threads of the current pool.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used; a word of more than 16 MiB.
    pub fn encode_batch(&self, texts: &[String]) -> Result<Vec<Vec<u32>>> {
        texts.par_iter().with_max_len(1).map(|text| self.encode(text)).collect()
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        self.engine()?.decode(ids, skip_special_tokens).map_err(|cause| broken(&self.path, &cause))
    }

    /// A decoder for ids that come one by one.
    pub fn stream(&self, skip_special_tokens: bool) -> StreamDecoder<'_> {
        StreamDecoder { tokenizer: self, skip_special_tokens, ids: Vec::new(), n_shown: 0 }
    }

    /// The tokens that `tokenizer.json` lacks, with the ids that they have: the files beside it add them.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub fn added(&self) -> Result<Vec<(&str, u32)>> {
        if self.added.is_empty() {
            return Ok(Vec::new());
        }
        let engine = self.engine()?;
        let id = |token: &AddedToken| engine.id_of(&token.content);
        Ok(self.added.iter().filter_map(|token| Some((token.content.as_str(), id(token)?))).collect())
    }

    /// Whether the settings of a run add tokens.
    pub fn has_new(&self) -> bool {
        self.has_new
    }

    /// `tokenizer.json` with all tokens, where the settings of a run add some.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub fn grown_json(&self) -> Result<Option<String>> {
        if !self.has_new {
            return Ok(None);
        }
        let engine = self.engine()?;
        let id_of = |token: &AddedToken| engine.id_of(&token.content);
        let listed = added_tokens::listed(&self.json, &self.added, id_of);
        listed.map(Some).map_err(|e| broken(&self.path, &e.to_string()))
    }

    /// The bytes that a token adds to a text, which may be a part of a character; `None` where there is no such token. Some
    /// tokenizers leave out a space where a text begins.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub fn token_bytes(&self, id: u32, begins_text: bool) -> Result<Option<Vec<u8>>> {
        self.engine()?.token_bytes(id, begins_text).map_err(|cause| broken(&self.path, &cause))
    }

    /// Whether a token is marked special, so that texts for people leave it out.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub fn is_special(&self, id: u32) -> Result<bool> {
        Ok(self.engine()?.is_special(id))
    }

    /// Whether the tokenizer itself begins each text with its first special token, which [`encode`](Self::encode) leaves out.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub fn begins_texts(&self) -> Result<Option<u32>> {
        Ok(self.around()?.first().copied().filter(|first| Some(*first) == self.special.bos))
    }

    /// The tokens that the tokenizer itself puts around each text, which [`encode`](Self::encode) leaves out.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub(crate) fn around(&self) -> Result<Vec<u32>> {
        self.engine()?.around().map_err(|cause| broken(&self.path, &cause))
    }

    /// A hash of `tokenizer.json` and of what is added to it: equal tokenizers give equal ids.
    pub fn fingerprint(&self) -> u64 {
        match self.added.is_empty() {
            true => hash_bytes(&self.json),
            false => hash_bytes(&[&self.json[..], format!("{:?}", self.added).as_bytes()].concat()),
        }
    }

    fn engine(&self) -> Result<&Engine> {
        let built = self.engine.get_or_init(|| Engine::build(&self.json, &self.added));
        built.as_ref().map_err(|cause| broken(&self.path, cause))
    }
}

fn broken(path: &Path, cause: &str) -> Error {
    Error::Tokenizer { path: path.into(), cause: cause.into() }
}

/// A special token of `tokenizer_config.json` is written as its text or as an object with a `content`.
fn token_name<'a>(dir: &Path, key: &str, config: &'a Map<String, Value>) -> Result<Option<&'a str>> {
    let Some(value) = config.get(key) else { return Ok(None) };
    let name = value.as_str().or_else(|| value["content"].as_str());
    if name.is_none() && !value.is_null() {
        return Err(Error::Tokenizer {
            path: dir.join("tokenizer_config.json"),
            cause: format!("{key} is {value}; write it as a text or as an object with a text `content`"),
        });
    }
    Ok(name)
}

/// Turns ids that come one by one into whole characters.
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    skip_special_tokens: bool,
    /// The ids already shown that give the next one its context, then those that wait.
    ids: Vec<u32>,
    n_shown: usize,
}

impl StreamDecoder<'_> {
    /// Ids that wait for the rest of a character at most: a character has four bytes, so more are not UTF-8.
    const MAX_WAITING: usize = 8;

    /// Takes the next id; gives the text that is complete with it, often empty.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = self.waiting_text()?;
        if !text.ends_with('\u{fffd}') {
            return Ok(self.show(text));
        }
        if self.ids.len() - self.n_shown < Self::MAX_WAITING {
            return Ok(String::new());
        }
        // A text may hold U+FFFD itself: what has begun after it, three bytes at most, still waits.
        let waiting = self.ids.split_off(self.ids.len() - self.unfinished()?);
        let text = self.waiting_text()?;
        let text = self.show(text);
        self.ids.extend(waiting);
        Ok(text)
    }

    /// Everything so far is shown.
    fn show(&mut self, text: String) -> String {
        self.ids.drain(..self.n_shown);
        self.n_shown = self.ids.len();
        text
    }

    /// How many of the last ids may begin a character: a cut inside one would show it twice.
    fn unfinished(&self) -> Result<usize> {
        let decode = |ids: &[u32]| self.tokenizer.decode(ids, self.skip_special_tokens);
        let all = decode(&self.ids)?;
        for n in (1..4).rev() {
            let (before, after) = self.ids.split_at(self.ids.len() - n);
            if decode(before)? + &decode(after)? == all {
                return Ok(n);
            }
        }
        Ok(0)
    }

    /// Gives what still waits, with U+FFFD for broken characters.
    ///
    /// # Errors
    /// When `tokenizer.json` cannot be used.
    pub fn finish(mut self) -> Result<String> {
        let text = self.waiting_text()?;
        self.ids.clear();
        Ok(text)
    }

    fn waiting_text(&self) -> Result<String> {
        let decode = |ids: &[u32]| self.tokenizer.decode(ids, self.skip_special_tokens);
        // Some decoders treat the first token of a text differently, so the new text is a difference.
        let (context, all) = (decode(&self.ids[..self.n_shown])?, decode(&self.ids)?);
        Ok(all.strip_prefix(context.as_str()).unwrap_or(&all).to_owned())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::super::source::Source;
    use super::super::train_bpe::{TrainSettings, train_bpe};
    use super::*;

    /// A small byte-level tokenizer in a folder of its own.
    pub(in super::super) fn small() -> (TempDir, Tokenizer) {
        let dir = tempfile::tempdir().unwrap();
        let text = "the quick brown fox jumps over the lazy dog\nthe end of the day\nüber alles 日本語 🙂\n";
        std::fs::write(dir.path().join("text.txt"), text.repeat(3)).unwrap();
        let source = Source::resolve("text.txt", dir.path(), None).unwrap();
        train_bpe(&source, dir.path(), &TrainSettings::minimind(400)).unwrap();
        let tokenizer = Tokenizer::open(dir.path()).unwrap();
        (dir, tokenizer)
    }

    #[test]
    fn special_ids_come_from_names_then_numbers() {
        let (dir, tokenizer) = small();
        assert_eq!(tokenizer.special(), SpecialIds { bos: Some(1), eos: Some(2), pad: Some(0) });
        let config = dir.path().join("tokenizer_config.json");
        std::fs::write(&config, r#"{"eos_token": {"content": "<think>"}, "pad_token": null}"#).unwrap();
        std::fs::write(dir.path().join("config.json"), r#"{"eos_token_id": 9, "pad_token_id": [7, 8]}"#)
            .unwrap();
        let special = Tokenizer::open(dir.path()).unwrap().special();
        assert_eq!(special, SpecialIds { bos: None, eos: Some(25), pad: Some(7) });
        std::fs::write(&config, r#"{"eos_token": ""}"#).unwrap();
        let error = Tokenizer::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains(r#"eos_token "" is not a token; name one"#), "{error}");
        for wrong in ["5", r#"["<|im_end|>"]"#, r#"{"content":2}"#, "true"] {
            std::fs::write(&config, format!(r#"{{"eos_token": {wrong}}}"#)).unwrap();
            let error = Tokenizer::open(dir.path()).err().unwrap().to_string();
            let expected =
                format!("tokenizer_config.json: eos_token is {wrong}; write it as a text or as an object");
            assert!(error.contains(&expected), "{error}");
        }
        std::fs::write(&config, "{").unwrap();
        assert!(Tokenizer::open(dir.path()).err().unwrap().to_string().contains("broken JSON"));
    }

    #[test]
    fn a_missing_or_foreign_file_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let error = Tokenizer::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("give a folder that holds a tokenizer.json"), "{error}");
        let file = dir.path().join("model.gguf");
        let error = Tokenizer::open(&file).err().unwrap().to_string();
        assert!(error.ends_with("model.gguf does not exist"), "{error}");
        std::fs::write(&file, "GGML").unwrap();
        let error = Tokenizer::open(&file).err().unwrap().to_string();
        assert!(error.ends_with("model.gguf is a file, and not in GGUF"), "{error}");
        std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        let error = Tokenizer::open(dir.path()).unwrap().encode("x").err().unwrap().to_string();
        assert!(error.contains("is it a whole tokenizer.json?"), "{error}");
    }

    #[test]
    fn special_tokens_in_the_text_are_recognized() {
        let (_dir, tokenizer) = small();
        assert_eq!(tokenizer.encode("<|im_start|><|im_end|>").unwrap(), [1, 2]);
        assert_eq!(tokenizer.id_of("<think>").unwrap(), Some(25));
        assert_eq!(tokenizer.decode(&[1, 2], true).unwrap(), "");
        assert_eq!(tokenizer.decode(&[1, 2], false).unwrap(), "<|im_start|><|im_end|>");
    }

    /// The pieces of Llama 3, and a pattern that leaves gaps.
    const PATTERNS: [&str; 2] = [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"\p{L}+",
    ];

    #[test]
    fn the_short_way_and_the_engine_agree_on_other_patterns() {
        let (dir, _) = small();
        let path = dir.path().join("tokenizer.json");
        let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for pattern in PATTERNS {
            json["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]});
            std::fs::write(&path, json.to_string()).unwrap();
            let tokenizer = Tokenizer::open(dir.path()).unwrap();
            assert!(tokenizer.engine().unwrap().is_byte_level_bpe());
            for text in [
                "",
                " the  end \n\n of\tWE'LL don't 12345 日本 🙂!? \r\n ",
                "a<think>b <|im_end|>",
                "\u{0}é\u{301} ",
            ] {
                assert_eq!(
                    tokenizer.encode(text).unwrap(),
                    tokenizer.engine().unwrap().encode_whole(text).unwrap(),
                    "{text:?}"
                );
            }
        }
        json["normalizer"] = serde_json::json!({"type": "Lowercase"});
        std::fs::write(&path, json.to_string()).unwrap();
        assert!(!Tokenizer::open(dir.path()).unwrap().engine().unwrap().is_byte_level_bpe());
        json["normalizer"] = serde_json::json!({"type": "NFC"});
        std::fs::write(&path, json.to_string()).unwrap();
        let tokenizer = Tokenizer::open(dir.path()).unwrap();
        assert!(tokenizer.engine().unwrap().is_byte_level_bpe());
        assert_eq!(tokenizer.encode("e\u{301}").unwrap(), tokenizer.encode("é").unwrap());
    }

    #[test]
    fn a_batch_equals_one_by_one() {
        let (_dir, tokenizer) = small();
        let texts: Vec<String> = (0..50).map(|i| format!("the {i} dogs 日 {}", "fox ".repeat(i))).collect();
        let single: Vec<Vec<u32>> = texts.iter().map(|t| tokenizer.encode(t).unwrap()).collect();
        assert_eq!(tokenizer.encode_batch(&texts).unwrap(), single);
    }

    #[test]
    fn a_stream_holds_back_half_characters_and_gives_up_on_broken_ones() {
        let (_dir, tokenizer) = small();
        let ids = tokenizer.encode("é").unwrap();
        assert_eq!(ids.len(), 2);
        let mut stream = tokenizer.stream(true);
        assert_eq!(stream.push(ids[0]).unwrap(), "");
        assert_eq!(stream.push(ids[1]).unwrap(), "é");
        let mut shown = String::new();
        for _ in 0..20 {
            shown += &stream.push(ids[0]).unwrap();
        }
        assert!(shown.starts_with('\u{fffd}'));
        assert!(stream.finish().unwrap().ends_with('\u{fffd}'));
    }

    #[test]
    fn a_stream_shows_replacement_characters_of_the_text() {
        let (_dir, tokenizer) = small();
        for text in ["\u{fffd}\u{fffd}⁰", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}é🙂\u{fffd}x", "a\u{fffd}b"] {
            let mut stream = tokenizer.stream(false);
            let ids = tokenizer.encode(text).unwrap();
            let mut shown: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
            shown += &stream.finish().unwrap();
            assert_eq!(shown, text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_survives_and_a_stream_shows_the_same(text in any::<String>()) {
            thread_local!(static TOKENIZER: (TempDir, Tokenizer) = small());
            TOKENIZER.with(|(_, tokenizer)| {
                let ids = tokenizer.encode(&text).unwrap();
                prop_assert_eq!(&ids, &tokenizer.engine().unwrap().encode_whole(&text).unwrap());
                prop_assert_eq!(&tokenizer.decode(&ids, false).unwrap(), &text);
                let mut stream = tokenizer.stream(false);
                let mut shown: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
                shown += &stream.finish().unwrap();
                prop_assert_eq!(shown, text);
                Ok(())
            })?;
        }
    }
}
