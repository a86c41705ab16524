//! What is in the way of a run in its output folder, found before anything is computed. What a run did not write itself is
//! never replaced or removed unless it is told to overwrite, and weights of another model are not even then.

use std::fs;
use std::path::{Path, PathBuf};

use oarlock_config::config::{Finetuning, IntervalStrategy, ModelSource, Resume, Tracker, TrainConfig};
use oarlock_engine::checkpoint::weights::{ModelFiles, ResultFile};
use oarlock_engine::checkpoint::{self, Listed, Problem};
use oarlock_engine::disk::{Outputs, Part};
use oarlock_engine::{Error, Result};

use crate::train::final_files::Planned;
use crate::train::written::{CACHE, CONVERTED, SWANLAB_RUN, TRAINING, reports_to_swanlab, writer};

/// Something that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The keys of the configuration that lead to it, the first of which is to be changed.
    pub keys: Vec<&'static str>,
    /// What it is.
    pub message: String,
    /// What to do.
    pub help: String,
}

/// Logs and results that every training run writes.
const LOGS: [&str; 6] = [
    "trainer_log.jsonl",
    "running_log.txt",
    "trainer_state.json",
    "training_args.yaml",
    "train_results.json",
    "all_results.json",
];
/// The pictures of a run.
const PICTURES: [&str; 5] = [
    "training_loss.png",
    "training_eval_loss.png",
    "training_eval_accuracy.png",
    "training_rewards_accuracies.png",
    "training_rewards_chosen.png",
];
/// Answers, which a run writes in one go.
pub const PREDICTIONS: &str = "generated_predictions.jsonl";
const ELSEWHERE: &str = "name another output_dir";

/// The logs and results that a run may write into its folder, beside checkpoints and the final model.
pub fn logs(config: &TrainConfig) -> Vec<&'static str> {
    let mut names: Vec<&str> = match config.train.enabled {
        true => LOGS.to_vec(),
        false => vec!["trainer_log.jsonl", "running_log.txt", "all_results.json"],
    };
    if config.eval.at_end || config.eval.when != IntervalStrategy::Never {
        names.push("eval_results.json");
    }
    if config.predict.is_some() {
        names.extend(["predict_results.json", PREDICTIONS]);
    }
    if config.log.plot_loss {
        names.extend(PICTURES);
    }
    if config.log.profile.is_some() || config.train.enabled {
        names.push("profile.jsonl");
    }
    if reports_to_swanlab(config) {
        names.push(SWANLAB_RUN);
    }
    names
}

/// Notes in the record of the folder which logs the run is about to write.
///
/// # Errors
/// When the record cannot be written.
pub fn note_logs(config: &TrainConfig) -> Result<()> {
    let mut outputs = Outputs::of(&config.save.output_dir);
    outputs.add_logs(TRAINING, logs(config).into_iter().filter(|name| *name != PREDICTIONS));
    outputs.save()
}

/// What is in the way of a run that begins or goes on.
///
/// # Errors
/// A folder that cannot be read.
pub fn obstacles(config: &TrainConfig) -> Result<Vec<Obstacle>> {
    let dir = &config.save.output_dir;
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let folder = Folder { config, dir, outputs: Outputs::of(dir), listed: checkpoint::list(dir)? };
    let mut found = Vec::new();
    if config.train.enabled {
        found.extend(folder.is_read().or_else(|| folder.is_checkpoint()));
        if found.is_empty() {
            found.extend(folder.checkpoints());
        }
        if found.is_empty() && !folder.is_damaged() {
            found.extend(folder.results()?);
        }
    }
    if found.is_empty() {
        // What is wrong with the model itself is reported as that.
        let planned = config.train.enabled.then(|| Planned::of(config).ok()).flatten();
        let planned = planned.as_ref();
        let converted = || planned.and_then(|planned| folder.converted(planned));
        found.extend(folder.others(planned).or_else(converted).or_else(|| folder.links()));
    }
    Ok(found)
}

/// Whether the run goes on from a checkpoint of its output folder.
///
/// # Errors
/// A folder that cannot be read.
pub fn resumes(config: &TrainConfig) -> Result<bool> {
    let dir = &config.save.output_dir;
    let is_from = matches!(config.save.resume, Resume::From(_));
    if is_from || !dir.is_dir() {
        return Ok(is_from);
    }
    Ok(Folder { config, dir, outputs: Outputs::of(dir), listed: checkpoint::list(dir)? }.resumes())
}

