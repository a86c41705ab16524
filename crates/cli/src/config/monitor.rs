//! What a run reports beside its own logs: the trackers of `report_to`, and DeepSpeed's monitors, profiler and lines.

use super::table as keys;
use std::path::{Path, PathBuf};

use oarlock::config::{CommsArgs, EngineReports, FlopsArgs, MonitorArgs, Tracker};
use oarlock_comm::{Operation, Recorded};
use oarlock_config::dialect::accelerate::said_in;
use oarlock_config::dialect::{Dialect, Dialects, deepspeed_keys};
use oarlock_config::settings::keys::Key;
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::resolve::Settings;

use super::written::{Authority, Entry, Layer};

/// The trackers of `report_to`.
const TRACKERS: [&str; 5] = ["tensorboard", "wandb", "swanlab", "csv", "jsonl"];
/// Those of transformers that are not there.
const OTHERS: [&str; 11] = [
    "aim",
    "azure_ml",
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "flyte",
    "mlflow",
    "neptune",
    "trackio",
];

/// What may stand in `report_to`.
pub(super) fn report_to() -> impl Iterator<Item = &'static str> {
    TRACKERS.into_iter().chain(["none", "all"])
}

/// Collectives by DeepSpeed's names for them.
const COLLECTIVES: [(&str, Operation); 15] = [
    ("all_reduce", Operation::AllReduce),
    ("all_reduce_coalesced", Operation::AllReduce),
    ("reduce_scatter", Operation::ReduceScatter),
    ("reduce_scatter_tensor", Operation::ReduceScatter),
    ("reduce_scatter_fn", Operation::ReduceScatter),
    ("all_gather", Operation::AllGather),
    ("all_gather_into_tensor", Operation::AllGather),
    ("allgather_fn", Operation::AllGather),
    ("broadcast", Operation::Broadcast),
    ("all_to_all", Operation::AllToAll),
    ("all_to_all_single", Operation::AllToAll),
    ("send", Operation::SendReceive),
    ("recv", Operation::SendReceive),
    ("barrier", Operation::Barrier),
    ("all_gather_object", Operation::AllGatherBytes),
];

/// Variables that the trackers of transformers and SwanLab read, with the keys that they stand for; what is written replaces them.
const VARIABLES: [(&str, &str); 3] = [
    ("WANDB_PROJECT", "wandb_project"),
    ("TENSORBOARD_LOGGING_DIR", "logging_dir"),
    ("SWANLAB_LOGDIR", "swanlab_logdir"),
];

/// The settings that the environment makes; `read` looks up a variable.
pub(super) fn environment(read: &dyn Fn(&str) -> Option<String>) -> Layer {
    let entry =
        |(name, key): (&str, &str)| said_in(name, read).map(|entry| Entry { key: key.to_owned(), ..entry });
    Layer { authority: Authority::Replaces, entries: VARIABLES.into_iter().filter_map(entry).collect() }
}

/// What the settings and DeepSpeed's block ask for.
pub(super) fn monitors(settings: &Settings, dialects: &Dialects, problems: &mut Problems) -> MonitorArgs {
    MonitorArgs {
        trackers: trackers(settings, problems),
        engine: dialects.deepspeed.as_ref().map(|block| engine(block, problems)).unwrap_or_default(),
    }
}

fn trackers(settings: &Settings, problems: &mut Problems) -> Vec<Tracker> {
    let mut names: Vec<&str> = Vec::new();
    for word in settings.get(keys::REPORT_TO) {
        match word.as_str() {
            "none" => {}
            "all" => names.extend(TRACKERS),
            name if TRACKERS.contains(&name) => names.push(name),
            name => problems.push(no_tracker(name, settings)),
        }
    }
    if settings.get(keys::USE_SWANLAB) {
        names.push("swanlab");
    }
    if names.contains(&"swanlab")
        && let Some(problem) = wrong_project(settings)
    {
        problems.push(problem);
    }
    let folder = match settings.word(keys::LOGGING_DIR) {
        "" => Path::new(settings.word(keys::OUTPUT_DIR)).join("runs"),
        folder => PathBuf::from(folder),
    };
    let tracker = |name: &str| match name {
        "tensorboard" => Tracker::TensorBoard(folder.clone()),
        "csv" => Tracker::Csv(folder.clone()),
        "jsonl" => Tracker::Jsonl(folder.join("metrics.jsonl")),
        "swanlab" => swanlab(settings),
        _ => Tracker::Wandb {
            project: settings.word(keys::WANDB_PROJECT).to_owned(),
            entity: String::new(),
            group: String::new(),
            name: settings.word(keys::RUN_NAME).to_owned(),
        },
    };
    TRACKERS.iter().filter(|name| names.contains(name)).map(|name| tracker(name)).collect()
}

fn swanlab(settings: &Settings) -> Tracker {
    let or = |word: &str, other: &str| if word.is_empty() { other } else { word }.to_owned();
    Tracker::SwanLab {
        folder: PathBuf::from(or(settings.word(keys::SWANLAB_LOGDIR), "swanlog")),
        project: settings.word(keys::SWANLAB_PROJECT).to_owned(),
        workspace: settings.word(keys::SWANLAB_WORKSPACE).to_owned(),
        name: or(settings.word(keys::SWANLAB_RUN_NAME), settings.word(keys::RUN_NAME)),
    }
}

