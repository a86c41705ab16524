//! The tokenizer of a folder in the keys of llama.cpp: tokens, merges, scores, special ids, the rule that cuts texts.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use oarlock_config::json;
use oarlock_engine::{Error, Result};
use oarlock_gguf::Metadata;
use serde_json::Value;

use super::settings::Settings;
use crate::adapters::side_text;
use crate::data::ChatTemplate;
use crate::gguf::rules::{RULES, Rule, cuts_of};
use crate::gguf::tokens::{BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};

/// Writes the keys of the tokenizer in `dir`, for an embedding of so many rows.
///
/// Gives what llama.cpp does otherwise than the tokenizer: lines for people.
///
/// # Errors
/// A tokenizer that llama.cpp does not have, with the reason.
pub(super) fn write(
    dir: &Path,
    settings: &Settings,
    n_rows: usize,
    metadata: &mut Metadata,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let path = dir.join("tokenizer.json");
    let text = side_text(dir, "tokenizer.json")?.ok_or_else(|| {
        Error::bad_file(dir, "holds no tokenizer.json, and a GGUF file holds its tokenizer")
    })?;
    let tokenizer: Value = json::from_str(&text).map_err(|e| Error::bad_file(&path, e.to_string()))?;
    let refuse = |what: String| Error::bad_file(&path, format!("GGUF cannot hold this tokenizer: {what}"));
    let model = &tokenizer["model"];
    if model["type"].as_str().unwrap_or("BPE") != "BPE" || !model["merges"].is_array() {
        return Err(refuse(format!("its model is {}, and only BPE is there", model["type"])));
    }
    let merges = merges(model).ok_or_else(|| refuse("a merge is no pair of texts".to_owned()))?;
    let tokens = Tokens::of(&tokenizer, n_rows).map_err(refuse)?;
    let is_sentencepiece = model["byte_fallback"] == true;
    let kind = if is_sentencepiece { "llama" } else { "gpt2" };
    let mut set = |key: &str, value: &dyn Fn(&mut Metadata, &str) -> oarlock_gguf::Result<()>| {
        value(metadata, &format!("tokenizer.{key}")).map_err(|error| refuse(error.to_string()))
    };
    set("ggml.model", &|m, key| m.set(key, kind))?;
    match is_sentencepiece {
        true => {
            let scores = scores(&tokens, &merges).map_err(refuse)?;
            let prefix = prepends_space(&tokenizer).map_err(refuse)?;
            set("ggml.pre", &|m, key| m.set(key, "default"))?;
            set("ggml.tokens", &|m, key| m.set(key, &tokens.texts[..]))?;
            set("ggml.scores", &|m, key| m.set(key, &scores[..]))?;
            set("ggml.token_type", &|m, key| m.set(key, &tokens.kinds[..]))?;
            set("ggml.add_space_prefix", &|m, key| m.set(key, prefix))?;
        }
        false => {
            let rule = rule_of(&tokenizer, &tokens, &merges).map_err(refuse)?;
            if rule.knows_no_marks() {
                notes.push(format!(
                    "note: llama.cpp cuts words with combining marks, as in Hindi or Thai, otherwise than this tokenizer (rule {})",
                    rule.name
                ));
            }
            let joined = |(left, right): &(String, String)| {
                format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ"))
            };
            let merges: Vec<String> = merges.iter().map(joined).collect();
            set("ggml.pre", &|m, key| m.set(key, rule.name))?;
            set("ggml.tokens", &|m, key| m.set(key, &tokens.texts[..]))?;
            set("ggml.token_type", &|m, key| m.set(key, &tokens.kinds[..]))?;
            set("ggml.merges", &|m, key| m.set(key, &merges[..]))?;
        }
    }
    let of_tokenizer = side_json(dir, "tokenizer_config.json")?;
    let named = |name: &str| {
        let token = &of_tokenizer[name];
        token.as_str().or_else(|| token["content"].as_str()).and_then(|token| tokens.id_of(token))
    };
    let ends = ends(&side_json(dir, "generation_config.json")?["eos_token_id"]);
    let own_ends = ends_of(settings);
    let end = named("eos_token").or_else(|| ends.first().copied()).or_else(|| own_ends.first().copied());
    let begin = named("bos_token").or_else(|| settings.u32("bos_token_id").ok().flatten());
    let turn_end = ends.iter().copied().find(|id| ![end, begin].contains(&Some(*id)));
    for (key, id) in [
        ("bos_token_id", begin),
        ("eos_token_id", end),
        ("eot_token_id", turn_end),
        ("unknown_token_id", named("unk_token")),
        ("padding_token_id", named("pad_token")),
    ] {
        if let Some(id) = id.filter(|id| (*id as usize) < n_rows) {
            set(&format!("ggml.{key}"), &|m, key| m.set(key, id))?;
        }
    }
    let adds = |side: &str, name: &str| {
        template_token(&tokenizer, side).unwrap_or_else(|| of_tokenizer[name] == true)
    };
    for (key, adds) in
        [("add_bos_token", adds("first", "add_bos_token")), ("add_eos_token", adds("last", "add_eos_token"))]
    {
        set(&format!("ggml.{key}"), &|m, key| m.set(key, adds))?;
    }
    let (default, with_tools) = ChatTemplate::texts(dir)?;
    if let Some(template) = default {
        set("chat_template", &|m, key| m.set(key, template.as_str()))?;
    }
    if let Some(template) = with_tools {
        set("chat_templates", &|m, key| m.set(key, &["tool_use"][..]))?;
        set("chat_template.tool_use", &|m, key| m.set(key, template.as_str()))?;
    }
    Ok(notes)
}

