//! Reads which tokens a model gets, and what describes them.

use oarlock::config::NewTokens;
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::resolve::Settings;

use super::table as keys;

use super::yaml::{self, Data};

/// The modules of the vocabulary, which an adapter trains where none are named.
const OF_VOCABULARY: [&str; 2] = ["embed_tokens", "lm_head"];

/// The tokens; what is wrong with them goes to `problems`.
pub fn new_tokens(settings: &Settings, problems: &mut Problems) -> NewTokens {
    let descriptions = described(settings, problems);
    let begins_by = settings.get(keys::INIT_SPECIAL_TOKENS);
    let (described, special) = match descriptions {
        Some(descriptions) => {
            let special = descriptions.iter().map(|(token, _)| token.clone()).collect();
            (if begins_by == "noise_init" { Vec::new() } else { descriptions }, special)
        }
        None => {
            if begins_by != "noise_init" {
                settings.report(
                    problems,
                    format!("`init_special_tokens: {begins_by}` needs descriptions of the tokens"),
                    &[keys::INIT_SPECIAL_TOKENS.row],
                    "name their file in `new_special_tokens_config`, or write `init_special_tokens: noise_init`",
                );
            }
            (Vec::new(), settings.get(keys::ADD_SPECIAL_TOKENS).to_vec())
        }
    };
    let trains_adapter = ["lora", "oft"].contains(&settings.get(keys::FINETUNING_TYPE));
    let whole = settings.get(keys::ADDITIONAL_TARGET);
    let names_both = OF_VOCABULARY.iter().all(|name| whole.iter().any(|whole| whole == name));
    NewTokens {
        tokens: settings.get(keys::ADD_TOKENS).to_vec(),
        special,
        descriptions: described,
        noise_on_descriptions: begins_by == "desc_init_w_noise",
        resize: settings.get(keys::RESIZE_VOCAB),
        unties: trains_adapter && (whole.is_empty() || names_both),
    }
}

/// The tokens of `new_special_tokens_config`, each with its description.
fn described(settings: &Settings, problems: &mut Problems) -> Option<Vec<(String, String)>> {
    settings.said(keys::NEW_SPECIAL_TOKENS_CONFIG)?;
    let path = settings.word(keys::NEW_SPECIAL_TOKENS_CONFIG);
    let entries = match yaml::file(path, "the descriptions of tokens") {
        Ok(entries) => entries,
        Err(problem) => {
            problems.push(problem);
            return Some(Vec::new());
        }
    };
    let mut found = Vec::with_capacity(entries.len());
    for entry in entries {
        match entry.value.data {
            Data::Scalar { text, .. } => found.push((entry.key, text)),
            Data::List(_) | Data::Map(_) => {
                let problem = Problem::new(format!("the description of {} is not a text", entry.key));
                problems.push(
                    problem
                        .at(&entry.value.location, "")
                        .help("write lines such as `\"<token>\": what the token stands for`"),
                );
            }
        }
    }
    if settings.said(keys::ADD_SPECIAL_TOKENS).is_some() {
        settings.report(
            problems,
            "`new_special_tokens_config` and `add_special_tokens` name special tokens both",
            &[keys::NEW_SPECIAL_TOKENS_CONFIG.row, keys::ADD_SPECIAL_TOKENS.row],
            "keep one of them",
        );
    }
    Some(found)
}
