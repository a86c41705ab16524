//! Whether the paths of a configuration lead somewhere. Separate from parsing, which touches no file but its own.

use std::path::Path;

use oarlock::config::{ModelSource, Resume};
use oarlock::data::Source;
use oarlock::train::{Fault, Obstacle, obstacles, preflight};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::value::Value;
use oarlock_lm::gguf::{has_file, is_gguf};

use super::resolved::ResolvedConfig;
use super::table as keys;

/// What is in the way of the run in its output folder.
///
/// # Errors
/// A folder that cannot be read.
pub fn check_output(config: &ResolvedConfig) -> oarlock::Result<Problems> {
    let mut problems = Problems::default();
    for Obstacle { keys, message, help } in obstacles(config)? {
        let keys: Vec<&Row> = keys.iter().filter_map(|name| keys::find(name)).collect();
        config.settings.report(&mut problems, message, &keys, help);
    }
    Ok(problems)
}

/// What the ranks would end with before their first step, at the keys that it comes from.
pub fn check_before_start(config: &ResolvedConfig) -> Problems {
    let mut problems = Problems::default();
    for Fault { keys, message } in preflight(config) {
        let is_written = |key: &&'static Row| config.settings.setting(*key).is_written();
        let is_named = |key: &&'static Row| is_written(key) && names(&message, key.name);
        let is_quoted = |key: &&'static Row| {
            let value = config.settings.setting(*key).value.to_string();
            is_written(key) && value.len() > 1 && names(&message, &value)
        };
        let keys = keys.iter().filter_map(|name| keys::find(name));
        let named: Vec<&Row> = keys.clone().filter(is_named).collect();
        let quoted = || keys.clone().find(is_quoted).or(keys.clone().next());
        let at = if named.is_empty() { quoted().into_iter().collect() } else { named };
        problems.push(config.problem(message.clone(), &at));
    }
    problems
}

/// Whether a message has some words, and not as a part of others.
fn names(message: &str, words: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    message.match_indices(words).any(|(at, found)| {
        !message[..at].ends_with(is_part) && !message[at + found.len()..].starts_with(is_part)
    })
}

/// Whether a folder holds an adapter alone.
fn is_adapter(dir: &Path) -> bool {
    dir.join("adapter_config.json").is_file() && !dir.join("config.json").is_file()
}

/// Checks the paths that must exist before training starts.
///
/// # Errors
/// Every path that leads nowhere.
pub fn check(config: &ResolvedConfig) -> Result<(), Problems> {
    let mut problems = check_model(config);
    problems.append(check_beside_hub(config, &|_| false));
    problems.into_result(|| ())
}

/// What is wrong with the path of the model, or of its tokenizer.
fn check_model(config: &ResolvedConfig) -> Problems {
    let mut problems = Problems::default();
    let mut report = |key: &'static Row, message: String, help: String| {
        config.settings.report(&mut problems, message, &[key], help);
    };
    match &config.model.source {
        ModelSource::Folder(model) if !model.is_dir() && !is_gguf(model) => report(
            keys::MODEL_NAME_OR_PATH.row,
            format!("no model folder `{}`", model.display()),
            "it is a folder or a GGUF file, relative to the working directory, or OWNER/NAME on a hub, which a run fetches".to_owned(),
        ),
        ModelSource::Folder(model) if is_adapter(model) => report(
            keys::MODEL_NAME_OR_PATH.row,
            format!("`{}` is the folder of an adapter, and not of a model", model.display()),
            "name the adapter in `adapter_name_or_path`, and here the model that it was trained beside"
                .to_owned(),
        ),
        ModelSource::Folder(model) => {
            let missing = |file: &&str| !has_file(model, file);
            for file in ["config.json", "tokenizer.json"].into_iter().filter(missing) {
                report(
                    keys::MODEL_NAME_OR_PATH.row,
                    format!("the model folder `{}` holds no {file}", model.display()),
                    "a model folder holds config.json, tokenizer.json and, unless train_from_scratch is true, weights"
                        .to_owned(),
                );
            }
        }
        ModelSource::Fields(_) => {
            let tokenizer = &config.model.tokenizer;
            if !tokenizer.join("tokenizer.json").is_file() {
                report(
                    keys::TOKENIZER_PATH.row,
                    format!("no tokenizer.json in `{}`", tokenizer.display()),
                    "it is a tokenizer.json or its folder, relative to the working directory; \
                     `oarlock tokenizer train` makes one"
                        .to_owned(),
                );
            }
        }
    }
    problems
}

