//! Which files of a repository a model is read from: settings, tokenizer, templates, and weights as safetensors.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::Error;
use crate::listing::{Entry, Listing};
use crate::names::{Repo, RepoPath};

/// What is taken beside the weights, where it is there. Pickles, other frameworks and other precisions are not.
const BESIDE: [&str; 13] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "adapter_config.json",
    "adapter_model.safetensors",
];

/// The weights in one file, and the list of files that hold them.
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The files to take.
pub(crate) struct Choice {
    pub(crate) files: Vec<Entry>,
    /// The index that names further files, which is among `files`.
    pub(crate) index: Option<RepoPath>,
}

/// The files of a model.
///
/// # Errors
/// No weights that are read.
pub(crate) fn choose(repo: &Repo, listing: &Listing) -> Result<Choice, Error> {
    let is_template = |path: &RepoPath| {
        let inside = path.as_str().strip_prefix("additional_chat_templates/");
        inside.is_some_and(|name| !name.contains('/') && name.ends_with(".jinja"))
    };
    let is_beside = |entry: &&Entry| BESIDE.contains(&entry.path.as_str()) || is_template(&entry.path);
    let mut files: Vec<Entry> = listing.entries.iter().filter(is_beside).cloned().collect();
    let weights = listing.get(SINGLE).or_else(|| listing.get(INDEX));
    let index = weights.filter(|entry| entry.path.as_str() == INDEX).map(|entry| entry.path.clone());
    files.extend(weights.cloned());
    let has_adapter = listing.get("adapter_model.safetensors").is_some();
    if weights.is_none() && !has_adapter {
        return Err(Error::NoWeights { repo: repo.to_string(), found: instead(listing) });
    }
    Ok(Choice { files, index })
}

/// The files that an index names.
///
/// # Errors
/// An index that is none, or that names files which are not there.
pub(crate) fn shards(repo: &Repo, listing: &Listing, index: &str) -> Result<Vec<Entry>, Error> {
    let wrong =
        |problem: &str| Error::NoWeights { repo: repo.to_string(), found: format!("{INDEX} {problem}") };
    let index: Value = serde_json::from_str(index).map_err(|_| wrong("is not JSON"))?;
    let map = index["weight_map"].as_object().ok_or_else(|| wrong("has no weight_map"))?;
    let names: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
    let names = names.filter(|names| !names.is_empty()).ok_or_else(|| wrong("names no files"))?;
    let entry = |name: &str| {
        let path = RepoPath::of(name)?;
        if !path.as_str().ends_with(".safetensors") {
            return Err(wrong(&format!("names {name:?}, which is no safetensors")));
        }
        listing.get(name).cloned().ok_or_else(|| Error::EntryNotFound {
            repo: repo.to_string(),
            path: name.to_owned(),
            revision: repo.revision.clone(),
            nearest: listing.nearest(name),
        })
    };
    names.into_iter().map(entry).collect()
}

/// What is there instead of weights that are read.
fn instead(listing: &Listing) -> String {
    let ends = |end: &str| listing.entries.iter().find(|entry| entry.path.as_str().ends_with(end));
    if let Some(pickle) = [".bin", ".pth", ".pt", ".ckpt"].into_iter().find_map(ends) {
        let name = &pickle.path;
        return format!(
            "{name} is a pickle, which can run code when it is read; look for a revision with safetensors"
        );
    }
    match ends(".gguf") {
        Some(gguf) => {
            format!("{} and the like are GGUF, which is named by its quantization as well", gguf.path)
        }
        None => format!("none of its {} files is one", listing.entries.len()),
    }
}

/// The files of a quantization in GGUF: `tag` as in `owner/name:Q4_K_M`, else Q4_K_M, else the first one.
///
/// # Errors
/// No such file.
pub(crate) fn gguf(repo: &Repo, listing: &Listing, tag: Option<&str>) -> Result<Vec<Entry>, Error> {
    let is_model = |entry: &&Entry| {
        let name = entry.path.as_str().to_ascii_lowercase();
        name.ends_with(".gguf") && !name.contains("mmproj") && !name.contains("imatrix")
    };
    let all: Vec<&Entry> = listing.entries.iter().filter(is_model).collect();
    let has_tag = |entry: &&&Entry, tag: &str| {
        let name = entry.path.as_str().to_ascii_uppercase();
        let tag = tag.to_ascii_uppercase();
        name.match_indices(&tag).any(|(at, _)| {
            let edge =
                |byte: Option<u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric() && byte != b'_');
            let before = at.checked_sub(1).and_then(|at| name.as_bytes().get(at).copied());
            edge(before) && edge(name.as_bytes().get(at + tag.len()).copied())
        })
    };
    let found = match tag {
        Some(tag) => all.iter().find(|entry| has_tag(entry, tag)),
        None => all.iter().find(|entry| has_tag(entry, "Q4_K_M")).or(all.first()),
    };
    let Some(first) = found else {
        let names: Vec<&str> = all.iter().map(|entry| entry.path.as_str()).take(30).collect();
        let found = match names.is_empty() {
            true => "it has no GGUF at all".to_owned(),
            false => format!("no GGUF of it is {:?}; it has {}", tag.unwrap_or_default(), names.join(", ")),
        };
        return Err(Error::NoWeights { repo: repo.to_string(), found });
    };
    // Parts of one file are name-00001-of-00003.gguf.
    let Some((name, n_parts)) = parts(first.path.as_str()) else { return Ok(vec![(*first).clone()]) };
    let is_part = |entry: &&&Entry| parts(entry.path.as_str()) == Some((name, n_parts));
    Ok(all.iter().filter(is_part).map(|entry| (*entry).clone()).collect())
}

