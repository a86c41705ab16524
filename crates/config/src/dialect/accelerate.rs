//! FSDP in the words of Accelerate: the flags of its launcher, the variables by which it hands them on to the processes
//! that it starts, and what they say is sharded.

use super::block::{Ranks, join, settle};
use super::read::{self, shard};
use crate::config::table::TRAINING;
use crate::config::{Elems, ShardingConfig};
use crate::settings::json;
use crate::settings::keys::Status::Used;
use crate::settings::keys::ValueType::{Choice, Int, List, Text};
use crate::settings::keys::{Key, Row};
use crate::settings::location::{Location, ValueSource};
use crate::settings::node::{Entry, Node};
use crate::settings::problem::Problems;
use crate::settings::resolve::{Setting, Settings};
use crate::settings::value::{self, Value, boolean};

/// The variable that asks for FSDP.
pub const USE_FSDP: &str = "ACCELERATE_USE_FSDP";

crate::settings::keys::key_table! {
    /// The flags of the launcher.
    pub const FSDP_FLAGS = [
        FSDP_VERSION: String = Row::flag(Choice(&["1", "2"]), "fsdp_version", "1", Used, "Version of FSDP: 1 reads fsdp_sharding_strategy, 2 fsdp_reshard_after_forward"),
        FSDP_OFFLOAD_PARAMS: String = Row::flag(Text, "fsdp_offload_params", "false", Used, "States and parameters in main memory"),
        FSDP_MIN_NUM_PARAMS: usize = Row::flag(Int(0), "fsdp_min_num_params", "100000000", Used, "Least size of a unit of SIZE_BASED_WRAP"),
        FSDP_SHARDING_STRATEGY: String = Row::flag(Text, "fsdp_sharding_strategy", "FULL_SHARD", Used, "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2"),
        FSDP_RESHARD_AFTER_FORWARD: String = Row::flag(Text, "fsdp_reshard_after_forward", "true", Used, "true: FULL_SHARD; false: SHARD_GRAD_OP"),
        FSDP_AUTO_WRAP_POLICY: Option<String> = Row::flag(Text, "fsdp_auto_wrap_policy", "", Used, "What becomes a unit"),
        FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP: Vec<String> = Row::flag(List, "fsdp_transformer_layer_cls_to_wrap", "", Used, "Classes of modules that become units"),
        FSDP_BACKWARD_PREFETCH: Option<String> = Row::flag(Text, "fsdp_backward_prefetch", "", Used, "BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH"),
        FSDP_STATE_DICT_TYPE: Option<String> = Row::flag(Text, "fsdp_state_dict_type", "", Used, "FULL_STATE_DICT, LOCAL_STATE_DICT or SHARDED_STATE_DICT"),
        FSDP_FORWARD_PREFETCH: String = Row::flag(Text, "fsdp_forward_prefetch", "false", Used, "Gather ahead in the forward pass, too"),
        FSDP_USE_ORIG_PARAMS: String = Row::flag(Text, "fsdp_use_orig_params", "true", Used, "Keep the model's parameters"),
        FSDP_CPU_RAM_EFFICIENT_LOADING: String = Row::flag(Text, "fsdp_cpu_ram_efficient_loading", "true", Used, "Only rank 0 reads the weights"),
        FSDP_SYNC_MODULE_STATES: String = Row::flag(Text, "fsdp_sync_module_states", "true", Used, "Send the weights of rank 0"),
        FSDP_ACTIVATION_CHECKPOINTING: String = Row::flag(Text, "fsdp_activation_checkpointing", "false", Used, "Recompute every unit"),
        FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD: String = Row::flag(Text, "fsdp_activation_checkpointing_offload", "false", Used, "Keep inputs of recomputed units in main memory"),
    ];
}

/// A setting that a process finds in its environment.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// The flag.
    pub flag: &'static Row,
    /// The variable.
    pub name: &'static str,
    /// Written in small letters.
    pub lower: bool,
}

/// A variable that is written as it is.
pub const fn variable<T>(flag: Key<T>, name: &'static str) -> Variable {
    Variable { flag: flag.row, name, lower: false }
}

/// A variable that is written in small letters.
pub const fn lower<T>(flag: Key<T>, name: &'static str) -> Variable {
    Variable { flag: flag.row, name, lower: true }
}

/// What a process of FSDP finds, beside ACCELERATE_USE_FSDP.
pub const OF_FSDP: &[Variable] = &[
    variable(FSDP_VERSION, "FSDP_VERSION"),
    variable(FSDP_SHARDING_STRATEGY, "FSDP_SHARDING_STRATEGY"),
    lower(FSDP_RESHARD_AFTER_FORWARD, "FSDP_RESHARD_AFTER_FORWARD"),
    lower(FSDP_OFFLOAD_PARAMS, "FSDP_OFFLOAD_PARAMS"),
    variable(FSDP_MIN_NUM_PARAMS, "FSDP_MIN_NUM_PARAMS"),
    variable(FSDP_AUTO_WRAP_POLICY, "FSDP_AUTO_WRAP_POLICY"),
    variable(FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP, "FSDP_TRANSFORMER_CLS_TO_WRAP"),
    variable(FSDP_BACKWARD_PREFETCH, "FSDP_BACKWARD_PREFETCH"),
    variable(FSDP_STATE_DICT_TYPE, "FSDP_STATE_DICT_TYPE"),
    lower(FSDP_FORWARD_PREFETCH, "FSDP_FORWARD_PREFETCH"),
    lower(FSDP_USE_ORIG_PARAMS, "FSDP_USE_ORIG_PARAMS"),
    lower(FSDP_CPU_RAM_EFFICIENT_LOADING, "FSDP_CPU_RAM_EFFICIENT_LOADING"),
    lower(FSDP_SYNC_MODULE_STATES, "FSDP_SYNC_MODULE_STATES"),
    lower(FSDP_ACTIVATION_CHECKPOINTING, "FSDP_ACTIVATION_CHECKPOINTING"),
    lower(FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD, "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"),
];