/// Every other path that leads nowhere, but for those of keys that are still to come from a hub.
pub fn check_beside_hub(config: &ResolvedConfig, to_come: &dyn Fn(&str) -> bool) -> Problems {
    let mut problems = Problems::default();
    let mut report = |key: &'static Row, message: String, help: String| {
        config.settings.report(&mut problems, message, &[key], help);
    };
    let reference = config.train.objective.reference().and_then(|reference| reference.model.as_ref());
    if let Some(model) =
        reference.filter(|model| !has_file(model, "config.json") && !to_come(&model.to_string_lossy()))
    {
        report(
            if config.train.objective.scores_with_reference() {
                keys::REWARD_MODEL.row
            } else {
                keys::REF_MODEL.row
            },
            format!("no model folder `{}`", model.display()),
            "it is a local folder with config.json and weights, relative to the working directory".to_owned(),
        );
    }
    let info = config.data.dataset_dir.join("dataset_info.json");
    // What is tokenized already is read without its sources.
    let is_tokenized =
        config.data.tokenized.as_ref().is_some_and(|tokens| tokens.join("train.tokens").is_file());
    let data_dir = config.data.dataset_dir.to_string_lossy();
    if let Some(table) = data_dir.strip_prefix("REMOTE:").filter(|name| !is_tokenized && !to_come(name)) {
        report(
            keys::DATASET_DIR.row,
            format!("the table of `{table}` on the hub is not in the cache"),
            "a run fetches it; or write the folder that holds dataset_info.json and its files".to_owned(),
        );
    }
    let is_on_hub = data_dir.starts_with("REMOTE:");
    for (key, names) in
        [(keys::DATASET.row, &config.data.datasets), (keys::EVAL_DATASET.row, &config.data.eval_datasets)]
    {
        let dir = &config.data.dataset_dir;
        if is_tokenized || is_on_hub {
            continue;
        }
        let is_found = |name: &str| Path::new(name).exists() || dir.join(name).exists();
        let is_here = |name: &str| config.data.remote.contains_key(name);
        for name in names.iter().filter(|name| !is_found(name) && !is_here(name) && !to_come(name)) {
            if data_dir == "ONLINE" {
                report(
                    key,
                    format!("the data set `{name}` of a hub is not in the cache"),
                    "a run fetches it".to_owned(),
                );
            } else if !info.is_file() {
                report(
                    key,
                    format!("no data set `{name}`"),
                    format!(
                        "it is neither a file nor a folder, here or in `{}`, and there is no `{}` to name it; of a hub a run fetches OWNER/NAME",
                        dir.display(),
                        info.display()
                    ),
                );
            } else if let Err(error) = Source::resolve(name, dir, None) {
                let help = format!("a data set is a name in `{}`, a file or a folder", info.display());
                report(key, error.to_string(), help);
            }
        }
    }
    // The folder itself, or the nearest above it that is there; a link may be there and lead nowhere.
    let output = config.save.output_dir.ancestors().find(|path| path.symlink_metadata().is_ok());
    if let Some(found) = output.filter(|path| !path.is_dir()) {
        let what = if found.exists() { "is a file, not a folder" } else { "is a link that leads nowhere" };
        report(
            keys::OUTPUT_DIR.row,
            format!("`{}` {what}", found.display()),
            "name another folder".to_owned(),
        );
    }
    if let Resume::From(path) = &config.save.resume
        && !path.is_dir()
    {
        report(
            keys::RESUME_FROM_CHECKPOINT.row,
            format!("no checkpoint folder `{}`", path.display()),
            "name a folder such as output_dir/checkpoint-100, or true for the newest".to_owned(),
        );
    }
    let resume = config.settings.setting(keys::RESUME_FROM_CHECKPOINT);
    if let (Value::Bool(flag), Some(at)) = (&resume.value, resume.location()) {
        let word = at.text().trim_matches(['"', '\'', ' ']);
        if !word.eq_ignore_ascii_case(&flag.to_string()) && Path::new(word).is_dir() {
            report(
                keys::RESUME_FROM_CHECKPOINT.row,
                format!("`{word}` stands for {flag}, and there is a folder of that name"),
                format!("write `./{word}` for the folder, or `{flag}`"),
            );
        }
    }
    problems
}