struct Folder<'a> {
    config: &'a TrainConfig,
    dir: &'a Path,
    outputs: Outputs,
    listed: Vec<Listed>,
}

impl Folder<'_> {
    /// Whether the run goes on from a checkpoint of this folder.
    fn resumes(&self) -> bool {
        match &self.config.save.resume {
            Resume::Never => false,
            Resume::Newest => true,
            Resume::IfPresent => self.listed.iter().any(|one| one.problem.is_none() && !one.only_model),
            Resume::From(path) => path.canonicalize().is_ok_and(|path| {
                path.parent().is_some_and(|parent| self.dir.canonicalize().is_ok_and(|dir| dir == parent))
            }),
        }
    }

    /// Whether the run would go on, and all it finds is damaged: that is reported with what is wrong.
    fn is_damaged(&self) -> bool {
        let is_damaged = |one: &Listed| !matches!(one.problem, None | Some(Problem::NoManifest));
        self.config.save.resume == Resume::IfPresent && !self.resumes() && self.listed.iter().any(is_damaged)
    }

    /// A folder that the run reads: when it is started again after a failure, it is to find what it began with.
    fn is_read(&self) -> Option<Obstacle> {
        let config = self.config;
        let mut read: Vec<(&'static str, &Path)> = Vec::new();
        if let ModelSource::Folder(model) = &config.model.source
            && !config.model.from_scratch
        {
            read.push(("model_name_or_path", model));
        }
        if let Finetuning::Adapter(args) = &config.train.finetuning {
            read.extend(args.adapters.iter().map(|dir| ("adapter_name_or_path", dir.as_path())));
        }
        if let Some(reference) = config.train.objective.reference() {
            let key = config.train.objective.reference_key();
            read.extend(reference.model.iter().map(|dir| (key, dir.as_path())));
            read.extend(reference.adapters.iter().map(|dir| ("ref_model_adapters", dir.as_path())));
        }
        let own = self.dir.canonicalize().ok()?;
        let (key, path) =
            read.into_iter().find(|(_, path)| path.canonicalize().is_ok_and(|path| path == own))?;
        Some(Obstacle {
            keys: vec!["output_dir", key],
            message: format!("`output_dir` is `{}`, which the run reads as {key}", path.display()),
            help: format!("{ELSEWHERE}; `overwrite_output_dir` does not allow it either"),
        })
    }

    /// A checkpoint: its manifest lists its files as they are, so that no model could get its name in it at the end.
    fn is_checkpoint(&self) -> Option<Obstacle> {
        self.dir.join("state/manifest.json").exists().then(|| Obstacle {
            keys: vec!["output_dir"],
            message: format!("`output_dir` is `{}`, which is a checkpoint", self.dir.display()),
            help: format!(
                "{ELSEWHERE}, such as the one above it; `resume_from_checkpoint: PATH` goes on from a checkpoint, and \
                 `overwrite_output_dir` does not allow to write into one"
            ),
        })
    }

    /// Checkpoints whose places the run would take.
    fn checkpoints(&self) -> Option<Obstacle> {
        if self.resumes() {
            return None;
        }
        let dir = self.dir.display();
        let name = |one: &Listed| one.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (foreign, own): (Vec<&Listed>, Vec<&Listed>) =
            (self.listed.iter()).partition(|one| matches!(one.problem, Some(Problem::NoManifest)));
        if let (Some(first), false) = (foreign.first(), self.config.save.when == IntervalStrategy::Never) {
            return Some(Obstacle {
                keys: vec!["output_dir"],
                message: format!(
                    "`{dir}` holds {}, which is not a checkpoint of this program, or not a whole one",
                    name(first)
                ),
                help: format!("{ELSEWHERE}; or move it away: `overwrite_output_dir` does not remove it"),
            });
        }
        let newest = own.last().filter(|_| !self.config.save.overwrite && !self.config.save.begin_anew)?;
        if self.is_damaged() {
            return None;
        }
        let why = match newest.only_model {
            true => ", which holds the model alone (save_only_model), so that no run goes on from it",
            false => "",
        };
        Some(Obstacle {
            keys: vec!["output_dir", "resume_from_checkpoint"],
            message: format!(
                "`{dir}` holds checkpoints of an earlier run, the newest {}{why}; a run that begins anew would replace them",
                name(newest)
            ),
            help: match newest.problem.is_none() && !newest.only_model {
                true => format!(
                    "{ELSEWHERE}; or leave `resume_from_checkpoint` out to go on from the newest; or write \
                     `overwrite_output_dir: true` to begin anew in this one"
                ),
                false => {
                    format!("{ELSEWHERE}; or write `overwrite_output_dir: true` to begin anew in this one")
                }
            },
        })
    }

    /// The final model or adapter of another run, or of somebody.
    fn results(&self) -> Result<Option<Obstacle>> {
        let (dir, overwrites) = (self.dir.display(), self.config.save.overwrite);
        let is_adapter = matches!(self.config.train.finetuning, Finetuning::Adapter(_));
        let found: Vec<(String, ResultFile)> = names(self.dir)?
            .into_iter()
            .filter_map(|name| Some((ResultFile::of(&name)?, name)))
            .map(|(kind, name)| (name, kind))
            .collect();
        if overwrites {
            // These stay, and would be taken for files of the new model.
            let stays = |(name, kind): &&(String, ResultFile)| {
                let is_mixed = match kind {
                    ResultFile::Shard | ResultFile::Adapter => !is_adapter,
                    ResultFile::Whole | ResultFile::Pickle => false,
                };
                is_mixed && !self.outputs.is_own(None, name)
            };
            let stay: Vec<String> = found.iter().filter(stays).map(|(name, _)| name.clone()).collect();
            return Ok((!stay.is_empty()).then(|| Obstacle {
                keys: vec!["output_dir"],
                message: format!(
                    "`{dir}` holds {}, which no run wrote, or which was changed since; it would lie beside the new model",
                    listed(&stay)
                ),
                help: format!("{ELSEWHERE}; or move it away: `overwrite_output_dir` does not remove it"),
            }));
        }
        let resumes = self.resumes();
        let replaces_own = resumes || self.config.save.begin_anew;
        // Such a run replaces the result of the same kind that a run left, and that of an adapter leaves a model where it is.
        let is_in_the_way = |(name, kind): &&(String, ResultFile)| {
            let is_beside = is_adapter && *kind != ResultFile::Adapter;
            let is_mixed = !resumes && !is_adapter && *kind == ResultFile::Adapter;
            !replaces_own || (!is_beside && (is_mixed || !self.outputs.is_own(Some(TRAINING), name)))
        };
        let in_the_way: Vec<String> =
            found.iter().filter(is_in_the_way).map(|(name, _)| name.clone()).collect();
        if in_the_way.is_empty() {
            return Ok(None);
        }
        // By name alone: to refuse them, weights need not be read.
        let recorded = self.outputs.names(Some(TRAINING), &[Part::Model, Part::Adapter]);
        let all_own = in_the_way.iter().all(|name| recorded.contains(name.as_str()));
        let is_as_written = |name: &String| self.outputs.is_own(Some(TRAINING), name);
        let whose = match (replaces_own, all_own) {
            (true, true) if in_the_way.iter().all(is_as_written) => "which would lie beside the new model",
            (false, true) => "of a finished run, from which no checkpoint goes on",
            (false, false) => "of a model",
            (true, _) => "which this run did not write, or which was changed since",
        };
        let begin = match (resumes, is_adapter) {
            (true, _) => {
                "or move it away; or write `overwrite_output_dir: true` with `resume_from_checkpoint: PATH` of the \
                 checkpoint to go on from"
            }
            (false, true) => {
                "or write `overwrite_output_dir: true`, which replaces an adapter and leaves a model where it is"
            }
            (false, false) if replaces_own => "or move it away",
            (false, false) => "or write `overwrite_output_dir: true` to replace it",
        };
        Ok(Some(Obstacle {
            keys: vec!["output_dir"],
            message: format!(
                "Output directory already exists and is not empty: `{dir}` holds {}, {whose}",
                listed(&in_the_way)
            ),
            help: format!("{ELSEWHERE}; {begin}"),
        }))
    }

    /// An adapter of somebody where the run would write that of `pissa_convert`.
    fn converted(&self, planned: &Planned) -> Option<Obstacle> {
        let dir = self.dir.join(CONVERTED);
        let files = planned.converted.as_ref()?;
        if let Some(found) = file_at(&dir) {
            return Some(found);
        }
        self.taken(&dir, Outputs::of(&dir).foreign(writer(self.config), coming(files, &dir)))
    }

    /// Folders of the run below its own that are links, through which it would write elsewhere, or that are files.
    fn links(&self) -> Option<Obstacle> {
        let of_tracker = |tracker: &Tracker| match tracker {
            Tracker::Csv(folder) | Tracker::TensorBoard(folder) => Some(folder.clone()),
            Tracker::Jsonl(file) => file.parent().map(Path::to_path_buf),
            Tracker::SwanLab { folder, .. } => Some(folder.clone()),
            Tracker::Wandb { .. } => None,
        };
        let engine = &self.config.monitor.engine;
        let trackers = self.config.monitor.trackers.iter().chain(&engine.monitors).filter_map(of_tracker);
        let own = [CACHE, CONVERTED].map(|name| self.dir.join(name));
        let flops = engine.flops_profiler.iter().filter_map(|flops| flops.file.as_ref()?.parent());
        let written = own.into_iter().chain(trackers).chain(flops.map(Path::to_path_buf));
        // Each folder on the way to it, as one above it may be the link.
        let below = |path: PathBuf| -> Vec<PathBuf> {
            let own = |path: &&Path| path.starts_with(self.dir) && *path != self.dir;
            path.ancestors().filter(own).map(Path::to_path_buf).collect()
        };
        let below: Vec<PathBuf> = written.flat_map(below).collect();
        // Only some runs convert.
        let converted = self.dir.join(CONVERTED);
        if let Some(found) = below.iter().filter(|path| **path != converted).find_map(|path| file_at(path)) {
            return Some(found);
        }
        let (link, to) = below.iter().find_map(|path| fs::read_link(path).ok().map(|to| (path, to)))?;
        Some(Obstacle {
            keys: vec!["output_dir"],
            message: format!(
                "`{}` is a link to `{}`, and nothing is written through links below output_dir",
                link.display(),
                to.display()
            ),
            help: "remove the link; `tokenized_path` and `logging_dir` name other folders for token caches and trackers"
                .to_owned(),
        })
    }

    /// Files of somebody under names that the run writes.
    fn others(&self, planned: Option<&Planned>) -> Option<Obstacle> {
        let config = self.config;
        let writer = writer(config);
        let mut names: Vec<String> = Vec::new();
        if config.train.enabled {
            // Whose weights these are was looked at before, and no file takes the place of a folder.
            let is_open = |name: &&str| ResultFile::of(name).is_none() || self.dir.join(name).is_dir();
            let files = planned.iter().flat_map(|planned| coming(&planned.model, self.dir));
            names.extend(files.filter(is_open).map(str::to_owned));
        }
        // The logs beside a checkpoint belong to the run that goes on from it.
        if !config.train.enabled || !self.resumes() {
            names.extend(logs(config).into_iter().map(str::to_owned));
        }
        let mut taken = self.outputs.foreign(writer, names);
        if !is_lock(&self.dir.join("run.lock")) {
            taken.push("run.lock".to_owned());
        }
        self.taken(self.dir, taken)
    }

    /// Files of somebody, which the run would replace.
    fn taken(&self, dir: &Path, names: Vec<String>) -> Option<Obstacle> {
        (!names.is_empty()).then(|| Obstacle {
            keys: vec!["output_dir"],
            message: format!(
                "`{}` holds {}, which the run would replace, and which no run wrote there, or which was changed since",
                dir.display(),
                listed(&names)
            ),
            help: match self.config.save.overwrite || self.config.save.begin_anew {
                true => format!("{ELSEWHERE}; or move it away"),
                false => format!("{ELSEWHERE}; or write `overwrite_output_dir: true` to replace it"),
            },
        })
    }
}

/// A file where the run has a folder.
fn file_at(path: &Path) -> Option<Obstacle> {
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    is_file.then(|| Obstacle {
        keys: vec!["output_dir"],
        message: format!("`{}` is a file, and the run has a folder of that name", path.display()),
        help: format!("{ELSEWHERE}; or move the file away"),
    })
}

/// The files that a folder does not hold already.
fn coming<'f>(files: &'f ModelFiles, dir: &'f Path) -> impl Iterator<Item = &'f str> {
    files.names().filter(move |name| !files.is_there(name, dir))
}

/// Whether a path is free for a lock: nothing is there, or a lock.
fn is_lock(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() && found.len() < 1000 => oarlock_comm::read_file(path, 1000)
            .is_ok_and(|text| text.is_empty() || text.starts_with(b"process ")),
        Ok(_) => false,
        Err(_) => true,
    }
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).map_err(Error::io("read", dir))?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

/// Names, the first of them written out.
fn listed(names: &[String]) -> String {
    const NAMED: usize = 4;
    let mut text = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        text.push_str(&format!(" and {} more", names.len() - NAMED));
    }
    text
}
