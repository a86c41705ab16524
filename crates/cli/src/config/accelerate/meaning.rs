//! What settings of Accelerate say about a training, as entries for keys of ours: the blocks of DeepSpeed and FSDP,
//! whose values keep their places, precision, accumulation and clipping.

use super::super::problem::{Problem, Problems};
use super::super::resolve::{Setting, Settings};
use super::super::source::Place;
use super::super::value::{Field, boolean, float};
use super::super::written::Entry;
use super::super::yaml::{self, Data, Node};
use oarlock::settings::accelerate::{fsdp_block, text};

/// What divides the states of ranks, and where that is said.
#[derive(Clone, Debug)]
pub enum Engine {
    /// Nothing: every rank holds all.
    Plain,
    /// DeepSpeed.
    DeepSpeed(Place),
    /// FSDP.
    Fsdp(Place),
}

/// Settings of ours that settings of DeepSpeed in Accelerate are.
const SAME: [(&str, &str); 2] =
    [("gradient_accumulation_steps", "gradient_accumulation_steps"), ("gradient_clipping", "max_grad_norm")];

/// Settings of DeepSpeed in Accelerate, and where a configuration of DeepSpeed has them.
const IN_BLOCK: [(&str, [&str; 3]); 6] = [
    ("zero_stage", ["zero_optimization", "stage", ""]),
    ("offload_optimizer_device", ["zero_optimization", "offload_optimizer", "device"]),
    ("offload_optimizer_nvme_path", ["zero_optimization", "offload_optimizer", "nvme_path"]),
    ("offload_param_device", ["zero_optimization", "offload_param", "device"]),
    ("offload_param_nvme_path", ["zero_optimization", "offload_param", "nvme_path"]),
    ("zero3_save_16bit_model", ["zero_optimization", "stage3_gather_16bit_weights_on_model_save", ""]),
];

type Pairs = Vec<(Node, Node)>;

/// What is said about blocks, accumulation and clipping; it must agree with what a training says itself.
pub fn entries(settings: &Settings, engine: &Engine, problems: &mut Problems) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (theirs, ours) in SAME {
        if let Some(setting) = settings.said(theirs)
            && let Some(place) = setting.place()
        {
            entries.push(Entry::new(ours, setting.value.to_string(), place));
        }
    }
    match engine {
        Engine::Plain => {}
        Engine::DeepSpeed(place) => entries.extend(deepspeed(settings, place, problems)),
        Engine::Fsdp(place) => entries.push(fsdp_block(settings, place)),
    }
    entries
}

/// The precision that somebody wrote, as entries of ours.
///
/// # Errors
/// If an Oarlock run cannot compute in it.
pub fn precision(settings: &Settings) -> Result<Vec<Entry>, Problem> {
    let Some((setting, place)) = settings.said("mixed_precision").and_then(|s| Some((s, s.place()?))) else {
        return Ok(Vec::new());
    };
    let name = setting.value.to_string();
    if name == "fp8" {
        let problem = Problem::new("an Oarlock run does not compute in fp8").at(place, "");
        return Err(problem.help("write bf16"));
    }
    let on = |key: &str| if name == key { "true" } else { "false" };
    Ok(["bf16", "fp16"].map(|key| Entry::new(key, on(key), place)).into())
}

/// `deepspeed`: the file, the file with what is said beside it, or a block.
fn deepspeed(settings: &Settings, chosen: &Place, problems: &mut Problems) -> Option<Entry> {
    let file = settings.said("deepspeed_config_file").and_then(|setting| Some((setting, setting.place()?)));
    let Some((setting, place)) = file else {
        let mut pairs = Vec::new();
        for (setting, place, path) in said(settings) {
            put(&mut pairs, &path, Node::scalar(text(setting), place.clone()));
        }
        if at(&pairs, &["zero_optimization", "stage"]).is_none() {
            // The default of Accelerate.
            put(&mut pairs, &["zero_optimization", "stage"], Node::scalar("2", chosen.clone()));
        }
        return Some(entry("deepspeed", pairs, chosen));
    };
    let path = setting.value.to_string();
    let mut pairs: Pairs = match yaml::file(&path, "the DeepSpeed configuration") {
        Ok(fields) => fields
            .into_iter()
            .map(|Field { name, place, value }| (Node::scalar(name, place), value))
            .collect(),
        // It is told where the training reads it, with the place that names it.
        Err(_) => Vec::new(),
    };
    let mut filled = false;
    for (setting, place, path) in said(settings) {
        let value = text(setting);
        match at(&pairs, &path) {
            Some((theirs, _)) if same(&theirs, &value) => {}
            Some((theirs, there)) if theirs != "auto" => {
                problems.push(conflict(setting, place, &path, &theirs, &there))
            }
            None if matches!(value.to_ascii_lowercase().as_str(), "none" | "false") => {}
            _ => {
                put(&mut pairs, &path, Node::scalar(value, place.clone()));
                filled = true;
            }
        }
    }
    Some(if filled { entry("deepspeed", pairs, place) } else { Entry::new("deepspeed", path, place) })
}

