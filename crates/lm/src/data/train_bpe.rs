//! Trains a byte-level BPE tokenizer and writes it as a Hugging Face folder.

use std::path::Path;
use std::sync::Mutex;

use serde_json::{Map, Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder, normalizers::NormalizerWrapper};

use super::error::{Error, Result};
use super::source::Source;

/// A token that stands for itself, whatever the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    /// How it is written.
    pub text: String,
    /// Whether decoding may leave it out (markup such as `<think>` is kept).
    pub skipped: bool,
}

/// MiniMind's reserved tokens in the order of their ids; the first 21 are left out when decoding.
pub const MINIMIND_RESERVED: [&str; 36] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|buffer1|>",
    "<|buffer2|>",
    "<|buffer3|>",
    "<|buffer4|>",
    "<|buffer5|>",
    "<|buffer6|>",
    "<|buffer7|>",
    "<|buffer8|>",
    "<|buffer9|>",
];
const MINIMIND_SKIPPED: usize = 21;

/// ChatML: each message between `<|im_start|>` and `<|im_end|>`, its role on the first line.
const CHAT_TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}\
<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// What to train.
#[derive(Clone, Debug)]
pub struct TrainSettings {
    /// The number of ids, special tokens and the 256 bytes included.
    pub vocab_size: usize,
    /// The special tokens, which take the first ids.
    pub special_tokens: Vec<SpecialToken>,
    /// Begins a text.
    pub bos: String,
    /// Ends a text.
    pub eos: String,
    /// Fills a row.
    pub pad: String,
}

/// The most ids of a tokenizer.
const MAX_VOCAB: usize = 1 << 24;

impl TrainSettings {
    /// MiniMind's special tokens; its own vocabulary has 6400 ids.
    pub fn minimind(vocab_size: usize) -> TrainSettings {
        let token =
            |(i, text): (usize, &&str)| SpecialToken { text: (*text).into(), skipped: i < MINIMIND_SKIPPED };
        TrainSettings {
            vocab_size,
            special_tokens: MINIMIND_RESERVED.iter().enumerate().map(token).collect(),
            bos: "<|im_start|>".into(),
            eos: "<|im_end|>".into(),
            pad: "<|endoftext|>".into(),
        }
    }

    fn check(&self) -> Result<()> {
        // The library takes memory for all of them before it reads a text.
        if self.vocab_size > MAX_VOCAB {
            let cause =
                format!("{} ids are more than any tokenizer has; give at most {MAX_VOCAB}", self.vocab_size);
            return Err(Error::Setting { key: "vocab_size", cause });
        }
        let least = self.special_tokens.len() + 256;
        if self.vocab_size < least {
            let cause = format!(
                "{} ids do not hold {} special tokens and the 256 bytes; give at least {least}",
                self.vocab_size,
                self.special_tokens.len()
            );
            return Err(Error::Setting { key: "vocab_size", cause });
        }
        for (i, token) in self.special_tokens.iter().enumerate() {
            if token.text.is_empty() || self.special_tokens[..i].iter().any(|t| t.text == token.text) {
                let cause = format!("{:?} is empty or given twice; remove it", token.text);
                return Err(Error::Setting { key: "special_tokens", cause });
            }
        }
        for (key, name) in [("bos_token", &self.bos), ("eos_token", &self.eos), ("pad_token", &self.pad)] {
            if !self.special_tokens.iter().any(|t| t.text == *name) {
                return Err(Error::Setting {
                    key,
                    cause: format!("{name:?} is none of the special tokens; add it"),
                });
            }
        }
        Ok(())
    }

    fn added(&self) -> Vec<AddedToken> {
        self.special_tokens.iter().map(|t| AddedToken::from(t.text.as_str(), t.skipped)).collect()
    }

    /// `tokenizer_config.json`, as transformers reads it.
    fn config(&self) -> Value {
        let decoder: Map<String, Value> = self
            .special_tokens
            .iter()
            .enumerate()
            .map(|(id, t)| {
                let token = json!({"content": t.text, "lstrip": false, "normalized": false, "rstrip": false,
                                   "single_word": false, "special": t.skipped});
                (id.to_string(), token)
            })
            .collect();
        json!({
            "add_bos_token": false,
            "add_eos_token": false,
            "add_prefix_space": false,
            "added_tokens_decoder": decoder,
            "bos_token": self.bos,
            "eos_token": self.eos,
            "pad_token": self.pad,
            "unk_token": self.pad,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": false,
            "model_max_length": 131_072,
            "tokenizer_class": "PreTrainedTokenizerFast",
        })
    }
}

/// Trains as [`learn_bpe`] does and writes both files into `dir`, in the place of those that are there.
///
/// # Errors
/// As [`learn_bpe`], and when the files cannot be written.
pub fn train_bpe(source: &Source, dir: &Path, settings: &TrainSettings) -> Result<()> {
    let files = learn_bpe(source, settings)?;
    std::fs::create_dir_all(dir).map_err(|e| Error::write(dir, e))?;
    for (name, content) in files {
        let path = dir.join(name);
        oarlock_files::replace(&path, content).map_err(|e| Error::write(&path, e))?;
    }
    Ok(())
}

