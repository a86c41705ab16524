//! What settings of Accelerate say about a training run, as entries for keys of ours: the blocks of DeepSpeed and FSDP,
//! whose values keep their locations, precision, accumulation and clipping.

use oarlock_config::config::table as training;
use oarlock_config::dialect::accelerate::{fsdp_block, text};
use oarlock_config::dialect::deepspeed_keys;
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::location::Location;
use oarlock_config::settings::node::{Entry, Node, find, find_mut, put};
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::resolve::{AUTO, Setting, Settings};
use oarlock_config::settings::value::{boolean, float};

use super::keys;

use super::super::yaml;

/// What shards the states over the ranks, and where that is said.
#[derive(Clone, Debug)]
pub enum Engine {
    /// Nothing: every rank holds all.
    Plain,
    /// DeepSpeed.
    DeepSpeed(Location),
    /// FSDP.
    Fsdp(Location),
}

/// Settings of ours that settings of DeepSpeed in Accelerate are.
const SAME: [(&Row, &Row); 2] = [
    (keys::GRADIENT_ACCUMULATION_STEPS.row, training::GRADIENT_ACCUMULATION_STEPS.row),
    (keys::GRADIENT_CLIPPING.row, training::MAX_GRAD_NORM.row),
];

/// Settings of DeepSpeed in Accelerate, and where a configuration of DeepSpeed has them.
const IN_BLOCK: [(&Row, &str); 6] = [
    (keys::ZERO_STAGE.row, STAGE),
    (keys::OFFLOAD_OPTIMIZER_DEVICE.row, deepspeed_keys::ZERO_OPTIMIZATION_OFFLOAD_OPTIMIZER_DEVICE.name()),
    (
        keys::OFFLOAD_OPTIMIZER_NVME_PATH.row,
        deepspeed_keys::ZERO_OPTIMIZATION_OFFLOAD_OPTIMIZER_NVME_PATH.name(),
    ),
    (keys::OFFLOAD_PARAM_DEVICE.row, deepspeed_keys::ZERO_OPTIMIZATION_OFFLOAD_PARAM_DEVICE.name()),
    (keys::OFFLOAD_PARAM_NVME_PATH.row, deepspeed_keys::ZERO_OPTIMIZATION_OFFLOAD_PARAM_NVME_PATH.name()),
    (
        keys::ZERO3_SAVE_16BIT_MODEL.row,
        deepspeed_keys::ZERO_OPTIMIZATION_STAGE3_GATHER_16BIT_WEIGHTS_ON_MODEL_SAVE.name(),
    ),
];

const STAGE: &str = deepspeed_keys::ZERO_OPTIMIZATION_STAGE.name();

/// What is said about blocks, accumulation and clipping; it must agree with what a training run says itself.
pub fn entries(settings: &Settings, engine: &Engine, problems: &mut Problems) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (theirs, ours) in SAME {
        if let Some((setting, location)) = settings.said_at(theirs) {
            entries.push(Entry::new(ours.name, setting.value.to_string(), location));
        }
    }
    match engine {
        Engine::Plain => {}
        Engine::DeepSpeed(location) => entries.push(deepspeed(settings, location, problems)),
        Engine::Fsdp(location) => entries.push(fsdp_block(settings, location)),
    }
    entries
}

/// The precision that somebody wrote, as entries of ours.
///
/// # Errors
/// If an Oarlock run cannot compute in it.
pub fn precision(settings: &Settings) -> Result<Vec<Entry>, Problem> {
    let Some((setting, location)) = settings.said_at(keys::MIXED_PRECISION) else { return Ok(Vec::new()) };
    let name = setting.value.to_string();
    if name == "fp8" {
        let problem = Problem::new("an Oarlock run does not compute in fp8").at(location, "");
        return Err(problem.help("write bf16"));
    }
    let on = |key: &str| if name == key { "true" } else { "false" };
    Ok(["bf16", "fp16"].map(|key| Entry::new(key, on(key), location)).into())
}

/// `deepspeed`: the file, the file with what is said beside it, or a block.
fn deepspeed(settings: &Settings, chosen: &Location, problems: &mut Problems) -> Entry {
    let Some((setting, location)) = settings.said_at(keys::DEEPSPEED_CONFIG_FILE) else {
        let mut block = Vec::new();
        for (setting, location, path) in said(settings) {
            put(&mut block, path, Node::scalar(text(setting), location.clone()));
        }
        if find(&block, STAGE).is_none() {
            // The default of Accelerate.
            put(&mut block, STAGE, Node::scalar("2", chosen.clone()));
        }
        return Entry::of("deepspeed", Node::map(block, chosen));
    };
    let path = setting.value.to_string();
    // A file that cannot be read is reported where the run reads it, with the location that names it.
    let mut block = yaml::file(&path, "the DeepSpeed configuration").unwrap_or_default();
    if let Some(zero) = find_mut(&mut block, "zero_optimization")
        && let Some(on) = zero.word().and_then(boolean)
    {
        // `"zero_optimization": true` becomes a block, so that something fits beside the stage.
        *zero =
            Node::map(vec![Entry::new("stage", if on { "1" } else { "0" }, &zero.location)], &zero.location);
    }
    let mut filled = false;
    for (setting, location, path) in said(settings) {
        let value = text(setting);
        match find(&block, path).filter(|node| !node.is_null()).and_then(|node| Some((node.word()?, node))) {
            Some((theirs, _)) if same(theirs, &value) => {}
            Some((theirs, there)) if theirs != AUTO => {
                problems.push(conflict(setting, location, path, theirs, &there.location))
            }
            None if matches!(value.to_ascii_lowercase().as_str(), "none" | "false") => {}
            _ => {
                put(&mut block, path, Node::scalar(value, location.clone()));
                filled = true;
            }
        }
    }
    if filled {
        Entry::of("deepspeed", Node::map(block, location))
    } else {
        Entry::new("deepspeed", path, location)
    }
}

/// Settings that belong in a block of DeepSpeed, with their paths there.
fn said(settings: &Settings) -> impl Iterator<Item = (&Setting, &Location, &'static str)> {
    let paths = [
        (keys::OFFLOAD_OPTIMIZER_NVME_PATH, keys::OFFLOAD_OPTIMIZER_DEVICE),
        (keys::OFFLOAD_PARAM_NVME_PATH, keys::OFFLOAD_PARAM_DEVICE),
    ];
    let nvme = move |key: &Row| {
        let device = paths.iter().find(|(path, _)| path.name() == key.name);
        device.is_none_or(|(_, device)| settings.get(*device) == Some("nvme"))
    };
    IN_BLOCK.into_iter().filter(move |(key, _)| nvme(key)).filter_map(|(key, path)| {
        let (setting, location) = settings.said_at(key)?;
        Some((setting, location, path))
    })
}

/// Whether two words mean the same: as numbers, as truths, or letter by letter.
fn same(a: &str, b: &str) -> bool {
    match ((float(a), float(b)), (boolean(a), boolean(b))) {
        ((Some(a), Some(b)), _) => a == b,
        (_, (Some(a), Some(b))) => a == b,
        _ => a.eq_ignore_ascii_case(b),
    }
}

fn conflict(setting: &Setting, location: &Location, path: &str, theirs: &str, there: &Location) -> Problem {
    let (name, ours) = (setting.key.name, text(setting));
    Problem::new(format!("`{name}` is {ours}, but `{path}` is {theirs}"))
        .at(location, format!("{ours} here"))
        .at(there, format!("{theirs} here"))
        .help("remove one of them, or write the same value in both; \"auto\" in the DeepSpeed file takes the other")
}
