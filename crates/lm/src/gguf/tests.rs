//! Files that were made for these tests: tokenizers of both kinds, rotary settings, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use oarlock_gguf::{Metadata, TensorPlan, TensorType, Writer};
use serde_json::Value;

use super::*;
use crate::data::{ChatTemplate, Conversation, Message, Tokenizer};

/// A file with keys and two small tensors.
struct Sample {
    folder: tempfile::TempDir,
    metadata: Metadata,
    tensors: Vec<(&'static str, Vec<u64>, Vec<f32>)>,
}

impl Sample {
    /// A llama of one head, without a tokenizer.
    fn llama() -> Sample {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama").unwrap();
        for (key, n) in [
            ("block_count", 1_u32),
            ("context_length", 131_072),
            ("embedding_length", 64),
            ("feed_forward_length", 128),
            ("attention.head_count", 1),
        ] {
            metadata.set(&format!("llama.{key}"), n).unwrap();
        }
        metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5_f32).unwrap();
        metadata.set("llama.rope.freq_base", 500_000.0_f32).unwrap();
        let tensors = vec![("token_embd.weight", vec![64, 8], vec![0.5; 512])];
        Sample { folder: tempfile::tempdir().unwrap(), metadata, tensors }
    }

    fn with(mut self, key: &str, value: impl oarlock_gguf::ToValue) -> Sample {
        self.metadata.set(key, value).unwrap();
        self
    }

    fn write(&self) -> PathBuf {
        let plan = |(name, dims, _): &(&str, Vec<u64>, Vec<f32>)| {
            TensorPlan::new(*name, dims.clone(), TensorType::F32)
        };
        let plans: Vec<TensorPlan> = self.tensors.iter().map(plan).collect();
        let mut writer = Writer::begin(Vec::new(), &self.metadata, plans).unwrap();
        self.tensors.iter().for_each(|(.., values)| writer.write_rows(values, None).unwrap());
        let path = self.folder.path().join("model.bin");
        fs::write(&path, writer.finish().unwrap()).unwrap();
        path
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&read_text(&self.write().join(name), 1 << 20).unwrap()).unwrap()
    }

    fn refused(&self, name: &str) -> String {
        read_text(&self.write().join(name), 1 << 20).unwrap_err().to_string()
    }
}

/// What SentencePiece would have written: bytes, letters, and two words of them.
fn sentencepiece() -> Sample {
    let texts = ["<unk>", "<s>", "</s>", "<0x21>", "▁", "a", "b", "ab", "▁ab", "<|x|>"];
    let kinds = [2, 3, 3, 6, 1, 1, 1, 1, 1, 4];
    let scores = [0.0_f32, 0.0, 0.0, 0.0, -5.0, -6.0, -7.0, -1.0, -2.0, 0.0];
    Sample::llama()
        .with("tokenizer.ggml.model", "llama")
        .with("tokenizer.ggml.tokens", &texts[..])
        .with("tokenizer.ggml.scores", &scores[..])
        .with("tokenizer.ggml.token_type", &kinds[..])
        .with("tokenizer.ggml.bos_token_id", 1_u32)
        .with("tokenizer.ggml.eos_token_id", 2_u32)
        .with("tokenizer.chat_template", "{{ messages[0].content }}</s>")
}

#[test]
fn a_tokenizer_of_sentencepiece_is_read() {
    let sample = sentencepiece();
    let path = sample.write();
    let tokenizer = Tokenizer::open(&path).unwrap();
    assert_eq!(tokenizer.encode("ab ab").unwrap(), [8, 8]);
    assert_eq!(tokenizer.encode("aab!<|x|></s>").unwrap(), [4, 5, 7, 3, 9, 2]);
    assert_eq!(tokenizer.decode(&[8, 8, 3], true).unwrap(), "ab ab!");
    assert_eq!((tokenizer.special().bos, tokenizer.special().eos), (Some(1), Some(2)));
    let prompt = Conversation { messages: vec![Message::new("user", "ab")], ..Conversation::default() };
    assert_eq!(ChatTemplate::read(&path).unwrap().render_prompt(&prompt).unwrap(), "ab</s>");
    // Without a space in front.
    let sample = sentencepiece().with("tokenizer.ggml.add_space_prefix", false);
    assert_eq!(Tokenizer::open(sample.write()).unwrap().encode("ab ab").unwrap(), [7, 8]);
}