/// The names of what [`learn_bpe`] learns.
pub const TOKENIZER_FILES: [&str; 2] = ["tokenizer.json", "tokenizer_config.json"];

/// Trains on the texts of `source`: `tokenizer.json` and `tokenizer_config.json`, by name. The same texts give the same files.
/// Memory grows with the number of different words, not with the length of the text.
///
/// # Errors
/// When the settings contradict each other, or a record is bad.
pub fn learn_bpe(source: &Source, settings: &TrainSettings) -> Result<[(&'static str, String); 2]> {
    settings.check()?;
    let fail = |cause: tokenizers::Error| Error::Tokenizer {
        path: TOKENIZER_FILES[0].into(),
        cause: cause.to_string(),
    };
    let byte_level = || ByteLevel::new(false, true, true);
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<NormalizerWrapper>)
        .with_pre_tokenizer(Some(byte_level()))
        .with_post_processor(None::<ByteLevel>)
        .with_decoder(Some(byte_level()))
        .build()
        .map_err(fail)?;
    // Before the training, so that a special token in the text is not learned as a word.
    let added: Vec<AddedToken> = settings.added().into_iter().map(|t| t.normalized(false)).collect();
    let mut trainer = BpeTrainer::builder()
        .vocab_size(settings.vocab_size)
        .show_progress(false)
        .special_tokens(added.clone())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let failure = Mutex::new(None);
    let texts = source.texts().map_while(|text| match text {
        Ok(text) => Some(text),
        Err(e) => {
            *failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(e);
            None
        }
    });
    tokenizer.train(&mut trainer, texts).map_err(fail)?;
    if let Some(error) = failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        return Err(error);
    }
    tokenizer.add_tokens(added).map_err(fail)?;
    let json = tokenizer.to_string(true).map_err(fail)?;
    let config = serde_json::to_string_pretty(&settings.config()).map_err(|e| fail(e.into()))?;
    let [first, second] = TOKENIZER_FILES;
    Ok([(first, json), (second, config)])
}

#[cfg(test)]
mod tests {
    use super::super::tokenizer::Tokenizer;
    use super::*;

    fn corpus(dir: &Path) -> Source {
        let words =
            ["row", "rowing", "boat", "oar", "oars", "lock", "stroke", "日本", "über", "<|im_start|>"];
        let line = |i: usize| {
            (0..30).map(|j| words[(i * i + j * (i + 3)) % words.len()]).collect::<Vec<_>>().join(" ")
        };
        let text: Vec<String> = (0..60).map(line).collect();
        std::fs::write(dir.join("words.txt"), text.join("\n")).unwrap();
        Source::resolve("words.txt", dir, None).unwrap()
    }

    #[test]
    fn the_same_text_gives_the_same_files_on_any_number_of_threads() {
        let dir = tempfile::tempdir().unwrap();
        let source = corpus(dir.path());
        let mut seen = Vec::new();
        for threads in [1, 2, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let out = dir.path().join(threads.to_string());
            pool.install(|| train_bpe(&source, &out, &TrainSettings::minimind(330))).unwrap();
            seen.push(
                ["tokenizer.json", "tokenizer_config.json"].map(|f| std::fs::read(out.join(f)).unwrap()),
            );
        }
        assert_eq!(seen[0], seen[1]);
        assert_eq!(seen[0], seen[2]);
    }

    #[test]
    fn ids_are_special_tokens_then_bytes_then_merges() {
        let dir = tempfile::tempdir().unwrap();
        train_bpe(&corpus(dir.path()), dir.path(), &TrainSettings::minimind(330)).unwrap();
        let tokenizer = Tokenizer::open(dir.path()).unwrap();
        for (id, token) in MINIMIND_RESERVED.iter().enumerate() {
            assert_eq!(tokenizer.id_of(token).unwrap(), Some(id as u32));
            assert_eq!(tokenizer.encode(token).unwrap(), [id as u32]);
        }
        assert_eq!(tokenizer.vocab_size().unwrap(), 330);
        assert_eq!(tokenizer.id_of("!").unwrap(), Some(36));
        assert!(tokenizer.encode("rowing boat").unwrap().len() <= 3);
        assert_eq!(tokenizer.decode(&[1, 25, 2], true).unwrap(), "<think>");
    }

    #[test]
    fn contradictions_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let source = corpus(dir.path());
        let error = |s: &TrainSettings| train_bpe(&source, dir.path(), s).err().unwrap().to_string();
        let good = TrainSettings::minimind(330);
        assert!(error(&TrainSettings { vocab_size: 291, ..good.clone() }).contains("give at least 292"));
        let absurd = TrainSettings { vocab_size: usize::MAX, ..good.clone() };
        assert!(error(&absurd).contains("give at most 16777216"));
        assert!(error(&TrainSettings { eos: "</s>".into(), ..good.clone() }).contains("\"</s>\" is none of"));
        let mut twice = good;
        twice.special_tokens.push(twice.special_tokens[0].clone());
        assert!(error(&twice).contains("given twice"));
        std::fs::write(dir.path().join("words.txt"), b"good\n\xff\n").unwrap();
        assert!(error(&TrainSettings::minimind(330)).contains("words.txt:2: invalid UTF-8"));
    }
}