/// A JSON file of the folder; null where there is none.
fn side_json(dir: &Path, name: &str) -> Result<Value> {
    let parsed = side_text(dir, name)?.map(|text| json::from_str(&text)).transpose();
    Ok(parsed.map_err(|e| Error::bad_file(dir.join(name), e.to_string()))?.unwrap_or_default())
}

/// One id or a list of them.
fn ends(value: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(list) => list.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

fn ends_of(settings: &Settings) -> Vec<u32> {
    settings.get("eos_token_id").map(ends).unwrap_or_default()
}

/// The tokens of a vocabulary by id.
#[derive(Debug)]
struct Tokens {
    texts: Vec<String>,
    kinds: Vec<i32>,
    ids: HashMap<String, u32>,
}

impl Tokens {
    /// Those of `tokenizer.json`. Rows of the embedding that no token has get a name that no text has.
    fn of(tokenizer: &Value, n_rows: usize) -> std::result::Result<Tokens, String> {
        let mut found: BTreeMap<usize, (String, i32)> = BTreeMap::new();
        let vocab = tokenizer["model"]["vocab"].as_object().ok_or("it has no vocabulary")?;
        let has_bytes = tokenizer["model"]["byte_fallback"] == true;
        let unknown = tokenizer["model"]["unk_token"].as_str();
        for (token, id) in vocab {
            let id = id.as_u64().ok_or_else(|| format!("the id of {token:?} is {id}"))? as usize;
            let kind = match token.as_str() {
                _ if Some(token.as_str()) == unknown => UNKNOWN,
                _ if has_bytes && is_byte(token) => BYTE,
                _ => NORMAL,
            };
            if let Some((other, _)) = found.insert(id, (token.clone(), kind)) {
                return Err(format!("{other:?} and {token:?} have the same id {id}"));
            }
        }
        for added in tokenizer["added_tokens"].as_array().into_iter().flatten() {
            let (Some(text), Some(id)) = (added["content"].as_str(), added["id"].as_u64()) else {
                return Err(format!("the added token {added} has no text or no id"));
            };
            let is_unknown = Some(text) == unknown && has_bytes;
            let kind = match added["special"] == true || looks_special(text) {
                _ if is_unknown => UNKNOWN,
                true => CONTROL,
                false => USER_DEFINED,
            };
            found.insert(id as usize, (text.to_owned(), kind));
        }
        if let Some((id, (token, _))) = found.range(n_rows..).next() {
            return Err(format!("the token {token:?} has the id {id}, and the embedding has {n_rows} rows"));
        }
        let (mut texts, mut kinds, mut ids) = (Vec::new(), Vec::new(), HashMap::new());
        for id in 0..n_rows {
            let (text, kind) = found.remove(&id).unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED));
            if text.is_empty() {
                return Err(format!("the token {id} has no text"));
            }
            if let Some(other) = ids.insert(text.clone(), id as u32) {
                return Err(format!("the tokens {other} and {id} are both {text:?}"));
            }
            // Texts are cut at these before spaces become ▁.
            texts.push(if kind == USER_DEFINED { text.replace('▁', " ") } else { text });
            kinds.push(kind);
        }
        Ok(Tokens { texts, kinds, ids })
    }

    fn id_of(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }
}