#[test]
fn a_byte_level_tokenizer_is_read() {
    // Tokens with a meaning of their own stand in front in some files, and behind in others.
    let texts = ["<|user|>", "a", "b", "Ġ", "ab", "1", "11", "<|im_end|>"];
    let sample = |pre: &str| {
        Sample::llama()
            .with("tokenizer.ggml.model", "gpt2")
            .with("tokenizer.ggml.pre", pre)
            .with("tokenizer.ggml.tokens", &texts[..])
            .with("tokenizer.ggml.token_type", &[4, 1, 1, 1, 1, 1, 1, 3][..])
            .with("tokenizer.ggml.merges", &["a b", "1 1"][..])
            .with("tokenizer.ggml.eos_token_id", 7_u32)
    };
    for (pre, ids) in [
        ("gpt-2", vec![4, 3, 6, 5, 7, 0]),
        ("smollm", vec![4, 3, 5, 5, 5, 7, 0]),
        ("llama-bpe", vec![4, 3, 6, 5, 7, 0]),
        ("tekken", vec![4, 3, 5, 5, 5, 7, 0]),
        ("gpt-4o", vec![4, 3, 6, 5, 7, 0]),
        ("deepseek-coder", vec![4, 3, 5, 5, 5, 7, 0]),
        ("default", vec![4, 3, 6, 5, 7, 0]),
    ] {
        let tokenizer = Tokenizer::open(sample(pre).write()).unwrap();
        assert_eq!(tokenizer.encode("ab 111<|im_end|><|user|>").unwrap(), ids, "{pre}");
    }
    assert_eq!(sample("qwen2").json("tokenizer.json")["normalizer"]["type"], "NFC");
    assert_eq!(sample("gpt-2").json("generation_config.json")["eos_token_id"], serde_json::json!([7]));
    assert_eq!(sample("gpt-2").json("tokenizer_config.json")["eos_token"], "<|im_end|>");
    let refused = sample("superbpe").refused("tokenizer.json");
    assert!(refused.contains("is superbpe (tokenizer.ggml.pre), which is not known"), "{refused}");
    let refused = sample("gpt-2").with("tokenizer.ggml.merges", &["ab"][..]).refused("tokenizer.json");
    assert!(refused.contains("not a pair of texts"), "{refused}");
    let refused = sample("gpt-2").with("tokenizer.ggml.eos_token_id", 8_u32).refused("tokenizer_config.json");
    assert!(refused.contains("eos_token_id is 8, and there are 8 tokens"), "{refused}");
}

#[test]
fn rotary_settings_are_those_of_hugging_face() {
    let scaling = |sample: &Sample| sample.json("config.json")["rope_scaling"].clone();
    let mut sample = Sample::llama();
    assert_eq!(sample.json("config.json")["rope_theta"], 500_000.0);
    assert_eq!(sample.json("config.json")["rms_norm_eps"], 1e-5);
    assert!(scaling(&sample).is_null());
    // Llama 3.1 and 3.2: files hold divisors alone.
    for (factor, original) in [(8.0, 8192.0), (32.0, 8192.0), (4.0, 2048.0)] {
        let divisors = llama3_divisors(500_000.0, 64, (factor, 1.0, 4.0), original);
        sample.tensors.truncate(1);
        sample.tensors.push(("rope_freqs.weight", vec![32], divisors));
        let found = scaling(&sample);
        assert_eq!(found["factor"], factor, "{found}");
        assert_eq!(found["original_max_position_embeddings"], original as u64, "{found}");
    }
    sample.tensors[1].2[20] *= 1.5;
    assert!(sample.refused("config.json").contains("does not hold the divisors of Llama 3"));
    let linear =
        Sample::llama().with("llama.rope.scaling.type", "linear").with("llama.rope.scaling.factor", 2.5_f32);
    assert_eq!(scaling(&linear), serde_json::json!({"rope_type": "linear", "factor": 2.5}));
    let yarn =
        Sample::llama().with("llama.rope.scaling.type", "yarn").with("llama.rope.scaling.factor", 4.0_f32);
    let yarn = yarn.with("llama.rope.scaling.original_context_length", 32_768_u32);
    assert_eq!(scaling(&yarn)["original_max_position_embeddings"], 32_768);
    let other =
        Sample::llama().with("llama.rope.scaling.type", "spiral").with("llama.rope.scaling.factor", 2.0_f32);
    assert!(other.refused("config.json").contains("rope.scaling.type is spiral"));
}

