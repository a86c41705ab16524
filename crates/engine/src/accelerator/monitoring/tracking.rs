//! Logging of a loop's figures to trackers. Only the main process has any.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_config::nearest::nearest_of;
use serde::Serialize;
use serde_json::{Map, Value};

use super::trackers::{BuiltIn, LogWith, Phase, Shared, Tracker, TrackerOptions, Trackers};
use crate::accelerator::handle::Accelerator;
use crate::{Error, Result};

impl Accelerator {
    /// Adds a custom tracker, before [`Accelerator::init_trackers`]. Processes but the main one drop it.
    ///
    /// # Errors
    /// A name that another tracker has, or trackers that have begun.
    pub fn add_tracker(&self, tracker: impl Tracker + 'static) -> Result<()> {
        let mut trackers = self.trackers();
        if trackers.phase != Phase::Before {
            return Err(Error::Usage(
                "add_tracker: the trackers have begun; add it before init_trackers".to_owned(),
            ));
        }
        let name = tracker.name().to_owned();
        let built_in = self.chosen().iter().any(|kind| kind.name() == name);
        if built_in || trackers.trackers.iter().any(|(other, _)| *other == name) {
            return Err(Error::Usage(format!("add_tracker: there is a tracker {name:?} already")));
        }
        if self.is_main_process() {
            trackers.trackers.push((name, Arc::new(Mutex::new(tracker))));
        }
        Ok(())
    }

    /// Begins the trackers of `log_with`, in [`AcceleratorConfig`](crate::AcceleratorConfig), and those that were added,
    /// for a project, with the settings of the run (a struct or map that serde writes, or `()`). Files go to a folder
    /// of the project's name in `logging_dir`, by default in `project_dir`. All processes call it; only the main one
    /// writes.
    ///
    /// # Errors
    /// Settings that are not a map, no folder for files, trackers that have begun already; on the main process what a
    /// tracker reports.
    pub fn init_trackers(
        &self,
        project: &str,
        config: &impl Serialize,
        options: &TrackerOptions,
    ) -> Result<()> {
        let config = settings(config)?;
        if self.trackers().phase != Phase::Before {
            return Err(Error::Usage(
                "init_trackers: the trackers of this accelerator have begun already".to_owned(),
            ));
        }
        let mut begun: Vec<(String, Shared)> = Vec::new();
        for kind in self.chosen() {
            let built_in = BuiltIn {
                kind,
                folder: self.folder_of(kind, project, options)?,
                options: options.clone(),
                monitor: None,
            };
            if self.is_main_process() {
                begun.push((kind.to_string(), Arc::new(Mutex::new(built_in))));
            }
        }
        begun.extend(self.trackers().trackers.clone());
        // Without the lock: a tracker may ask the accelerator something.
        for (_, tracker) in &begun {
            lock(tracker).start(project, &config)?;
        }
        let mut trackers = self.trackers();
        trackers.phase = Phase::Running;
        trackers.next = options.resume_after.map_or(0, |step| step.saturating_add(1));
        trackers.trackers = begun;
        Ok(())
    }

    /// Logs figures by name to all trackers; without a step, to the one after the last. All processes may call it; only
    /// the main one writes. Without any tracker it does nothing.
    ///
    /// # Errors
    /// Before [`Accelerator::init_trackers`] and after [`Accelerator::end_training`], on the main process also what a
    /// tracker reports.
    pub fn log(&self, values: &[(&str, f64)], step: impl Into<Option<u64>>) -> Result<()> {
        let (running, step) = {
            let mut trackers = self.trackers();
            match trackers.phase {
                Phase::Before if self.chosen().is_empty() && trackers.trackers.is_empty() => return Ok(()),
                Phase::Before => {
                    return Err(Error::Usage(
                        "log: the trackers have not begun; call init_trackers first".to_owned(),
                    ));
                }
                Phase::Ended => {
                    return Err(Error::Usage("log: the trackers ended with end_training".to_owned()));
                }
                Phase::Running => {}
            }
            let step = step.into().unwrap_or(trackers.next);
            trackers.next = step.saturating_add(1);
            (trackers.trackers.clone(), step)
        };
        running.iter().try_for_each(|(_, tracker)| lock(tracker).log(values, step))
    }

    /// The tracker of a name, to do more with it than to log figures; `None` on processes but the main one, where
    /// Accelerate gives a tracker that does nothing.
    ///
    /// # Errors
    /// On the main process, a name that no tracker has.
    pub fn get_tracker(&self, name: &str) -> Result<Option<Arc<Mutex<dyn Tracker>>>> {
        if !self.is_main_process() {
            return Ok(None);
        }
        let trackers = self.trackers();
        if let Some((_, tracker)) = trackers.trackers.iter().find(|(own, _)| own == name) {
            return Ok(Some(tracker.clone()));
        }
        let names: Vec<&str> = trackers.trackers.iter().map(|(name, _)| name.as_str()).collect();
        let near = nearest_of(name, names.iter().copied());
        let near = near.map(|near| format!(" Did you mean {near:?}?")).unwrap_or_default();
        let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Error::Usage(format!(
            "get_tracker: there is no tracker {name:?}; after init_trackers there are: {listed}.{near}"
        )))
    }

    /// Ends all trackers: everything that was logged is where it belongs then. Doing it twice does nothing. The process
    /// group stays, which Accelerate destroys here.
    ///
    /// # Errors
    /// On the main process, the first error of a tracker; the others have ended then, too.
    pub fn end_training(&self) -> Result<()> {
        let ended = {
            let mut trackers = self.trackers();
            let was = std::mem::replace(&mut trackers.phase, Phase::Ended);
            let ended = std::mem::take(&mut trackers.trackers);
            if was == Phase::Running { ended } else { Vec::new() }
        };
        let outcomes: Vec<Result<()>> = ended.iter().map(|(_, tracker)| lock(tracker).finish()).collect();
        outcomes.into_iter().collect()
    }

    fn trackers(&self) -> MutexGuard<'_, Trackers> {
        self.inner.trackers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The built-in trackers of the configuration, each once.
    fn chosen(&self) -> BTreeSet<LogWith> {
        self.inner.config.log_with.iter().flat_map(|kind| kind.each()).collect()
    }

    fn folder_of(&self, kind: LogWith, project: &str, options: &TrackerOptions) -> Result<PathBuf> {
        if kind == LogWith::Wandb {
            return Ok(options.wandb.dir.clone().unwrap_or_else(|| PathBuf::from("wandb")));
        }
        if kind == LogWith::SwanLab {
            return Ok(options.swanlab.dir.clone().unwrap_or_else(|| PathBuf::from("swanlog")));
        }
        let logs = self.inner.config.project.logs().ok_or_else(|| {
            Error::Usage(format!(
                "init_trackers: {kind} writes files; say where with logging_dir or project_dir in the \
                 ProjectConfiguration"
            ))
        })?;
        // The name of a project is not a path.
        Ok(logs.join(project.replace(['/', '\\'], "_")))
    }
}

fn lock(tracker: &Shared) -> MutexGuard<'_, dyn Tracker + 'static> {
    tracker.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settings(config: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(config) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(Value::Null) => Ok(Map::new()),
        Ok(other) => {
            Err(Error::Usage(format!("init_trackers: settings are a struct or a map, and {other} is none")))
        }
        Err(error) => Err(Error::Usage(format!("init_trackers: the settings cannot be written: {error}"))),
    }
}
