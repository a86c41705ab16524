//! What `fsdp` and `fsdp_config` mean: sharding strategies as placements.

use oarlock_tensor::DType;

use super::block::{self, Dialect, Ranks, ReadFile, divides};
use super::fsdp_keys;
use crate::config::table as keys;
use crate::config::{Elems, Lifetime, Offload, Placements, ShardingConfig, StateDict, Wrap};
use crate::nearest::nearest_of;
use crate::settings::keys::{Key, Row};
use crate::settings::node::Entry;
use crate::settings::problem::{Problem, Problems};
use crate::settings::resolve::{Setting, Settings};
use crate::settings::value::{Value, boolean};

/// The strategies in the order of their numbers, from 1.
const STRATEGIES: [&str; 5] =
    ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"];

/// What makes units.
const POLICIES: [&str; 3] = ["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"];

/// The names under which classes of units are written.
const CLASSES: [Key<Vec<String>>; 2] =
    [fsdp_keys::TRANSFORMER_LAYER_CLS_TO_WRAP, fsdp_keys::TRANSFORMER_CLS_NAMES_TO_WRAP];

/// The key with these classes outside of the block, as older configurations have it.
pub const OUTER_CLASSES: Key<Vec<String>> = keys::FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP;

/// The block that `fsdp`, `fsdp_config` and the classes of units beside them say together.
pub fn read(settings: &Settings, file: &ReadFile<'_>, problems: &mut Problems) -> Option<Dialect> {
    let (options, config) = (settings.setting(keys::FSDP), settings.setting(keys::FSDP_CONFIG));
    let words: Vec<&str> = settings.get(keys::FSDP).iter().flat_map(|name| name.split_whitespace()).collect();
    let off = matches!(words.as_slice(), [word] if boolean(word) == Some(false));
    if off || (words.is_empty() && !config.is_written()) {
        return None;
    }
    let mut entries = block::entries(config, "the FSDP configuration", file, problems).unwrap_or_default();
    if let Some(location) = options.location() {
        for word in words {
            if let Some((key, value)) = option(word) {
                let same = |entry: &Entry| normal(&entry.key) == key && entry.value.to_yaml() == value;
                if !key.is_empty() && !entries.iter().any(same) {
                    entries.push(Entry::new(key, value, location));
                }
            } else {
                let names = [
                    "full_shard",
                    "shard_grad_op",
                    "no_shard",
                    "hybrid_shard",
                    "hybrid_shard_zero2",
                    "offload",
                    "auto_wrap",
                ];
                let problem = Problem::new(format!("no FSDP option `{word}`")).at(location, "");
                problems.push(problem.did_you_mean(word, names, format!("there are {}", names.join(", "))));
            }
        }
    }
    if let Some((classes, location)) = settings.said_at(OUTER_CLASSES) {
        let value = classes.value.to_string();
        let is_said = |entry: &Entry| CLASSES.iter().any(|key| key.name() == normal(&entry.key));
        match entries.iter().find(|entry| is_said(entry)).map(|entry| entry.value.to_yaml()) {
            Some(said) if said.trim_matches(['[', ']']) != value.trim_matches(['[', ']']) => {
                let message = format!("`{OUTER_CLASSES}` is {value}, but fsdp_config says {said}");
                settings.report(
                    problems,
                    message,
                    &[OUTER_CLASSES.row, keys::FSDP_CONFIG.row],
                    "keep one of them",
                );
            }
            Some(_) => {}
            None => entries.push(Entry::new(CLASSES[0].name(), value, location)),
        }
    }
    Some(Dialect::new("FSDP", fsdp_keys::KEYS, &entries, &normal, problems))
}

/// The key and value that an option of `fsdp` stands for; an empty key for one that says nothing more.
fn option(word: &str) -> Option<(&'static str, &'static str)> {
    let upper = word.to_ascii_uppercase();
    if let Some(strategy) = STRATEGIES.into_iter().find(|name| *name == upper) {
        return Some(("sharding_strategy", strategy));
    }
    match word.to_ascii_lowercase().as_str() {
        "offload" => Some(("offload_params", "true")),
        "auto_wrap" => Some(("", "")),
        word if boolean(word) == Some(true) => Some(("", "")),
        _ => None,
    }
}

