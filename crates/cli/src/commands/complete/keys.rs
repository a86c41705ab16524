//! The keys of a training run and their values, as words that may be written.

use oarlock_config::settings::keys::{Row, ValueType};

use super::candidate::Candidate;
use crate::config::explain::{OWN, choices};
use crate::config::table::{KEYS, find};
use crate::front::recipes::Recipe;

/// What may stand behind these words of a command that takes a configuration, or the name of one of the recipes, and settings.
pub(super) fn settings(words: &[String], current: &str, recipes: &[Recipe]) -> Vec<Candidate> {
    // Behind `--key` its value follows.
    let waiting = words.last().and_then(|last| find(&normal(last.strip_prefix("--")?)));
    if let Some(key) = waiting.filter(|key| takes_value(key)) {
        return value_of_flag(key, "");
    }
    if let Some((name, value)) = current.split_once('=') {
        let key = find(&normal(name.strip_prefix("--").unwrap_or(name)));
        return key.map_or_else(Vec::new, |key| values(key, &format!("{name}="), value));
    }
    let used = KEYS.iter().filter(|key| key.is_used());
    if current.starts_with('-') {
        let own = OWN.iter().map(|(name, doc)| Candidate::word(format!("--{name}"), *doc));
        return own.chain(used.map(|key| Candidate::word(format!("--{}", key.name), about(key)))).collect();
    }
    let keys = used.map(|key| Candidate::part(format!("{}=", key.name), about(key)));
    let has_file = operands(words).next().is_some();
    match has_file {
        true => keys.collect(),
        // Keys may stand first, too, but there are hundreds of them.
        false if current.is_empty() => files(recipes).collect(),
        false => files(recipes).chain(keys).collect(),
    }
}

/// Recipes by their names, and files.
fn files(recipes: &[Recipe]) -> impl Iterator<Item = Candidate> {
    let named =
        recipes.iter().map(|recipe| Candidate::word(recipe.name, format!("The recipe {}", recipe.name)));
    named.chain([Candidate::files("")])
}

/// The words that are neither settings nor flags nor the values of flags.
fn operands(words: &[String]) -> impl Iterator<Item = &String> {
    let is_value = |at: usize| {
        let flag = at.checked_sub(1).and_then(|before| words[before].strip_prefix("--"));
        flag.and_then(|flag| find(&normal(flag))).is_some_and(takes_value)
    };
    let is_operand =
        move |at: usize, word: &str| !word.contains('=') && !word.starts_with('-') && !is_value(at);
    words.iter().enumerate().filter(move |(at, word)| is_operand(*at, word)).map(|(_, word)| word)
}

fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// Whether a flag of this name has its value in the next word.
pub(super) fn takes_value(key: &Row) -> bool {
    key.value_type != ValueType::Bool
}

/// What a key means, with its default.
pub(super) fn about(key: &Row) -> String {
    match key.default {
        "" => key.doc.to_owned(),
        default => format!("{} [{default}]", key.doc),
    }
}

/// The values of a flag.
pub(super) fn value_of_flag(key: &Row, behind: &str) -> Vec<Candidate> {
    values(key, behind, "")
}

/// The values of a key behind what is written before them. Of a list, what is written before the last comma stays.
fn values(key: &Row, behind: &str, value: &str) -> Vec<Candidate> {
    let listed = value.rsplit_once(',').filter(|_| key.value_type == ValueType::List);
    let before = listed.map_or(behind.to_owned(), |(before, _)| format!("{behind}{before},"));
    let is_default = |name: &str| if name == key.default { "the default" } else { "" };
    let words =
        choices(key).into_iter().map(|name| Candidate::word(format!("{before}{name}"), is_default(name)));
    let is_path = matches!(key.value_type, ValueType::Path | ValueType::BoolOrPath | ValueType::MapOrPath);
    words.chain(is_path.then(|| Candidate::files(behind))).collect()
}