#[test]
fn what_is_no_model_of_a_known_kind_is_refused() {
    let refused = Sample::llama().with("general.architecture", "mamba").refused("config.json");
    assert!(refused.starts_with("the architecture is mamba; supported are llama, qwen2, "), "{refused}");
    let refused = Sample::llama().with("llama.expert_count", 8_u32).refused("config.json");
    assert!(refused.contains("mixture of experts"), "{refused}");
    let refused = Sample::llama().with("general.type", "adapter").refused("config.json");
    assert!(refused.starts_with("the file is of the type adapter"), "{refused}");
    let refused = Sample::llama().with("split.count", 2_u32).refused("config.json");
    assert!(
        refused.contains("part 1 of 2 (split.no), and its name does not end in -00001-of-00002.gguf"),
        "{refused}"
    );
    let sample = Sample::llama();
    let path = sample.write();
    assert_eq!(read_text(&path.join("vocab.json"), 9).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(has_file(&path, "config.json") && !has_file(&path, "vocab.json"));
    // What a file lacks is said by its name.
    assert!(Sample::llama().refused("tokenizer.json").contains("tokenizer.ggml.tokens"));
    assert!(!is_gguf(Path::new("/dev/null")) && !is_gguf(path.parent().unwrap()));
    let weights = |sample: &Sample| map_weights(&sample.write()).err().unwrap().to_string();
    let mut sample = Sample::llama();
    sample.tensors.push(("blk.0.attn_sinks.weight", vec![4], vec![0.0; 4]));
    assert!(
        weights(&sample)
            .contains("blk.0.attn_sinks.weight has no place in a model of the architecture llama")
    );
    sample.tensors[1] = ("blk.0.attn_q.weight", vec![4, 3], vec![0.0; 12]);
    assert!(weights(&sample).contains("has 3 rows, which are not whole heads"));
}

#[test]
fn lines_of_gemma_4_and_words_of_bert_are_read() {
    let texts = ["<unk>", "<bos>", "▁", "a", "b", "▁a", "▁ab", "<0x21>", "\n", "\n\n"];
    let gemma = Sample::llama()
        .with("tokenizer.ggml.model", "gemma4")
        .with("tokenizer.ggml.tokens", &texts[..])
        .with("tokenizer.ggml.token_type", &[2, 3, 1, 1, 1, 1, 1, 6, 1, 1][..])
        .with("tokenizer.ggml.merges", &["▁ a", "▁a b", "\n \n"][..])
        .with("tokenizer.ggml.bos_token_id", 1_u32);
    let tokenizer = Tokenizer::open(gemma.write()).unwrap();
    assert_eq!(tokenizer.encode("b ab!\n\n a").unwrap(), [4, 6, 7, 9, 5]);
    assert_eq!(tokenizer.around().unwrap(), [1]);
    assert_eq!(tokenizer.decode(&[4, 6, 7, 9, 5], true).unwrap(), "b ab!\n\n a");
    let texts = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁play", "ing", "▁,", "▁e"];
    let bert = Sample::llama()
        .with("tokenizer.ggml.model", "bert")
        .with("tokenizer.ggml.tokens", &texts[..])
        .with("tokenizer.ggml.token_type", &[3, 1, 3, 3, 1, 1, 1, 1][..])
        .with("tokenizer.ggml.cls_token_id", 2_u32)
        .with("tokenizer.ggml.seperator_token_id", 3_u32);
    assert!(bert.refused("tokenizer.json").contains("tokenizer.ggml.unknown_token_id"));
    let tokenizer = Tokenizer::open(bert.with("tokenizer.ggml.unknown_token_id", 1_u32).write()).unwrap();
    assert_eq!(tokenizer.encode("Playing, PLAY é  plays").unwrap(), [4, 5, 6, 4, 7, 1]);
    assert_eq!(tokenizer.around().unwrap(), [2, 3]);
}

/// The keys in the first file, and tensors in both.
#[test]
fn parts_of_a_model_are_read_as_one() {
    let mut whole = sentencepiece();
    whole.tensors.push(("blk.0.attn_q.weight", vec![64, 2], (0..128).map(|x| x as f32).collect()));
    let expected = (whole.json("config.json"), map_weights(&whole.write()).unwrap());
    let place = |sample: Sample, no: u16| {
        sample.with("split.no", no).with("split.count", 2_u16).with("split.tensors.count", 2_i32)
    };
    let mut first = place(sentencepiece(), 0);
    let mut second = place(Sample::llama(), 1);
    second.tensors = vec![whole.tensors[1].clone()];
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u32| folder.path().join(format!("m-0000{number}-of-00002.gguf"));
    let write = |sample: &Sample, number| _ = fs::copy(sample.write(), part(number)).unwrap();
    write(&first, 1);
    let missing = read_text(&part(1).join("config.json"), 1 << 20).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::InvalidData);
    assert!(
        missing.to_string().contains("part 2 of 2, ") && missing.to_string().contains("fetch it as well")
    );
    write(&second, 2);
    let read = |number| read_text(&part(number).join("config.json"), 1 << 20).map_err(|e| e.to_string());
    assert_eq!(read(1).unwrap(), expected.0.to_string());
    assert!(read(2).unwrap_err().contains("name the first one, m-00001-of-00002.gguf"));
    let shapes = |files: oarlock_engine::checkpoint::weights::MappedFiles| {
        files.tensors.into_iter().map(|(name, located)| (name, located.shape)).collect::<Vec<_>>()
    };
    assert_eq!(shapes(map_weights(&part(1)).unwrap()), shapes(expected.1));
    // Parts of several models.
    second = second.with("split.no", 0_u16);
    write(&second, 2);
    assert!(read(1).unwrap_err().contains("says that it is part 1 of 2; the parts are of several models"));
    second = place(sentencepiece(), 1);
    write(&second, 2);
    assert!(read(1).unwrap_err().contains("two parts have the tensor token_embd.weight"));
    first = first.with("split.tensors.count", 3_i32);
    write(&first, 1);
    assert!(read(1).unwrap_err().contains("the parts have 2 tensors, and 3 were written"));
}

