//! Reads an exported folder back and compares it with what it was to hold: weights, tokens of texts, conversations.

use std::path::Path;

use half::{bf16, f16};
use oarlock_engine::checkpoint::weights::SafetensorsSource;
use oarlock_engine::nn::parameters;
use oarlock_engine::shard::{ParamSlice, WeightSource};
use oarlock_engine::{Error, Result};
use oarlock_tensor::DType;
use serde_json::json;

use crate::data::{ChatTemplate, Conversation, Message, Tokenizer};
use crate::model::{Decoder, HfConfig};

/// Elements that are compared at a time.
const CHUNK_ELEMS: usize = 1 << 18;
/// Texts of which tokens are compared.
pub const N_LINES: usize = 1000;

/// Texts at which tokenizers part: contractions, digits, spaces, scripts, signs that are several characters.
const TEXTS: [&str; 14] = [
    "It's what they'll say, I'M sure: we'd've gone.",
    "  two  spaces,\ttabs\t\tand\r\n\r\nlines \n of  their own  ",
    "1234567 8,901.50 + 3/4 = x2y3",
    "你好，世界！今天是２０２６年。",
    "日本語と한국어 กับ ไทย",
    "naïve café ﬁ Å \u{41}\u{30a} Straße",
    "👩‍👩‍👧 🇨🇳 👍🏽 ∑∞≠",
    "fn main() { let x = a[i] += 1; } // end",
    "Ελλάδα العربية हिन्दी עברית Їжак",
    "a\u{200b}b\u{a0}c\u{ad}d\u{feff}e",
    "snake_case CamelCase HTTPServer2 i18n",
    "!!! ... -- == \\\\ \"'`’ ((()))",
    "<|im_start|>user\n</s><pad>",
    "https://example.org/a?b=c&d=%20#e",
];

/// Compares every weight of the folder `out` with that of `meant`, rounded to `dtype`, bit by bit.
///
/// # Errors
/// The first weight that differs, and files that cannot be read.
pub(super) fn check_weights(out: &Path, dtype: DType, meant: &mut dyn WeightSource) -> Result<()> {
    let hf = HfConfig::read(out)?;
    let decoder = Decoder::new(hf.decoder().clone(), 1)?;
    let mut found = SafetensorsSource::open(out, &hf, &decoder)?;
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for named in parameters(&decoder) {
        let n_elems = named.param.shape().n_elems();
        for start in (0..n_elems).step_by(CHUNK_ELEMS) {
            let elements = start..(start + CHUNK_ELEMS).min(n_elems);
            a.resize(elements.len(), 0.0);
            b.resize(elements.len(), 0.0);
            meant.read(&ParamSlice::of(&named, elements.clone()), &mut a)?;
            found.read(&ParamSlice::of(&named, elements), &mut b)?;
            let differs = |(a, b): (&f32, &f32)| rounded(*a, dtype).to_bits() != b.to_bits();
            if let Some(at) = a.iter().zip(&b).position(|(a, b)| differs((a, b))) {
                return Err(broken(
                    out,
                    format!(
                        "element {} of {} is {}, and not {}",
                        start + at,
                        named.name,
                        b[at],
                        rounded(a[at], dtype)
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// A value as a file of this dtype holds it.
fn rounded(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => bf16::from_f32(value).to_f32(),
        DType::F16 => f16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Compares the tokens that the tokenizer of `out` makes of [`N_LINES`] texts with those of the tokenizer that it was made of.
///
/// # Errors
/// The first text with other tokens, and a tokenizer that cannot be used.
pub(super) fn check_tokens(out: &Path, meant: &Tokenizer) -> Result<()> {
    let found = Tokenizer::open(out)?;
    for text in texts(meant, N_LINES)? {
        let (a, b) = (meant.encode(&text)?, found.encode(&text)?);
        if a != b {
            let at = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            return Err(broken(
                out,
                format!("the tokenizer makes other tokens of {text:?}, from token {at} on"),
            ));
        }
        if meant.decode(&a, false)? != found.decode(&b, false)? {
            return Err(broken(out, format!("the tokenizer makes another text of the tokens of {text:?}")));
        }
    }
    Ok(())
}

/// Texts on which tokenizers part, and others of many tokens of this one.
pub(super) fn texts(tokenizer: &Tokenizer, n: usize) -> Result<Vec<String>> {
    let n_ids = tokenizer.vocab_size()?.max(1);
    // Any fixed sequence serves: what matters is that many tokens meet in many ways.
    let mut state = 1u64;
    let mut next = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let text = |line: usize| match TEXTS.get(line) {
        Some(text) => (*text).to_owned(),
        None => {
            let ids: Vec<u32> = (0..6).map(|_| next(n_ids) as u32).collect();
            let some = tokenizer.decode(&ids, false).unwrap_or_default();
            format!("{some} {}{}", next(100_000), TEXTS[next(TEXTS.len())])
        }
    };
    Ok((0..n).map(text).collect())
}

/// Compares what the chat template of `out` makes of conversations with what `meant` makes of them.
///
/// # Errors
/// The first conversation that differs, and a template that cannot be read.
pub(super) fn check_template(out: &Path, meant: Option<&ChatTemplate>) -> Result<()> {
    let Some(meant) = meant else { return Ok(()) };
    let found = ChatTemplate::read(out)?;
    for conversation in conversations() {
        let (a, b) = (meant.render_prompt(&conversation), found.render_prompt(&conversation));
        let is_same = match (&a, &b) {
            (Ok(a), Ok(b)) => a == b,
            (Err(_), Err(_)) => true,
            _ => false,
        };
        if !is_same {
            let shown = |text: crate::data::Result<String>| text.unwrap_or_else(|error| error.to_string());
            return Err(broken(
                out,
                format!("the chat template writes {:?} and not {:?}", shown(b), shown(a)),
            ));
        }
    }
    Ok(())
}

/// What templates treat apart: a system prompt, several turns, functions, calls and their results, thoughts.
pub(super) fn conversations() -> Vec<Conversation> {
    let say = |role: &str, text: &str| Message::new(role, text);
    let turns = vec![say("user", "Hi"), say("assistant", " Hello! "), say("user", "1+1?\n")];
    let tool = json!({"type": "function", "function": {
        "name": "add", "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
    }});
    let mut call = say("assistant", "");
    let calls = json!([{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]);
    call.extra.insert("tool_calls".to_owned(), calls);
    let mut thought = say("assistant", "2");
    thought.extra.insert("reasoning_content".to_owned(), "1 and 1".into());
    let with = |system: Option<&str>, tools: Option<serde_json::Value>, messages: Vec<Message>| {
        Conversation { system: system.map(str::to_owned), tools, messages }
    };
    vec![
        with(None, None, vec![say("user", "Hi")]),
        with(Some("Be brief."), None, vec![say("user", "Hi")]),
        with(None, None, turns.clone()),
        with(Some("Be brief."), Some(json!([tool])), turns),
        with(None, Some(json!([tool])), vec![say("user", "1+1?"), call, say("tool", "2")]),
        with(None, None, vec![say("user", "1+1?"), thought, say("user", "And 2+2?")]),
    ]
}

fn broken(out: &Path, what: String) -> Error {
    Error::bad_file(out, format!("the export is broken, do not use it: {what}; export again, or report this"))
}
