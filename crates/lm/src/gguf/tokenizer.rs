//! The `tokenizer.json` that the vocabulary of a GGUF file stands for.

use std::collections::HashMap;

use oarlock_gguf::{Array, Gguf};
use serde_json::{Value, json};

use super::parts::{Found, shown};
use super::rules::Rule;
use super::tokens::{BYTE, CONTROL, NORMAL, Tokens, UNKNOWN, USER_DEFINED};

/// The longest token of SentencePiece that is read.
const MOST_BYTES: usize = 1024;

/// # Errors
/// A kind of tokenizer that is not known, and keys that are missing.
pub(super) fn of(gguf: &Gguf<&[u8]>) -> Found<String> {
    let tokens = Tokens::of(gguf)?;
    let kind = gguf.require::<&str>("tokenizer.ggml.model").map_err(shown)?;
    let mut json = match kind {
        "gpt2" => byte_level(gguf)?,
        "llama" => sentencepiece(gguf, &tokens)?,
        "gemma4" => lines(gguf, &tokens)?,
        "bert" => word_pieces(gguf, &tokens)?,
        other => {
            return Err(format!(
                "the tokenizer is of the kind {} (tokenizer.ggml.model); supported are gpt2, llama, gemma4 and bert",
                other.escape_debug()
            ));
        }
    };
    // Added tokens, too: one that the vocabulary lacks gets the next id and not its own.
    let all = tokens.with(&[NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE]);
    json["model"]["vocab"] = all
        .map(|(id, text, type_of)| {
            let stored = if kind == "bert" { word_piece(text, type_of) } else { text.to_owned() };
            (stored, json!(id))
        })
        .collect();
    let added = tokens.with(&[UNKNOWN, CONTROL, USER_DEFINED]).map(|(id, text, kind)| {
        json!({"id": id, "content": text, "special": kind != USER_DEFINED, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    });
    json["added_tokens"] = added.collect();
    json["post_processor"] = template(gguf, &tokens)?;
    Ok(json.to_string())
}

/// A tokenizer whose tokens are bytes and what merges make of them.
fn byte_level(gguf: &Gguf<&[u8]>) -> Found<Value> {
    let pre = gguf.get::<&str>("tokenizer.ggml.pre").map_err(shown)?.unwrap_or("default");
    let Some(rule) = Rule::named(pre) else {
        return Err(format!(
            "the rule by which texts are cut is {} (tokenizer.ggml.pre), which is not known here; take the model as a folder of \
             Hugging Face",
            pre.escape_debug()
        ));
    };
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": rule.normalizer(),
        "pre_tokenizer": rule.pre_tokenizer(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": rule.takes_whole,
                  "merges": stored_merges(gguf)?},
    }))
}

/// The merges of the file.
fn stored_merges(gguf: &Gguf<&[u8]>) -> Found<Vec<Value>> {
    let merges: Vec<&str> = gguf.require("tokenizer.ggml.merges").map_err(shown)?;
    let pairs: Option<Vec<Value>> =
        merges.iter().map(|merge| merge.split_once(' ').map(|(left, right)| json!([left, right]))).collect();
    Ok(pairs.ok_or("a merge is not a pair of texts (tokenizer.ggml.merges)")?)
}

/// A tokenizer of Gemma 4: merges join characters of a line, in which spaces are marks, and of a run of line ends.
fn lines(gguf: &Gguf<&[u8]>, tokens: &Tokens<'_>) -> Found<Value> {
    let unknown = tokens.with(&[UNKNOWN]).next().map(|(_, text, _)| text);
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[^\n]+|[\n]+"}, "behavior": "Isolated", "invert": false},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": {"type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                  "merges": stored_merges(gguf)?},
    }))
}

/// A tokenizer of BERT: words without case and accents, and of each the longest tokens from its beginning on.
fn word_pieces(gguf: &Gguf<&[u8]>, tokens: &Tokens<'_>) -> Found<Value> {
    let flag = |key: &str| gguf.get::<bool>(&format!("tokenizer.ggml.normalizer.{key}")).map_err(shown);
    let unknown = tokens.special(gguf, "unknown_token_id")?.map(|(_, text)| text);
    let unknown = unknown.ok_or("there is no token for unknown words (tokenizer.ggml.unknown_token_id)")?;
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                       "strip_accents": flag("strip_accents")?.unwrap_or(true),
                       "lowercase": flag("lowercase")?.unwrap_or(true)},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100},
    }))
}

