//! What the program knows of the keys of a run beside their rows: their names in other programs, who reads them, and what
//! to say of a name that is none.

use oarlock_config::nearest::nearest_of;
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::layer::Layer;
use oarlock_config::settings::node::Entry;
use oarlock_config::settings::problem::Problem;

pub use oarlock_config::config::table::*;

/// What other programs call a key.
pub const OTHER_NAMES: &[(&str, &str)] = &[
    ("accumulation_steps", "gradient_accumulation_steps"),
    ("batch_size", "per_device_train_batch_size"),
    ("block_size", "cutoff_len"),
    ("data_path", "dataset"),
    ("epochs", "num_train_epochs"),
    ("grad_clip", "max_grad_norm"),
    ("gradient_clipping", "max_grad_norm"),
    ("log_interval", "logging_steps"),
    ("lr", "learning_rate"),
    ("lr_scheduler", "lr_scheduler_type"),
    ("max_length", "cutoff_len"),
    ("max_seq_len", "cutoff_len"),
    ("max_seq_length", "cutoff_len"),
    ("micro_batch_size", "per_device_train_batch_size"),
    ("model", "model_name_or_path"),
    ("nproc_per_node", "num_processes"),
    ("num_gpus", "num_processes"),
    ("num_threads", "num_threads_per_process"),
    ("out_dir", "output_dir"),
    ("pipeline_parallel_degree", "pipeline_model_parallel_size"),
    ("pipeline_parallel_size", "pipeline_model_parallel_size"),
    ("pp_degree", "pipeline_model_parallel_size"),
    ("save_dir", "output_dir"),
    ("save_interval", "save_steps"),
    ("sp_size", "sequence_parallel_size"),
    ("train_batch_size", "per_device_train_batch_size"),
    ("train_dataset", "dataset"),
    ("train_file", "dataset"),
    ("ulysses_sequence_parallel_size", "sequence_parallel_size"),
    ("warmup", "warmup_steps"),
    ("warmup_iters", "warmup_steps"),
];

/// Keys of the format that LLaMA-Factory's examples in `v1` have, which no other file has.
const OF_NEWER_FORMAT: &[&str] = &[
    "model_class",
    "kernel_config",
    "peft_config",
    "quant_config",
    "dist_config",
    "init_config",
    "sample_backend",
    "optim_config",
    "lr_scheduler_config",
];

/// The keys that only stages with conversations read.
pub const CHAT_KEYS: &[&str] =
    &["template", "tool_format", "default_system", "enable_thinking", "preserve_thinking"];

/// The key of this name.
pub fn find(name: &str) -> Option<&'static Row> {
    KEYS.iter().find(|key| key.name == name)
}

/// The name that somebody who wrote `name` probably meant: a key that other programs call so, or the nearest one.
pub fn nearest(name: &str) -> Option<&'static str> {
    if let Some((_, key)) = OTHER_NAMES.iter().find(|(other, _)| *other == name) {
        return Some(key);
    }
    nearest_of(name, KEYS.iter().map(|key| key.name))
}

/// What to say of a file in LLaMA-Factory's newer format, none of whose keys mean anything here.
pub fn newer_format(layers: &[Layer]) -> Option<Problem> {
    let mut entries = layers.iter().flat_map(|layer| &layer.entries);
    let entry = entries.find(|entry| OF_NEWER_FORMAT.contains(&entry.key.as_str()))?;
    let reported = format!("`{}` is a key of LLaMA-Factory's v1 format, which is not read", entry.key);
    let help = "write the keys of its other examples: model_name_or_path, stage, finetuning_type, dataset, …";
    Some(Problem::new(reported).at(&entry.location, "").help(help))
}

/// What to say of an entry under a key that is not in the table.
pub fn unknown(entry: &Entry) -> Problem {
    let name = entry.key.split('.').next().unwrap_or_default();
    let problem = Problem::new(format!("unknown key `{name}`")).at(&entry.location, "");
    match nearest(name) {
        Some(near) => problem.help(format!("did you mean `{near}`?")),
        None => problem.help("`oarlock train --help` lists every key"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::written;
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        assert_eq!(nearest("learning_rat"), Some("learning_rate"));
        assert_eq!(nearest("warmup_step"), Some("warmup_steps"));
        assert_eq!(nearest("BF16"), Some("bf16"));
        assert_eq!(nearest("grad_clip"), Some("max_grad_norm"));
        assert_eq!(nearest("completely_different"), None);
        assert_eq!(nearest(""), None);
    }

    #[test]
    fn a_file_of_the_newer_format_is_told_as_such() {
        let words = ["model: Qwen/Qwen3-0.6B", "train_dataset: d.yaml", "model_class: llm"].join("\n");
        let reported = |text: &str| {
            let layer = written::text_of_file("v1.yaml", text.to_owned()).unwrap();
            super::super::train_config_of(vec![layer], &|_| None).map(|_| ()).unwrap_err().to_string()
        };
        assert_eq!(
            reported(&words),
            "v1.yaml:3:1: `model_class` is a key of LLaMA-Factory's v1 format, which is not read (write the keys of its \
             other examples: model_name_or_path, stage, finetuning_type, dataset, …)"
        );
        assert!(reported("model: x").contains("did you mean `model_name_or_path`"));
        assert!(OF_NEWER_FORMAT.iter().all(|name| find(name).is_none()));
    }

    #[test]
    fn a_training_has_all_keys_of_the_library() {
        for key in TRAINING {
            assert!(find(key.name).is_some(), "{key}");
        }
    }

    #[test]
    fn every_key_is_declared_once_and_well() {
        for (i, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..i].iter().all(|other| other.name != key.name), "{} stands twice", key.name);
            assert!(
                key.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
                "{}",
                key.name
            );
            assert!(!key.doc.is_empty() && !key.doc.ends_with('.'), "{}: doc", key.name);
        }
        for (other, key) in OTHER_NAMES {
            assert!(find(key).is_some() && find(other).is_none(), "{other} -> {key}");
        }
    }
}
