//! The ids of the short way against those of the engine, on small tokenizers of every shape that it covers.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::super::engine::Engine;
use super::super::tokenizer::tests::small;
use super::*;

/// Whether a conversation may be cut anywhere, the normalizer, and the pre-tokenizer.
type Shape = (bool, Value, Value);

const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

fn split(pattern: Value) -> Value {
    json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
}

fn regex(pattern: &str) -> Value {
    split(json!({"Regex": pattern}))
}

fn digits(individual: bool) -> Value {
    json!({"type": "Digits", "individual_digits": individual})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn sequence(all: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": all})
}

fn shapes() -> Vec<Shape> {
    let nfc = json!({"type": "NFC"});
    let normalizers = |all: &[&Value]| json!({"type": "Sequence", "normalizers": all});
    let deepseek = [regex(r"\p{N}{1,3}"), regex("[一-龥぀-ゟ゠-ヿ]+"), regex(DEEPSEEK), byte_level(false)];
    vec![
        (true, Value::Null, byte_level(true)),
        (true, nfc.clone(), sequence(&[regex(LLAMA), byte_level(false)])),
        (true, Value::Null, sequence(&[regex(r"\p{L}+"), byte_level(false)])),
        (false, Value::Null, sequence(&[digits(true), byte_level(true)])),
        (false, normalizers(&[]), sequence(&deepseek)),
        (false, normalizers(&[&nfc, &nfc]), sequence(&[digits(false), regex(LLAMA), byte_level(true)])),
        (
            false,
            nfc,
            sequence(&[split(json!({"String": "e"})), split(json!({"String": "|"})), byte_level(false)]),
        ),
        (false, Value::Null, sequence(&[split(json!({"String": ""})), byte_level(false)])),
        (false, Value::Null, byte_level(false)),
    ]
}

/// The small tokenizer with these parts, and with added tokens that begin alike, are normalized, or look at what stands
/// beside them.
fn tokenizer_json(normalizer: Value, pre_tokenizer: Value) -> Value {
    let (dir, tokenizer) = small();
    let mut next = tokenizer.vocab_size().unwrap();
    let mut json: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("tokenizer.json")).unwrap()).unwrap();
    json["normalizer"] = normalizer;
    json["pre_tokenizer"] = pre_tokenizer;
    let tokens = json["added_tokens"].as_array_mut().unwrap();
    let mut add = |content: &str, normalized: bool, aside: &str| {
        let mut token = json!({"id": next, "content": content, "normalized": normalized,
            "special": false, "single_word": false, "lstrip": false, "rstrip": false});
        if !aside.is_empty() {
            token[aside] = true.into();
        }
        tokens.push(token);
        next += 1;
    };
    for content in ["<|im", "<think>\n\n", "日本語", "\u{301}1", "|><|"] {
        add(content, false, "");
    }
    for content in ["start", "cafe\u{301}", "é 1", "日本", "\n\n<"] {
        add(content, true, "");
    }
    for aside in ["lstrip", "rstrip", "single_word"] {
        add(&format!("<{aside}>"), aside == "rstrip", aside);
    }
    json
}

const FRAGMENTS: [&str; 48] = [
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<|endoftext|>",
    "<|im_sta",
    "rt|>",
    "<|im",
    "<|",
    "|>",
    "<",
    "start",
    "cafe\u{301}",
    "café",
    "cafe",
    "\u{301}",
    "\u{301}1",
    "\u{338}",
    "\u{323}",
    "e\u{301}",
    "é",
    "é 1",
    "ﬁ",
    "\u{1100}\u{1161}",
    "각",
    "\u{2126}",
    "日本",
    "日本語",
    "语言模型。",
    "一二三",
    "カタカナ",
    "the end",
    " of",
    "WE'LL",
    "'s",
    "1",
    "12345",
    "٣٤",
    "½Ⅷ",
    " ",
    "   ",
    "\n",
    "\n\n",
    "\r\n\t",
    "\u{3000}\u{a0}",
    "🙂",
    "👩‍👩‍👧‍👦🏽",
    "!?…{}",
];

fn text() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        8 => select(&FRAGMENTS[..]).prop_map(String::from),
        1 => any::<char>().prop_map(String::from),
        1 => any::<String>(),
    ];
    prop::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn the_short_way_and_the_engine_agree(text in text()) {
        type Built = (tokenizers::Tokenizer, Pieces);
        thread_local!(static BUILT: Vec<Built> = shapes().into_iter().map(|(_, normalizer, pre_tokenizer)| {
            let json = tokenizer_json(normalizer, pre_tokenizer).to_string();
            let tokenizer = tokenizers::Tokenizer::from_bytes(json).unwrap();
            let pieces = Pieces::of(&tokenizer).unwrap();
            (tokenizer, pieces)
        }).collect());
        BUILT.with(|all| {
            for (i, (tokenizer, pieces)) in all.iter().enumerate() {
                let expected = tokenizer.encode_fast(text.as_str(), false).unwrap();
                let ids = pieces.encode(tokenizer.get_model(), &text).unwrap();
                prop_assert_eq!(ids.as_deref(), Some(expected.get_ids()), "shape {}", i);
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_token_that_looks_beside_itself_is_left_to_the_engine() {
    for (_, normalizer, pre_tokenizer) in shapes() {
        let json = tokenizer_json(normalizer, pre_tokenizer).to_string();
        let tokenizer = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        let engine = Engine::build(json.as_bytes(), &[]).unwrap();
        let pieces = Pieces::of(&tokenizer).unwrap();
        for token in ["<lstrip>", "<rstrip>", "<single_word>"] {
            let text = format!("the <think> end  {token}  of <|im_end|>");
            assert_eq!(pieces.encode(tokenizer.get_model(), &text), Ok(None), "{text}");
            assert_eq!(engine.encode(&text), engine.encode_whole(&text));
        }
    }
}

#[test]
fn conversations_are_cut_where_one_pattern_splits_the_text() {
    for (cuts, normalizer, pre_tokenizer) in shapes() {
        let engine =
            Engine::build(tokenizer_json(normalizer, pre_tokenizer).to_string().as_bytes(), &[]).unwrap();
        assert_eq!(engine.is_byte_level_bpe(), cuts);
    }
}

#[test]
fn what_does_more_than_split_declines() {
    let declines = |normalizer: Value, pre_tokenizer: Value| {
        let json = tokenizer_json(normalizer, pre_tokenizer).to_string();
        let engine = Engine::build(json.as_bytes(), &[]).unwrap();
        assert!(!engine.is_byte_level_bpe());
        assert!(Pieces::of(&tokenizers::Tokenizer::from_bytes(json).unwrap()).is_none());
    };
    declines(json!({"type": "Lowercase"}), byte_level(true));
    declines(
        json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]}),
        byte_level(true),
    );
    declines(Value::Null, Value::Null);
    declines(Value::Null, sequence(&[]));
    declines(Value::Null, sequence(&[byte_level(false), regex(LLAMA)]));
    declines(Value::Null, sequence(&[byte_level(true), byte_level(false)]));
    declines(Value::Null, sequence(&[json!({"type": "Whitespace"}), byte_level(false)]));
    for (key, value) in [("behavior", json!("Removed")), ("invert", json!(true))] {
        let mut split = regex(LLAMA);
        split[key] = value;
        declines(Value::Null, sequence(&[split, byte_level(false)]));
    }
    let mut prefix = byte_level(true);
    prefix["add_prefix_space"] = true.into();
    declines(Value::Null, prefix);
}