/// The vocabularies with which llama.cpp tests itself (`models/ggml-vocab-*.gguf`), their texts and ids, in the folder that
/// `OARLOCK_VOCABULARIES` names.
#[test]
#[ignore = "needs vocabularies of llama.cpp"]
fn tokens_of_llama_cpp_by_hand() {
    let folder = std::env::var("OARLOCK_VOCABULARIES").unwrap();
    let mut wrong = Vec::new();
    let mut n_files = 0;
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let with = |ending: &str| fs::read_to_string(format!("{}.{ending}", path.display())).ok();
        let (Some(texts), Some(ids)) = (with("inp"), with("out")) else { continue };
        // These files hold no model.
        let folder = tempfile::tempdir().unwrap();
        let json = match read_text(&path.join("tokenizer.json"), 1 << 30) {
            Ok(json) => json,
            Err(error) => {
                println!("left out: {}: {error}", path.display());
                continue;
            }
        };
        fs::write(folder.path().join("tokenizer.json"), &json).unwrap();
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let (mut n_texts, mut n_same) = (0, 0);
        for (text, expected) in texts.iter().zip(ids.lines()) {
            let expected: Vec<u32> = expected.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let found = tokenizer.encode(text).unwrap();
            // llama.cpp composes no characters.
            if json.contains("\"NFC\"") && text.contains(|c| ('\u{300}'..'\u{370}').contains(&c)) {
                continue;
            }
            n_texts += 1;
            match found == expected {
                true => n_same += 1,
                false => wrong.push(format!("{}: {text:?}: {found:?}, not {expected:?}", path.display())),
            }
        }
        n_files += 1;
        println!("{}: {n_same} of {n_texts}", path.display());
    }
    assert!(n_files > 0 && wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Bytes of a file are changed, at the places of its head above all: it is read or refused, and never panics.
#[test]
fn damaged_files_are_read_or_refused() {
    let mut sample = sentencepiece().with("llama.attention.sliding_window", 4_u32);
    let gemma = sentencepiece().with("general.architecture", "gemma3").with("gemma3.block_count", 3_u32);
    let bytes =
        sentencepiece().with("tokenizer.ggml.model", "gpt2").with("tokenizer.ggml.merges", &["a b"][..]);
    let divisors = llama3_divisors(500_000.0, 64, (8.0, 1.0, 4.0), 8192.0);
    sample.tensors.push(("rope_freqs.weight", vec![32], divisors));
    sample.tensors.push(("blk.0.attn_q.weight", vec![4, 4], vec![0.5; 16]));
    let wholes = [sample, gemma, bytes].map(|sample| fs::read(sample.write()).unwrap());
    let mut n_read = 0;
    for seed in 0..cases() {
        let whole = &wholes[(seed % 3) as usize];
        let mut damaged = whole.clone();
        let random = |i: u64| oarlock_tensor::cpu::random::Stream { seed, stream: 1 }.uniform(i);
        for i in 0..1 + seed % 4 {
            let at = (random(3 * i) * whole.len() as f32) as usize % whole.len();
            damaged[at] = match seed % 5 {
                0 => damaged[at].wrapping_add(1),
                1 => 0xff,
                2 => 0,
                _ => (random(3 * i + 1) * 256.0) as u8,
            };
        }
        let Ok(model) = Model::of(std::iter::once(&damaged[..])) else { continue };
        let gguf = model.keys();
        let read = [
            config::of(&model),
            tokenizer::of(gguf),
            tokenizer_settings::of(gguf),
            tokenizer_settings::generation(gguf),
        ];
        n_read += read.iter().flatten().count();
        weights::located(&model).iter().flatten().for_each(|(_, located)| assert!(located.is_quantized()));
    }
    assert!(n_read > 0);
}

/// As many as `PROPTEST_CASES` says, or two thousand.
fn cases() -> u64 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}