/// The name before the number of a part, and the number of parts.
fn parts(path: &str) -> Option<(&str, &str)> {
    let stem = path.strip_suffix(".gguf")?;
    let (before, n_parts) = stem.rsplit_once("-of-")?;
    let (name, number) = before.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(number) && is_number(n_parts)).then_some((name, n_parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Kind;

    fn listing(paths: &[&str]) -> Listing {
        let entry = |path: &&str| Entry { path: RepoPath::of(path).unwrap(), size: 1, etag: None };
        Listing { commit: String::new(), entries: paths.iter().map(entry).collect(), is_whole: true }
    }

    fn repo() -> Repo {
        Repo::of(Kind::Model, "a/b", None, "main").unwrap()
    }

    fn names(entries: &[Entry]) -> Vec<&str> {
        entries.iter().map(|entry| entry.path.as_str()).collect()
    }

    #[test]
    fn a_model_is_its_settings_tokenizer_and_safetensors() {
        let all = listing(&[
            "README.md",
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "original/model.safetensors",
            "additional_chat_templates/rag.jinja",
            "additional_chat_templates/x/y.jinja",
        ]);
        let choice = choose(&repo(), &all).unwrap();
        let expected =
            ["config.json", "tokenizer.json", "additional_chat_templates/rag.jinja", "model.safetensors"];
        assert_eq!((names(&choice.files), choice.index), (expected.to_vec(), None));
        let said =
            choose(&repo(), &listing(&["config.json", "pytorch_model.bin"])).err().unwrap().to_string();
        assert!(said.contains("pytorch_model.bin is a pickle"), "{said}");
        let adapter =
            choose(&repo(), &listing(&["adapter_config.json", "adapter_model.safetensors"])).unwrap();
        assert_eq!(adapter.files.len(), 2);
    }

    #[test]
    fn shards_are_those_of_the_index_and_lie_in_the_repository() {
        let all = listing(&[INDEX, "model-1.safetensors", "model-2.safetensors", "other.safetensors"]);
        assert_eq!(choose(&repo(), &all).unwrap().index.unwrap().as_str(), INDEX);
        let of = |text: &str| shards(&repo(), &all, text);
        let index = r#"{"weight_map": {"b": "model-2.safetensors", "a": "model-1.safetensors", "c": "model-2.safetensors"}}"#;
        assert_eq!(names(&of(index).unwrap()), ["model-1.safetensors", "model-2.safetensors"]);
        let said = of(r#"{"weight_map": {"a": "model-3.safetensors"}}"#).unwrap_err().to_string();
        assert!(said.contains("did you mean \"model-1.safetensors\""), "{said}");
        for wrong in [
            "",
            "{}",
            "[]",
            r#"{"weight_map": {}}"#,
            r#"{"weight_map": {"a": 1}}"#,
            r#"{"weight_map": {"a": "x.bin"}}"#,
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let said = of(r#"{"weight_map": {"a": "../../x.safetensors"}}"#).unwrap_err().to_string();
        assert!(said.contains("refused"), "{said}");
    }

    #[test]
    fn quantizations_are_found_by_their_tags() {
        let all = listing(&[
            "m-Q8_0.gguf",
            "m-IQ4_K_M.gguf",
            "m-q4_k_m.gguf",
            "mmproj-F16.gguf",
            "BF16/m-BF16-00001-of-00002.gguf",
            "BF16/m-BF16-00002-of-00002.gguf",
        ]);
        let of = |tag| gguf(&repo(), &all, tag).unwrap();
        assert_eq!(names(&of(None)), ["m-q4_k_m.gguf"]);
        assert_eq!(names(&of(Some("q8_0"))), ["m-Q8_0.gguf"]);
        assert_eq!(of(Some("BF16")).len(), 2);
        let said = gguf(&repo(), &all, Some("F16")).unwrap_err().to_string();
        assert!(said.contains("m-Q8_0.gguf"), "{said}");
        assert_eq!(names(&gguf(&repo(), &listing(&["a.gguf", "b.gguf"]), None).unwrap()), ["a.gguf"]);
    }
}