/// Settings that belong into a block of DeepSpeed, with their places there.
fn said(settings: &Settings) -> impl Iterator<Item = (&Setting, &Place, Vec<&'static str>)> {
    let nvme = move |name: &str| {
        let device = name.strip_suffix("_nvme_path").map(|what| settings.text(&format!("{what}_device")));
        device.is_none_or(|device| device.as_deref() == Some("nvme"))
    };
    IN_BLOCK.iter().filter(move |(name, _)| nvme(name)).filter_map(|(name, path)| {
        let setting = settings.said(name)?;
        Some((setting, setting.place()?, path.iter().copied().filter(|part| !part.is_empty()).collect()))
    })
}

fn entry(key: &str, pairs: Pairs, place: &Place) -> Entry {
    let value = Node { data: Data::Map(pairs), place: place.clone() };
    Entry { key: key.to_owned(), inner: None, place: place.clone(), value }
}

/// Puts a value at a path, over what may be there.
fn put(pairs: &mut Pairs, path: &[&str], value: Node) {
    let Some((name, rest)) = path.split_first() else { return };
    let known = pairs.iter().position(|(key, _)| is(key, name));
    let i = known.unwrap_or_else(|| {
        let block = Node { data: Data::Map(Vec::new()), place: value.place.clone() };
        pairs.push((Node::scalar(*name, value.place.clone()), block));
        pairs.len() - 1
    });
    let slot = &mut pairs[i].1;
    if rest.is_empty() {
        *slot = value;
        return;
    }
    if let Some(stage) = whole_stage(slot) {
        // `"zero_optimization": true` becomes a block, so that something fits beside the stage.
        let stage = Node::scalar(stage, slot.place.clone());
        slot.data = Data::Map(vec![(Node::scalar("stage", slot.place.clone()), stage)]);
    }
    match &mut slot.data {
        Data::Map(inner) => put(inner, rest, value),
        other => {
            let mut inner = Vec::new();
            put(&mut inner, rest, value);
            *other = Data::Map(inner);
        }
    }
}

/// What stands at a path.
fn at(pairs: &Pairs, path: &[&str]) -> Option<(String, Place)> {
    let (name, rest) = path.split_first()?;
    let (_, value) = pairs.iter().find(|(key, _)| is(key, name))?;
    match &value.data {
        Data::Map(inner) if !rest.is_empty() => at(inner, rest),
        Data::Scalar { text, .. } if rest.is_empty() && !value.is_null() => {
            Some((text.clone(), value.place.clone()))
        }
        _ if rest == ["stage"] => Some((whole_stage(value)?.to_owned(), value.place.clone())),
        _ => None,
    }
}

/// The stage of the older form of `zero_optimization`.
fn whole_stage(value: &Node) -> Option<&'static str> {
    match &value.data {
        Data::Scalar { text, .. } => Some(if boolean(text)? { "1" } else { "0" }),
        _ => None,
    }
}

fn is(key: &Node, name: &str) -> bool {
    matches!(&key.data, Data::Scalar { text, .. } if text == name)
}

/// Whether two words mean the same: as numbers, as truths, or letter by letter.
fn same(a: &str, b: &str) -> bool {
    match ((float(a), float(b)), (boolean(a), boolean(b))) {
        ((Some(a), Some(b)), _) => a == b,
        (_, (Some(a), Some(b))) => a == b,
        _ => a.eq_ignore_ascii_case(b),
    }
}

fn conflict(setting: &Setting, place: &Place, path: &[&str], theirs: &str, there: &Place) -> Problem {
    let (name, ours) = (setting.key.name, text(setting));
    let key = path.join(".");
    Problem::new(format!("`{name}` is {ours}, but `{key}` is {theirs}"))
        .at(place, format!("{ours} here"))
        .at(there, format!("{theirs} here"))
        .help("remove one of them, or write the same value in both; \"auto\" in the DeepSpeed file takes the other")
}
