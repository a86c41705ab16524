//! What a run reports beside its own logs: the trackers of `report_to`, and DeepSpeed's monitors, profiler and lines.

use std::path::{Path, PathBuf};

use oarlock::config::{CommsArgs, EngineReports, FlopsArgs, MonitorArgs, Tracker};
use oarlock::settings::accelerate::said_in;
use oarlock::settings::dialect::{Dialect, Dialects};
use oarlock::settings::problem::{Problem, Problems};
use oarlock::settings::resolve::Settings;
use oarlock_comm::{Operation, Recorded};

use super::written::{Authority, Entry, Layer};

/// The trackers of `report_to`.
const TRACKERS: [&str; 4] = ["tensorboard", "wandb", "csv", "jsonl"];
/// Those of transformers that are not there.
const OTHERS: [&str; 12] = [
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
    "swanlab",
    "trackio",
];

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

/// Variables that transformers' trackers read, with the keys that they stand for; what is written replaces them.
const VARIABLES: [(&str, &str); 2] =
    [("WANDB_PROJECT", "wandb_project"), ("TENSORBOARD_LOGGING_DIR", "logging_dir")];

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
    for word in settings.list("report_to") {
        match word.as_str() {
            "none" => {}
            "all" => names.extend(TRACKERS),
            name if TRACKERS.contains(&name) => names.push(name),
            name => problems.push(no_tracker(name, settings)),
        }
    }
    let folder = match settings.word("logging_dir") {
        "" => Path::new(settings.word("output_dir")).join("runs"),
        folder => PathBuf::from(folder),
    };
    let tracker = |name: &str| match name {
        "tensorboard" => Tracker::TensorBoard(folder.clone()),
        "csv" => Tracker::Csv(folder.clone()),
        "jsonl" => Tracker::Jsonl(folder.join("metrics.jsonl")),
        _ => Tracker::Wandb {
            project: settings.word("wandb_project").to_owned(),
            entity: String::new(),
            group: String::new(),
            name: settings.word("run_name").to_owned(),
        },
    };
    TRACKERS.iter().filter(|name| names.contains(name)).map(|name| tracker(name)).collect()
}

fn no_tracker(name: &str, settings: &Settings) -> Problem {
    let problem = match OTHERS.contains(&name) {
        true => settings.problem(format!("`report_to: {name}` is not supported yet"), &["report_to"]),
        false => settings.problem(format!("no tracker `{name}`"), &["report_to"]),
    };
    let otherwise = format!("there are {}, all and none", TRACKERS.join(", "));
    problem.did_you_mean(name, TRACKERS.into_iter().chain(["none", "all"]), otherwise)
}

fn engine(block: &Dialect, problems: &mut Problems) -> EngineReports {
    let read = &block.settings;
    let text = |name: &str| read.text(name).unwrap_or_default();
    let mut monitors = Vec::new();
    let job = |name: &str| {
        PathBuf::from(text(&format!("{name}.output_path"))).join(text(&format!("{name}.job_name")))
    };
    if read.bool("tensorboard.enabled") {
        monitors.push(Tracker::TensorBoard(job("tensorboard")));
    }
    if read.bool("wandb.enabled") {
        monitors.push(Tracker::Wandb {
            project: text("wandb.project"),
            entity: text("wandb.team"),
            group: text("wandb.group"),
            name: String::new(),
        });
    }
    if read.bool("csv_monitor.enabled") {
        monitors.push(Tracker::Csv(job("csv_monitor")));
    }
    let flops = || FlopsArgs {
        after_steps: read.int("flops_profiler.profile_step").unsigned_abs(),
        depth: usize::try_from(read.int("flops_profiler.module_depth")).ok(),
        top: read.usize("flops_profiler.top_modules"),
        detailed: read.bool("flops_profiler.detailed"),
        recompute_factor: read.f64("flops_profiler.recompute_fwd_factor"),
        file: Some(text("flops_profiler.output_file")).filter(|file| !file.is_empty()).map(PathBuf::from),
    };
    EngineReports {
        monitors,
        steps_per_print: Some(read.int("steps_per_print").unsigned_abs()).filter(|steps| *steps > 0),
        wall_clock_breakdown: read.bool("wall_clock_breakdown"),
        flops_profiler: read.bool("flops_profiler.enabled").then(flops),
        comms_logger: read.bool("comms_logger.enabled").then(|| comms(block, problems)),
    }
}

fn comms(block: &Dialect, problems: &mut Problems) -> CommsArgs {
    const NAMES: &str = "comms_logger.prof_ops";
    let read = &block.settings;
    let mut only = Vec::new();
    for word in read.list(NAMES) {
        match COLLECTIVES.iter().find(|(name, _)| name == word) {
            Some((_, operation)) => only.push(*operation),
            None => {
                let names = COLLECTIVES.map(|(name, _)| name);
                let otherwise = format!("there are {}", names.join(", "));
                let problem = read.problem(format!("no collective `{word}`"), &[NAMES]);
                problems.push(problem.did_you_mean(word, names, otherwise));
            }
        }
    }
    let only = (!read.bool("comms_logger.prof_all")).then_some(only);
    CommsArgs {
        recorded: Recorded { only, by_site: read.bool("comms_logger.debug") },
        verbose: read.bool("comms_logger.verbose"),
    }
}