fn normal(name: &str) -> String {
    name.strip_prefix("fsdp_").unwrap_or(name).to_owned()
}

/// Placements, sizes and offloading, and the form of checkpoints.
pub fn shard(
    block: &Dialect,
    ranks: Ranks,
    notes: &mut Vec<String>,
    problems: &mut Problems,
) -> (ShardingConfig<Elems>, StateDict) {
    let (strategy, secondary) = strategy(block, problems);
    let placements = if strategy == "NO_SHARD" { Placements::WHOLE } else { Placements::PARAMETERS };
    if let Some(size) = secondary {
        divides(block, fsdp_keys::RESHARD_AFTER_FORWARD.row, size, ranks.n, problems);
    }
    let offloaded =
        block.settings.get(fsdp_keys::OFFLOAD_PARAMS) || block.settings.get(fsdp_keys::CPU_OFFLOAD);
    if offloaded && !ranks.on_gpus {
        notes.push(
            "FSDP offloads to cpu: ranks are CPU processes, which have it in main memory anyway".to_owned(),
        );
    }
    let prefetch = choice(
        block,
        fsdp_keys::BACKWARD_PREFETCH.row,
        &["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"],
        problems,
    );
    let state_dict = choice(
        block,
        fsdp_keys::STATE_DICT_TYPE.row,
        &["FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"],
        problems,
    );
    let reduce = choice(
        block,
        fsdp_keys::MIXED_PRECISION_POLICY_REDUCE_DTYPE.row,
        &["FLOAT32", "BFLOAT16", "FLOAT16", "FP32", "BF16", "FP16"],
        problems,
    );
    let config = ShardingConfig {
        wrap: wrap(block, notes, problems),
        placements,
        lifetime: match strategy {
            "SHARD_GRAD_OP" | "HYBRID_SHARD_ZERO2" => Lifetime::ForwardToBackward,
            _ => Lifetime::OneUse,
        },
        by_machine: strategy.starts_with("HYBRID"),
        secondary,
        prefetch_elems: match prefetch {
            Some("NO_PREFETCH") => Elems::Count(0),
            _ => ShardingConfig::<Elems>::default().prefetch_elems,
        },
        // FSDP keeps no parameter whole.
        persistence_elems: Elems::Count(0),
        reduce_dtype: match reduce {
            Some("FLOAT16" | "FP16") => Some(DType::F16),
            Some("BFLOAT16" | "BF16") => Some(DType::BF16),
            Some(_) => Some(DType::F32),
            None => None,
        },
        offload_optimizer: (offloaded && ranks.on_gpus).then_some(Offload::TO_MEMORY),
        offload_params: (offloaded && ranks.on_gpus).then_some(Offload::TO_MEMORY),
        ..ShardingConfig::default()
    };
    let state_dict = match state_dict {
        Some("FULL_STATE_DICT") => StateDict::Full,
        Some("LOCAL_STATE_DICT") => StateDict::Local,
        _ => StateDict::Sharded,
    };
    (config, state_dict)
}

/// What becomes a unit. Class names alone ask for the policy that reads them.
fn wrap(block: &Dialect, notes: &mut Vec<String>, problems: &mut Problems) -> Wrap {
    let policy = choice(block, fsdp_keys::AUTO_WRAP_POLICY.row, &POLICIES, problems);
    let classes = CLASSES.into_iter().find_map(|key| match &block.settings.said(key)?.value {
        Value::List(classes) if !classes.is_empty() => Some((key.name(), classes.clone())),
        _ => None,
    });
    match (policy, classes) {
        (None | Some("TRANSFORMER_BASED_WRAP"), Some((_, classes))) => Wrap::Transformer(classes),
        (Some(other @ ("SIZE_BASED_WRAP" | "NO_WRAP")), classes) => {
            if let Some((name, _)) = classes {
                notes.push(format!("FSDP: `{name}` counts with TRANSFORMER_BASED_WRAP, not with {other}"));
            }
            match block.settings.get(fsdp_keys::MIN_NUM_PARAMS) {
                least if other == "SIZE_BASED_WRAP" && least > 0 => Wrap::Size(least),
                _ => Wrap::None,
            }
        }
        _ => Wrap::Declared,
    }
}

