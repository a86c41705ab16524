//! `accelerate to-fsdp2`: a configuration for FSDP 1 as one for FSDP 2.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::cluster::{is_json, save_or_show, value};
use super::command::{COMMAND, parse, refuse};
use super::dump;
use crate::config::flags::Flags;
use crate::config::keys::{Key, Row, Status, ValueType};
use crate::config::{Problems, Words, written};
use crate::console::{Outcome, eprint};

oarlock_config::key_table! {
    /// The flags.
    const KEYS = [
        CONFIG_FILE: Option<String> = Row::flag(ValueType::Path, "config_file", "", Status::Used, "The configuration for FSDP 1"),
        OVERWRITE: bool = Row::flag(ValueType::Bool, "overwrite", "false", Status::Used, "Replace the file that is written to"),
        OUTPUT_FILE: Option<String> = Row::flag(ValueType::Path, "output_file", "", Status::Used, "The file to write; with --overwrite by default the same"),
    ];
}

pub(super) const FLAGS: Flags = Flags {
    command: "accelerate to-fsdp2",
    example: "accelerate to-fsdp2 --config_file fsdp1.yaml --output_file fsdp2.yaml",
    about: "Turns a configuration for FSDP 1 into one for FSDP 2.",
    keys: KEYS,
    ..COMMAND
};

/// How FSDP 2 treats a key of FSDP 1.
enum KeyMapping {
    /// The key has this name; its values may change as well.
    Renamed(&'static str),
    /// FSDP 2 has no such key.
    Removed,
    /// FSDP 2 does not implement it yet.
    NotYetImplemented,
}

const KEY_MAPPING: [(&str, KeyMapping); 6] = [
    ("fsdp_sharding_strategy", KeyMapping::Renamed(RESHARD)),
    (RESHARD, KeyMapping::Renamed(RESHARD)),
    ("fsdp_backward_prefetch", KeyMapping::Removed),
    ("fsdp_sync_module_states", KeyMapping::Removed),
    ("fsdp_use_orig_params", KeyMapping::Removed),
    ("fsdp_forward_prefetch", KeyMapping::NotYetImplemented),
];

const RESHARD: &str = "fsdp_reshard_after_forward";

/// Whether the strategies of FSDP 1 reshard parameters after the forward pass.
const RESHARDS: [(&str, bool); 5] = [
    ("FULL_SHARD", true),
    ("HYBRID_SHARD", true),
    ("SHARD_GRAD_OP", false),
    ("HYBRID_SHARD_ZERO2", false),
    ("NO_SHARD", false),
];

/// Runs the command.
pub fn run(words: &Words) -> Outcome {
    let Some(parsed) = parse(&FLAGS, words, 0)? else { return Ok(()) };
    let path = |key: Key<Option<String>>| parsed.settings.get(key).map(PathBuf::from);
    let Some(from) = path(CONFIG_FILE) else {
        return refuse("missing argument: --config_file", "write `accelerate to-fsdp2 --config_file FILE`");
    };
    let overwrite = parsed.settings.get(OVERWRITE);
    let to = match path(OUTPUT_FILE) {
        Some(to) if overwrite || !to.exists() => to,
        Some(to) => {
            return refuse(
                format!("`{}` is there already", to.display()),
                "add --overwrite, or name another --output_file",
            );
        }
        None if overwrite => from.clone(),
        None => {
            return refuse("nothing says where to write", "name --output_file, or add --overwrite");
        }
    };
    let entries = written::file(&from).map_err(Problems::from)?.entries;
    if entries.is_empty() {
        return refuse(
            format!("`{}` is empty", from.display()),
            "name the file that `accelerate config` wrote",
        );
    }
    let before =
        entries.iter().map(|entry| (entry.key.clone(), value(&entry.value, is_json(&from)))).collect();
    let (after, notes) = converted(before);
    notes.iter().for_each(|note| eprint(&format!("note: {note}\n")));
    save_or_show(&to, &dump::yaml(&after), parsed.dry_run, &format!("wrote {}", to.display()))
}

/// The configuration for FSDP 2, and what is worth a word.
fn converted(mut config: Map<String, Value>) -> (Map<String, Value>, Vec<String>) {
    let mut notes = Vec::new();
    let fsdp = match config.get_mut("fsdp_config") {
        Some(Value::Object(fsdp)) if !fsdp.is_empty() => fsdp,
        _ => return (config, vec!["there is no `fsdp_config`; the file stays as it is".to_owned()]),
    };
    if fsdp.get("fsdp_version").is_some_and(|version| *version == 2) {
        let note = "`fsdp_version` is 2 already; the file stays as it is. Where its other keys are those of FSDP 1, write 1";
        return (config, vec![note.to_owned()]);
    }
    let mut after = Map::new();
    for (key, value) in std::mem::take(fsdp) {
        match KEY_MAPPING.iter().find(|(name, _)| *name == key).map(|(_, mapping)| mapping) {
            None => drop(after.insert(key, value)),
            Some(KeyMapping::Removed) => {
                notes.push(format!("`{key}` means nothing in FSDP 2, and is left out"))
            }
            Some(KeyMapping::NotYetImplemented) => {
                notes.push(format!("`{key}` is not there in FSDP 2 yet, and is left out"))
            }
            Some(KeyMapping::Renamed(name)) => {
                let reshards = RESHARDS.iter().find(|(strategy, _)| value == **strategy);
                after.insert(
                    (*name).to_owned(),
                    reshards.map_or(value, |(_, reshards)| Value::Bool(*reshards)),
                );
            }
        }
    }
    after.insert("fsdp_version".to_owned(), Value::from(2));
    *fsdp = after;
    (config, notes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::front::accelerate::golden;

    #[test]
    fn files_become_those_of_the_original() {
        let folder = tempfile::tempdir().unwrap();
        let cases = golden()["fsdp2"].clone();
        assert!(cases.as_object().unwrap().len() >= 6);
        for (name, case) in cases.as_object().unwrap() {
            let path = folder.path().join("one.yaml");
            fs::write(&path, case["before"].as_str().unwrap()).unwrap();
            let words = ["--config_file", path.to_str().unwrap(), "--overwrite"].map(str::to_owned);
            assert!(run(&Words::new(&words)).is_ok(), "{name}");
            assert_eq!(fs::read_to_string(&path).unwrap(), case["after"], "{name}");
        }
    }

    #[test]
    fn a_file_is_replaced_only_where_that_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::write(file("a"), "fsdp_config: {fsdp_version: 1}\n").unwrap();
        fs::write(file("b"), "kept").unwrap();
        let run = |words: &[&str]| {
            run(&Words::new(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()))
        };
        assert!(run(&["--config_file", &file("a")]).is_err());
        assert!(run(&["--config_file", &file("a"), "--output_file", &file("b")]).is_err());
        assert!(run(&["--config_file", &file("none"), "--overwrite"]).is_err());
        assert_eq!(fs::read_to_string(file("b")).unwrap(), "kept");
        assert!(run(&["--config_file", &file("a"), "--output_file", &file("b"), "--overwrite"]).is_ok());
        assert_eq!(fs::read_to_string(file("b")).unwrap(), "fsdp_config:\n  fsdp_version: 2\n");
    }
}
