//! Places that a loop logs its figures to: the trait, those that are built in, and those that an accelerator has.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use oarlock_config::nearest::nearest_of;
use serde_json::{Map, Value};

use crate::report::Rest;
use crate::report::monitor::Monitor;
use crate::report::monitor::csv::Csv;
use crate::report::monitor::jsonl::Jsonl;
use crate::report::monitor::swanlab::{self, SwanLab};
use crate::report::monitor::tensorboard::TensorBoard;
use crate::report::monitor::wandb::{Belongs, Wandb};
use crate::{Error, Result};

/// A place that figures go to. The built-in ones are chosen with `log_with`; a custom one implements this trait and
/// goes to [`Accelerator::add_tracker`](crate::Accelerator::add_tracker).
pub trait Tracker: Send {
    /// Its name, for [`Accelerator::get_tracker`](crate::Accelerator::get_tracker).
    fn name(&self) -> &str;

    /// Begins, when [`init_trackers`](crate::Accelerator::init_trackers) is called, with the settings of the run.
    ///
    /// # Errors
    /// When it cannot begin.
    fn start(&mut self, project: &str, config: &Map<String, Value>) -> Result<()> {
        let _ = (project, config);
        Ok(())
    }

    /// Takes figures by name, of a step.
    ///
    /// # Errors
    /// When they cannot be written.
    fn log(&mut self, values: &[(&str, f64)], step: u64) -> Result<()>;

    /// Brings everything to where it belongs: the end of the run.
    ///
    /// # Errors
    /// When that fails.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The trackers that are built in. Their names, as text, are those of Accelerate where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogWith {
    /// All of them.
    All,
    /// `jsonl`: lines of JSON, `<logging_dir>/<project>/metrics.jsonl`.
    Jsonl,
    /// `csv`: a file for each name, `<logging_dir>/<project>/<name>.csv`.
    Csv,
    /// `tensorboard`: event files in `<logging_dir>/<project>`.
    TensorBoard,
    /// `wandb`: an offline run for `wandb sync`.
    Wandb,
    /// `swanlab`: an offline run for `swanlab sync`.
    SwanLab,
}

impl LogWith {
    const NAMES: [(LogWith, &str); 6] = [
        (LogWith::All, "all"),
        (LogWith::Jsonl, "jsonl"),
        (LogWith::Csv, "csv"),
        (LogWith::TensorBoard, "tensorboard"),
        (LogWith::Wandb, "wandb"),
        (LogWith::SwanLab, "swanlab"),
    ];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// The trackers that it stands for.
    pub(crate) fn each(self) -> Vec<LogWith> {
        let single = Self::NAMES.iter().map(|(kind, _)| *kind).filter(|kind| *kind != LogWith::All);
        if self == LogWith::All { single.collect() } else { vec![self] }
    }
}

impl fmt::Display for LogWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Accelerate's trackers that need a service or its client in Python.
const OTHERS: [&str; 6] = ["aim", "clearml", "comet_ml", "dvclive", "mlflow", "trackio"];

impl FromStr for LogWith {
    type Err = Error;
    fn from_str(text: &str) -> Result<LogWith> {
        if let Some((kind, _)) = Self::NAMES.iter().find(|(_, name)| *name == text) {
            return Ok(*kind);
        }
        let names = Self::NAMES.map(|(_, name)| name).join(", ");
        Err(Error::Usage(if OTHERS.contains(&text) {
            format!(
                "log_with: {text} is not built in, as it needs its service; there are {names}, and \
                 `Accelerator::add_tracker` takes one of your own"
            )
        } else {
            let near = nearest_of(text, Self::NAMES.iter().map(|(_, name)| *name));
            let near = near.map(|near| format!(" Did you mean {near:?}?")).unwrap_or_default();
            format!("log_with: there is no tracker {text:?}; there are {names}.{near}")
        }))
    }
}

/// How trackers begin: what Accelerate's `init_kwargs` say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackerOptions {
    /// The run of Weights & Biases.
    pub wandb: WandbRun,
    /// The run of SwanLab.
    pub swanlab: SwanLabRun,
    /// Go on in the files of an earlier run after this step: what they hold beyond it will be logged again. Without it
    /// they begin again from the start.
    pub resume_after: Option<u64>,
}

/// Where a run of Weights & Biases belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WandbRun {
    /// The team or user; by default that of whoever uploads it.
    pub entity: Option<String>,
    /// The group inside the project.
    pub group: Option<String>,
    /// The run's name.
    pub name: Option<String>,
    /// The folder of offline runs; by default `wandb`.
    pub dir: Option<PathBuf>,
}

/// Where a run of SwanLab belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwanLabRun {
    /// The organization or user; by default that of whoever uploads it.
    pub workspace: Option<String>,
    /// The run's name.
    pub name: Option<String>,
    /// The folder of offline runs; by default `swanlog`.
    pub dir: Option<PathBuf>,
}

/// A tracker as several may hold it.
pub(crate) type Shared = Arc<Mutex<dyn Tracker>>;

/// The trackers of an accelerator.
#[derive(Default)]
pub(crate) struct Trackers {
    pub phase: Phase,
    pub trackers: Vec<(String, Shared)>,
    /// The step of what is logged without one.
    pub next: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Before,
    Running,
    Ended,
}

/// A monitor as a tracker.
pub(crate) struct BuiltIn {
    pub kind: LogWith,
    pub folder: PathBuf,
    pub options: TrackerOptions,
    /// Once it has begun.
    pub monitor: Option<Box<dyn Monitor>>,
}

impl BuiltIn {
    fn open(&self, project: &str) -> Result<Box<dyn Monitor>> {
        let (folder, after): (&Path, _) = (&self.folder, self.options.resume_after);
        Ok(match self.kind {
            LogWith::Csv => Box::new(Csv::open(folder, after, Rest::SetAside)?),
            LogWith::TensorBoard => Box::new(TensorBoard::open(folder, after)?),
            LogWith::Wandb => {
                let WandbRun { entity, group, name, .. } = self.options.wandb.clone();
                let belongs = Belongs {
                    project: project.to_owned(),
                    entity: entity.unwrap_or_default(),
                    group: group.unwrap_or_default(),
                    name: name.unwrap_or_default(),
                };
                Box::new(Wandb::begin(folder, belongs, None)?)
            }
            LogWith::SwanLab => {
                let SwanLabRun { workspace, name, .. } = self.options.swanlab.clone();
                let belongs = swanlab::Belongs {
                    project: project.to_owned(),
                    workspace: workspace.unwrap_or_default(),
                    name: name.unwrap_or_default(),
                };
                Box::new(SwanLab::begin(folder, belongs)?)
            }
            LogWith::Jsonl | LogWith::All => {
                let file = folder.join("metrics.jsonl");
                Box::new(Jsonl::open(&file, after, Rest::SetAside)?)
            }
        })
    }
}

impl Tracker for BuiltIn {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn start(&mut self, project: &str, config: &Map<String, Value>) -> Result<()> {
        let mut monitor = self.open(project)?;
        monitor.config(config)?;
        self.monitor = Some(monitor);
        Ok(())
    }

    fn log(&mut self, values: &[(&str, f64)], step: u64) -> Result<()> {
        Ok(self.monitor.as_mut().map_or(Ok(()), |monitor| monitor.scalars(step, values))?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.monitor.take().map_or(Ok(()), |mut monitor| monitor.finish())?)
    }
}