/// What looks up a variable.
pub type Lookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// What FSDP's variables of Accelerate's launcher say is sharded among so many ranks; `None` where it does not ask for
/// FSDP.
///
/// # Errors
/// Everything that is wrong in them, or not there.
pub fn fsdp(read: &Lookup<'_>, ranks: usize) -> Result<Option<ShardingConfig<Elems>>, Problems> {
    let Some(chosen) = asks(USE_FSDP, read) else { return Ok(None) };
    let mut problems = Problems::default();
    let mut flags = Settings::of(FSDP_FLAGS);
    take(OF_FSDP.iter(), read, &mut flags, &mut problems);
    let mut settings = Settings::of(TRAINING);
    join(vec![fsdp_block(&flags, &chosen.location)], &mut settings, &mut problems);
    let mut dialects = read::read(&mut settings, &json::file, &mut problems);
    problems.append(dialects.missing());
    // An engine on the CPU has in main memory what is offloaded there, and the notes go to nobody.
    let sharding = shard(&mut dialects, Ranks::new(ranks, true), &mut problems);
    problems.into_result(|| Some(sharding.config))
}

/// Takes what variables say about flags.
pub fn take<'v>(
    variables: impl Iterator<Item = &'v Variable>,
    read: &Lookup<'_>,
    flags: &mut Settings,
    problems: &mut Problems,
) {
    for variable in variables {
        if let (Some(entry), Some(setting)) =
            (said_in(variable.name, read), flags.find_mut(variable.flag.name))
            && let Err(problem) = settle(setting, &entry)
        {
            problems.push(problem);
        }
    }
}

/// `fsdp_config`: everything that the flags say, and a strategy.
pub fn fsdp_block(settings: &Settings, chosen: &Location) -> Entry {
    const NAMED: [&Row; 2] = [FSDP_SHARDING_STRATEGY.row, FSDP_RESHARD_AFTER_FORWARD.row];
    let version = settings.said(FSDP_VERSION).map(|setting| setting.value.to_string());
    // Each version reads one of two keys, and Accelerate always hands on both.
    let idle = match version.as_deref() {
        Some("1") => NAMED[1].name,
        Some("2") if NAMED.iter().all(|key| settings.said(*key).is_some()) => NAMED[0].name,
        _ => "",
    };
    let mut entries = Vec::new();
    for flag in OF_FSDP.iter().map(|variable| variable.flag).filter(|flag| flag.name != idle) {
        if let Some((setting, location)) = settings.said_at(flag) {
            entries.push(Entry::new(flag.name, text(setting), location));
        }
    }
    if !entries.iter().any(|entry| NAMED.iter().any(|key| key.name == entry.key)) {
        entries.push(Entry::new(NAMED[0].name, "FULL_SHARD", chosen));
    }
    Entry::of("fsdp_config", Node::map(entries, chosen))
}

/// A value in the form of a file: truth in small letters.
pub fn text(setting: &Setting) -> String {
    let text = exported(setting).unwrap_or_default();
    match (&setting.value, boolean(&text)) {
        _ if setting.key.name.ends_with("_device") => text.to_ascii_lowercase(),
        (Value::Text(_), Some(flag)) if text.parse::<i64>().is_err() => flag.to_string(),
        _ => text,
    }
}

/// A setting as Accelerate writes it into the environment: what was written, else the default; `None` for nothing.
pub fn exported(setting: &Setting) -> Option<String> {
    let value = match &setting.value {
        // `key: null` leaves the default of the flag.
        Value::Null => &value::default(setting.key),
        value => value,
    };
    match value {
        Value::Null => None,
        Value::Bool(flag) => Some(if *flag { "True" } else { "False" }.to_owned()),
        // What stands in a file as a whole number stays one.
        Value::Float(number) => {
            let in_file =
                setting.location().filter(|location| location.source.read_from == ValueSource::File);
            let whole = in_file.map(Location::text).filter(|text| text.parse::<i64>().is_ok());
            Some(whole.map_or_else(|| format!("{number:?}"), str::to_owned))
        }
        Value::List(names) => Some(names.join(",")),
        value => Some(value.to_string()),
    }
}

/// What a switch says, if it is on.
pub fn asks(name: &str, read: &Lookup<'_>) -> Option<Entry> {
    said_in(name, read).filter(|entry| entry.value.word().and_then(boolean) == Some(true))
}

/// What a variable says, if it says anything.
pub fn said_in(name: &str, read: &Lookup<'_>) -> Option<Entry> {
    let text = read(name).filter(|value| !value.trim().is_empty())?;
    let value = said_by(name, text.trim());
    let location = Location { bytes: 0..name.len(), source: value.location.source.clone() };
    Some(Entry { key: name.to_owned(), location, value })
}

/// A value that the environment says, by a variable or in another way that has a name.
pub fn said_by(name: &str, value: &str) -> Node {
    Node::scalar(value, Location::of_variable(name, value))
}