/// The strategy, and the ranks of a second sharded copy.
fn strategy(block: &Dialect, problems: &mut Problems) -> (&'static str, Option<usize>) {
    let named = block.settings.said(fsdp_keys::SHARDING_STRATEGY).and_then(|setting| {
        let found = by_name(&setting.value.to_string());
        if found.is_none() {
            problems.push(no_such(block, setting, &STRATEGIES));
        }
        found
    });
    let mut secondary = None;
    let resharded = block.settings.said(fsdp_keys::RESHARD_AFTER_FORWARD).and_then(|setting| {
        let text = setting.value.to_string();
        match (boolean(&text), text.parse::<usize>()) {
            // 1 is a number of ranks here, and one rank shards nothing.
            (_, Ok(0 | 1)) => Some("SHARD_GRAD_OP"),
            (_, Ok(ranks)) => {
                secondary = Some(ranks);
                Some("FULL_SHARD")
            }
            (Some(true), _) => Some("FULL_SHARD"),
            (Some(false), _) => Some("SHARD_GRAD_OP"),
            _ => {
                let found = by_name(&text);
                if found.is_none() {
                    problems.push(no_such(block, setting, &["true", "false", "FULL_SHARD", "SHARD_GRAD_OP"]));
                }
                found
            }
        }
    });
    match (named, resharded) {
        // The strategy says the groups, the other key how long a copy lives.
        (Some("HYBRID_SHARD"), Some("SHARD_GRAD_OP")) => ("HYBRID_SHARD_ZERO2", None),
        (Some("HYBRID_SHARD"), Some("FULL_SHARD")) => ("HYBRID_SHARD", secondary),
        (Some(first), Some(second)) if first != second => {
            let message =
                format!("`sharding_strategy` is {first}, but `reshard_after_forward` means {second}");
            let names = [fsdp_keys::SHARDING_STRATEGY.row, fsdp_keys::RESHARD_AFTER_FORWARD.row];
            block.settings.report(problems, message, &names, "keep one of them");
            (first, secondary)
        }
        (Some(strategy), _) | (None, Some(strategy)) => (strategy, secondary),
        (None, None) => (STRATEGIES[0], None),
    }
}

/// A strategy by its name or number.
fn by_name(text: &str) -> Option<&'static str> {
    let upper = text.to_ascii_uppercase();
    let number = text.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    STRATEGIES
        .into_iter()
        .enumerate()
        .find(|(i, name)| *name == upper || Some(*i) == number)
        .map(|(_, name)| name)
}

/// One of some names, in letters of either case.
fn choice(
    block: &Dialect,
    key: &'static Row,
    names: &'static [&'static str],
    problems: &mut Problems,
) -> Option<&'static str> {
    let setting = block.settings.said(key)?;
    let upper = setting.value.to_string().to_ascii_uppercase();
    let found = names.iter().copied().find(|name| *name == upper);
    if found.is_none() {
        problems.push(no_such(block, setting, names));
    }
    found
}

fn no_such(block: &Dialect, setting: &Setting, names: &[&str]) -> Problem {
    let name = setting.key.name;
    let text = setting.value.to_string();
    let message = format!("`{name}` takes one of {}, not `{text}`", names.join(", "));
    let problem = block.settings.problem(message, &[setting.key]);
    match nearest_of(&text, names.iter().copied()) {
        Some(near) => problem.help(format!("did you mean `{near}`?")),
        None => problem,
    }
}