/// Whether a token stands for a byte, as `<0x0A>`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Whether llama.cpp takes a token for a control token by its looks.
fn looks_special(token: &str) -> bool {
    let between = |begin: &str, end: &str| token.starts_with(begin) && token.ends_with(end);
    between("<|", "|>") || between("<｜", "｜>")
}

/// The merges, in the order in which they are tried.
fn merges(model: &Value) -> Option<Vec<(String, String)>> {
    let pair = |merge: &Value| match merge {
        Value::String(text) => text.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned())),
        Value::Array(parts) => match &parts[..] {
            [left, right] => Some((left.as_str()?.to_owned(), right.as_str()?.to_owned())),
            _ => None,
        },
        _ => None,
    };
    model["merges"].as_array()?.iter().map(pair).collect()
}

/// The rule by which a byte-level tokenizer cuts texts.
fn rule_of(
    tokenizer: &Value,
    tokens: &Tokens,
    merges: &[(String, String)],
) -> std::result::Result<&'static Rule, String> {
    let normalizer = &tokenizer["normalizer"];
    let is_none = normalizer.is_null()
        || (normalizer["type"] == "Sequence"
            && normalizer["normalizers"].as_array().is_some_and(Vec::is_empty));
    if !is_none && normalizer["type"] != "NFC" {
        return Err(format!("llama.cpp has no normalizer {}", normalizer["type"]));
    }
    let cuts = cuts_of(tokenizer)?;
    let named = || RULES.iter().filter(|rule| rule.has(&cuts));
    let whole = tokenizer["model"]["ignore_merges"] == true;
    if let Some(rule) = named().find(|rule| rule.takes_whole == whole) {
        return Ok(rule);
    }
    let none = || format!("llama.cpp has no name for the rules {}", tokenizer["pre_tokenizer"]);
    let rule = named().next().ok_or_else(none)?;
    // Where merges make every token, nothing depends on it.
    match without_merges(tokens, merges) {
        None => Ok(rule),
        Some(token) => Err(format!(
            "its ignore_merges is {whole}, llama.cpp has {} for {}, and the merges do not make the token {token:?}",
            rule.takes_whole, rule.name
        )),
    }
}

/// The longest token whose merges are tried.
const MOST_BYTES: usize = 1024;

/// The first token that its own merges do not make.
fn without_merges<'t>(tokens: &'t Tokens, merges: &[(String, String)]) -> Option<&'t str> {
    let ranks: HashMap<(&str, &str), usize> = merges
        .iter()
        .enumerate()
        .rev()
        .map(|(rank, (left, right))| ((&left[..], &right[..]), rank))
        .collect();
    let is_made = |text: &str| {
        let mut ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        while ends.len() > 2 {
            let pair = |i: usize| (&text[ends[i]..ends[i + 1]], &text[ends[i + 1]..ends[i + 2]]);
            let ranked = (0..ends.len() - 2).filter_map(|i| Some((*ranks.get(&pair(i))?, i)));
            let Some((_, first)) = ranked.min() else { return false };
            ends.remove(first + 1);
        }
        true
    };
    let mut normal = tokens.texts.iter().zip(&tokens.kinds).filter(|(_, kind)| **kind == NORMAL);
    normal.find(|(text, _)| text.len() > MOST_BYTES || !is_made(text)).map(|(text, _)| text.as_str())
}