/// A token of BERT as its own files write it: llama.cpp marks those that begin words, and BERT those that go on with them.
fn word_piece(text: &str, type_of: i32) -> String {
    match text.strip_prefix('▁') {
        Some(begins) => begins.to_owned(),
        None if type_of == NORMAL && !(text.starts_with('[') && text.ends_with(']')) => format!("##{text}"),
        None => text.to_owned(),
    }
}

/// A tokenizer of SentencePiece: neighbours whose token scores highest are joined first.
fn sentencepiece(gguf: &Gguf<&[u8]>, tokens: &Tokens<'_>) -> Found<Value> {
    let flag = |key: &str| gguf.get::<bool>(&format!("tokenizer.ggml.{key}")).map_err(shown);
    if flag("remove_extra_whitespaces")? == Some(true) {
        return Err(
            "the tokenizer removes spaces (remove_extra_whitespaces), which is not supported".to_owned()
        );
    }
    let scores = gguf.require::<Array<'_>>("tokenizer.ggml.scores").map_err(shown)?;
    let scores: Vec<f32> = scores.to_vec().ok_or("tokenizer.ggml.scores are not numbers of type f32")?;
    if scores.len() != tokens.texts.len() {
        return Err(format!("there are {} tokens and {} scores", tokens.texts.len(), scores.len()));
    }
    let prepends = flag("add_space_prefix")?.unwrap_or(true);
    let to_mark = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let from_mark = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let (mut normalizers, mut decoders) =
        (vec![to_mark], vec![from_mark, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
    if prepends {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = tokens.with(&[UNKNOWN]).next().map(|(_, text, _)| text);
    let has_bytes = tokens.with(&[BYTE]).next().is_some();
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "normalizer": {"type": "Sequence", "normalizers": normalizers}, "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": has_bytes, "ignore_merges": false,
                  "merges": merges(tokens, &scores)?},
    }))
}

/// The pairs of tokens that make a token, those of the highest score first, as transformers derives them from SentencePiece's
/// files.
///
/// # Errors
/// A token that is longer than any tokenizer has: all its parts are looked for.
fn merges(tokens: &Tokens<'_>, scores: &[f32]) -> Found<Vec<Value>> {
    let ids: HashMap<&str, usize> = tokens.with(&[NORMAL]).map(|(id, text, _)| (text, id)).collect();
    let mut pairs = Vec::new();
    for (id, text, _) in tokens.with(&[NORMAL]) {
        if text.len() > MOST_BYTES {
            return Err(format!("token {id} has {} bytes; expected at most {MOST_BYTES}", text.len()));
        }
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(left), Some(right)) = (ids.get(left), ids.get(right)) {
                pairs.push((scores[id], id, *left, *right));
            }
        }
    }
    // Of one token, the pair whose parts have the lower ids comes first.
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
    Ok(pairs.iter().map(|(_, _, left, right)| json!([tokens.texts[*left], tokens.texts[*right]])).collect())
}

/// What is put before and behind a text.
fn template(gguf: &Gguf<&[u8]>, tokens: &Tokens<'_>) -> Found<Value> {
    let kind = gguf.require::<&str>("tokenizer.ggml.model").map_err(shown)?;
    // As llama.cpp has it where a file is silent.
    let default = matches!(kind, "llama" | "gemma4");
    let adds = |name: &str, default: bool| {
        let adds = gguf.get::<bool>(&format!("tokenizer.ggml.add_{name}_token")).map_err(shown)?;
        match adds.unwrap_or(default) {
            true => tokens.special(gguf, &format!("{name}_token_id")),
            false => Ok(None),
        }
    };
    let (begin, end) = match kind {
        "bert" => {
            let begin = tokens.special(gguf, "cls_token_id")?;
            // The key is spelled so, and the current name is read as well.
            let end = tokens.special(gguf, "seperator_token_id")?;
            (begin, if end.is_some() { end } else { tokens.special(gguf, "separator_token_id")? })
        }
        _ => (adds("bos", default)?, adds("eos", false)?),
    };
    if begin.is_none() && end.is_none() {
        return Ok(match kind {
            "gpt2" => {
                json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})
            }
            _ => Value::Null,
        });
    }
    let special = |token: &Option<(u32, &str)>, of: u32| {
        token.map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": of}}))
    };
    let part = |name: &str, of: u32| {
        let text = json!({"Sequence": {"id": name, "type_id": of}});
        [special(&begin, of), Some(text), special(&end, of)].into_iter().flatten().collect::<Vec<Value>>()
    };
    let used = [begin, end].into_iter().flatten();
    let used: Value = used
        .map(|(id, text)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    let (single, pair) = (part("A", 0), [part("A", 0), part("B", 1)].concat());
    Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": used}))
}