/// The name of a project that SwanLab would not take, which would come out when the run is uploaded.
fn wrong_project(settings: &Settings) -> Option<Problem> {
    let name = settings.word(keys::SWANLAB_PROJECT);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-+.".contains(c);
    let is_right = (1..=100).contains(&name.len()) && name.chars().all(is_allowed);
    (!is_right).then(|| {
        let message = format!("SwanLab has no projects of the name `{name}`");
        let help = "write 1 to 100 letters, digits, `_`, `-`, `+` and `.`";
        settings.problem(message, &[keys::SWANLAB_PROJECT.row]).help(help)
    })
}

fn no_tracker(name: &str, settings: &Settings) -> Problem {
    let problem = match OTHERS.contains(&name) {
        true => settings.problem(format!("`report_to: {name}` is not supported yet"), &[keys::REPORT_TO.row]),
        false => settings.problem(format!("no tracker `{name}`"), &[keys::REPORT_TO.row]),
    };
    let otherwise = format!("there are {}, all and none", TRACKERS.join(", "));
    problem.did_you_mean(name, report_to(), otherwise)
}

fn engine(block: &Dialect, problems: &mut Problems) -> EngineReports {
    let read = &block.settings;
    let text = |key: Key<Option<String>>| read.get(key).unwrap_or_default().to_owned();
    let mut monitors = Vec::new();
    let job = |path, name| PathBuf::from(text(path)).join(read.get(name));
    if read.get(deepspeed_keys::TENSORBOARD_ENABLED) {
        monitors.push(Tracker::TensorBoard(job(
            deepspeed_keys::TENSORBOARD_OUTPUT_PATH,
            deepspeed_keys::TENSORBOARD_JOB_NAME,
        )));
    }
    if read.get(deepspeed_keys::WANDB_ENABLED) {
        monitors.push(Tracker::Wandb {
            project: read.get(deepspeed_keys::WANDB_PROJECT).to_owned(),
            entity: text(deepspeed_keys::WANDB_TEAM),
            group: text(deepspeed_keys::WANDB_GROUP),
            name: String::new(),
        });
    }
    if read.get(deepspeed_keys::CSV_MONITOR_ENABLED) {
        monitors.push(Tracker::Csv(job(
            deepspeed_keys::CSV_MONITOR_OUTPUT_PATH,
            deepspeed_keys::CSV_MONITOR_JOB_NAME,
        )));
    }
    let flops = || FlopsArgs {
        after_steps: read.get(deepspeed_keys::FLOPS_PROFILER_PROFILE_STEP),
        depth: usize::try_from(read.get(deepspeed_keys::FLOPS_PROFILER_MODULE_DEPTH)).ok(),
        top: read.get(deepspeed_keys::FLOPS_PROFILER_TOP_MODULES),
        detailed: read.get(deepspeed_keys::FLOPS_PROFILER_DETAILED),
        recompute_factor: read.get(deepspeed_keys::FLOPS_PROFILER_RECOMPUTE_FWD_FACTOR),
        file: Some(text(deepspeed_keys::FLOPS_PROFILER_OUTPUT_FILE))
            .filter(|file| !file.is_empty())
            .map(PathBuf::from),
    };
    EngineReports {
        monitors,
        steps_per_print: Some(read.get(deepspeed_keys::STEPS_PER_PRINT).unwrap_or_default())
            .filter(|steps| *steps > 0),
        wall_clock_breakdown: read.get(deepspeed_keys::WALL_CLOCK_BREAKDOWN),
        flops_profiler: read.get(deepspeed_keys::FLOPS_PROFILER_ENABLED).then(flops),
        comms_logger: read.get(deepspeed_keys::COMMS_LOGGER_ENABLED).then(|| comms(block, problems)),
    }
}

fn comms(block: &Dialect, problems: &mut Problems) -> CommsArgs {
    const NAMES: Key<Vec<String>> = deepspeed_keys::COMMS_LOGGER_PROF_OPS;
    let read = &block.settings;
    let mut only = Vec::new();
    for word in read.get(NAMES) {
        match COLLECTIVES.iter().find(|(name, _)| name == word) {
            Some((_, operation)) => only.push(*operation),
            None => {
                let names = COLLECTIVES.map(|(name, _)| name);
                let otherwise = format!("there are {}", names.join(", "));
                let problem = read.problem(format!("no collective `{word}`"), &[NAMES.row]);
                problems.push(problem.did_you_mean(word, names, otherwise));
            }
        }
    }
    let only = (!read.get(deepspeed_keys::COMMS_LOGGER_PROF_ALL)).then_some(only);
    CommsArgs {
        recorded: Recorded { only, by_site: read.get(deepspeed_keys::COMMS_LOGGER_DEBUG) },
        verbose: read.get(deepspeed_keys::COMMS_LOGGER_VERBOSE),
    }
}