/// Whether a SentencePiece tokenizer puts a space before a text.
fn prepends_space(tokenizer: &Value) -> std::result::Result<bool, String> {
    let normalizer = &tokenizer["normalizer"];
    let steps: Vec<&Value> = match normalizer["type"].as_str() {
        Some("Sequence") => normalizer["normalizers"].as_array().into_iter().flatten().collect(),
        Some(_) => vec![normalizer],
        None => vec![],
    };
    let mut prepends = false;
    for step in steps {
        match step["type"].as_str() {
            Some("Prepend") if step["prepend"] == "▁" => prepends = true,
            Some("Replace") if step["pattern"]["String"] == " " && step["content"] == "▁" => {}
            _ => return Err(format!("llama.cpp has no normalizer {step}")),
        }
    }
    let rule = &tokenizer["pre_tokenizer"];
    match rule["type"].as_str() {
        None => Ok(prepends),
        // Spaces are ▁ by then, so there is nothing to cut.
        Some("Split") if rule["pattern"]["String"] == " " => Ok(prepends),
        Some("Metaspace") if rule["split"] != true && rule["replacement"] == "▁" => {
            Ok(prepends || rule["prepend_scheme"] != "never")
        }
        _ => Err(format!("llama.cpp has no rule {rule} for tokens of SentencePiece")),
    }
}

/// Scores by which llama.cpp joins the same neighbours as the merges do: it joins those whose token scores highest, and knows no
/// pairs. So a token must come of each of its pairs, and those of one token must stand together.
fn scores(tokens: &Tokens, merges: &[(String, String)]) -> std::result::Result<Vec<f32>, String> {
    let mut scores: Vec<f32> =
        tokens.kinds.iter().map(|kind| if *kind == NORMAL { -1e6 } else { -1e3 }).collect();
    let mut n_pairs: HashMap<u32, usize> = HashMap::new();
    let mut last = None;
    let mut rank = 0.0;
    let is_normal = |part: &str| tokens.id_of(part).is_some_and(|id| tokens.kinds[id as usize] == NORMAL);
    for (left, right) in merges {
        // Texts are cut at added tokens first, so no merge meets them.
        if [left, right].into_iter().any(|part| tokens.id_of(part).is_some() && !is_normal(part)) {
            continue;
        }
        let token = format!("{left}{right}");
        let id =
            tokens.id_of(&token).ok_or_else(|| format!("the merge {left:?} {right:?} makes no token"))?;
        if tokens.kinds[id as usize] != NORMAL {
            continue;
        }
        if last != Some(id) {
            if n_pairs.contains_key(&id) {
                return Err(format!("the merges of the token {token:?} do not stand together"));
            }
            scores[id as usize] = -rank;
            rank += 1.0;
        }
        last = Some(id);
        *n_pairs.entry(id).or_default() += 1;
    }
    for (id, text) in tokens.texts.iter().enumerate().filter(|(id, _)| tokens.kinds[*id] == NORMAL) {
        let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let n_cuts = cuts.filter(|(left, right)| is_normal(left) && is_normal(right)).count();
        let n_merges = n_pairs.get(&(id as u32)).copied().unwrap_or(0);
        if n_cuts != n_merges {
            return Err(format!(
                "the token {text:?} comes of {n_merges} merges, and {n_cuts} pairs of tokens make it"
            ));
        }
    }
    Ok(scores)
}

/// Whether the template of the post-processor begins (or ends) a text with a special token; `None` without a template.
fn template_token(tokenizer: &Value, side: &str) -> Option<bool> {
    let processor = &tokenizer["post_processor"];
    let parts: Vec<&Value> = match processor["type"].as_str()? {
        "Sequence" => processor["processors"].as_array()?.iter().collect(),
        _ => vec![processor],
    };
    let template = parts.into_iter().find(|part| part["type"] == "TemplateProcessing")?;
    let single = template["single"].as_array()?;
    let end = if side == "first" { single.first() } else { single.last() };
    Some(end.is_some_and(|piece| piece.get("SpecialToken").is_some()))
}
