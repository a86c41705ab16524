//! Feeds the monitors of a run: log records under transformers' names, and what DeepSpeed's engine would report.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use oarlock_comm::Communicator;
use oarlock_tensor::ops::optimizer::Rule;
use serde_json::{Map, Value};

use oarlock_config::config::{EngineReports, Tracker, TrainConfig};
use oarlock_engine::Result;
use oarlock_engine::report::engine::{self, EngineStep, Momentum};
use oarlock_engine::report::monitor::Monitor;
use oarlock_engine::report::monitor::csv::Csv;
use oarlock_engine::report::monitor::jsonl::Jsonl;
use oarlock_engine::report::monitor::swanlab::{self, End, SwanLab};
use oarlock_engine::report::monitor::tensorboard::TensorBoard;
use oarlock_engine::report::monitor::wandb::{Belongs, Wandb};
use oarlock_engine::report::speed::PhaseTimes;
use oarlock_engine::report::{Rest, comms, replace};

use crate::train::written::{SWANLAB_RUN, reports_to_swanlab};

/// Where a resumed run goes on.
#[derive(Clone, Copy, Debug)]
pub struct Resumed {
    /// Steps done.
    pub step: u64,
    /// Samples consumed.
    pub samples: u64,
}

/// Says in the run of SwanLab how a run has ended that `started` then and whose processes were ended before they could say so:
/// it was `stopped`, or else failed. Where they said so, or there is no such run, this changes nothing.
pub fn end_trackers(config: &TrainConfig, started: SystemTime, stopped: bool, error: &str) {
    if !reports_to_swanlab(config) {
        return;
    }
    let path = config.save.output_dir.join(SWANLAB_RUN);
    // An earlier run may have left one.
    if !fs::metadata(&path).and_then(|found| found.modified()).is_ok_and(|written| written >= started) {
        return;
    }
    let run = oarlock_comm::read_file(path, oarlock_comm::MAX_CONFIG_BYTES).unwrap_or_default();
    let run: Value = serde_json::from_slice(&run).unwrap_or_default();
    let end = if stopped { End::Aborted } else { End::Crashed };
    // Without it, whoever uploads the run finds no end, and takes it for one that has crashed.
    let _ = swanlab::end(&run, end, error);
}

/// The monitors of a run, on rank 0.
pub struct Monitors {
    logs: Vec<Box<dyn Monitor>>,
    engine: Vec<Box<dyn Monitor>>,
    reports: EngineReports,
    accumulation: u64,
    communicator: Communicator,
    /// The times since the last line on them, and the steps.
    times: (PhaseTimes, u64),
    /// Whether the step that was to be profiled has come.
    profiled: bool,
}

impl Monitors {
    /// Begins from the start, or goes on.
    pub fn open(
        config: &TrainConfig,
        communicator: &Communicator,
        resumed: Option<Resumed>,
    ) -> Result<Monitors> {
        let args = &config.monitor;
        let values = &config.description.values;
        let open = |trackers: &[Tracker], after: Option<u64>, axis: Option<&'static str>| {
            let mut monitors = Vec::with_capacity(trackers.len());
            for tracker in trackers {
                let mut monitor = monitor_of(tracker, after, axis, &config.save.output_dir)?;
                monitor.config(values)?;
                monitors.push(monitor);
            }
            Ok::<_, oarlock_engine::Error>(monitors)
        };
        Ok(Monitors {
            logs: open(&args.trackers, resumed.map(|at| at.step), Some("train/global_step"))?,
            engine: open(&args.engine.monitors, resumed.map(|at| at.samples), None)?,
            reports: args.engine.clone(),
            accumulation: config.train.accumulation as u64,
            communicator: communicator.clone(),
            times: (PhaseTimes::default(), 0),
            profiled: false,
        })
    }

    /// A record of the log, as it stands in trainer_state.json.
    pub fn logged(&mut self, record: &Map<String, Value>) -> Result<()> {
        let values: Vec<(String, f64)> = record
            .iter()
            .filter(|(name, _)| *name != "step")
            .map(|(name, value)| (name_of(name), value.as_f64().unwrap_or(f64::NAN)))
            .collect();
        let values: Vec<(&str, f64)> = values.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let step = record.get("step").and_then(Value::as_u64).unwrap_or(0);
        Ok(self.logs.iter_mut().try_for_each(|monitor| monitor.scalars(step, &values))?)
    }

    /// After every step; returns the lines that are due.
    pub fn stepped(&mut self, step: &EngineStep) -> Result<Vec<String>> {
        let scalars = engine::scalars(step, self.reports.wall_clock_breakdown);
        self.engine.iter_mut().try_for_each(|monitor| monitor.scalars(step.samples, &scalars))?;
        self.times.0 += step.times;
        self.times.1 += 1;
        self.profiled |=
            self.reports.flops_profiler.as_ref().is_some_and(|args| step.step == args.after_steps + 1);
        let mut lines = Vec::new();
        let due = |every: u64| step.step.is_multiple_of(every);
        if self.reports.steps_per_print.is_some_and(due) {
            lines.push(engine::progress(step));
        }
        // Without steps_per_print the engine still tells its times, after every step.
        if self.reports.wall_clock_breakdown && due(self.reports.steps_per_print.unwrap_or(1)) {
            let (times, steps) = std::mem::take(&mut self.times);
            lines.push(engine::wall_clock(&times, steps, self.accumulation));
        }
        let verbose = self.reports.comms_logger.as_ref().is_some_and(|comms| comms.verbose);
        if verbose && self.reports.steps_per_print.is_some_and(due) {
            lines.extend(self.communication());
        }
        Ok(lines)
    }

    /// The table of collectives, and how much of their time was hidden.
    fn communication(&self) -> Vec<String> {
        let hidden = self.communicator.communication_time().and_then(|time| comms::hidden(&time));
        std::iter::once(comms::table(&self.communicator.recorded())).chain(hidden).collect()
    }

    /// The end by an error.
    pub fn failed(&mut self, error: &str) -> Result<()> {
        Ok(self.logs.iter_mut().chain(&mut self.engine).try_for_each(|monitor| monitor.failed(error))?)
    }

    /// The end; returns the lines that are due.
    pub fn finish(&mut self) -> Result<Vec<String>> {
        self.logs.iter_mut().chain(&mut self.engine).try_for_each(|monitor| monitor.finish())?;
        let table = self.reports.comms_logger.as_ref().map(|_| self.communication()).unwrap_or_default();
        let missed = self.reports.flops_profiler.as_ref().filter(|_| !self.profiled).map(|args| {
            let step = args.after_steps + 1;
            format!(
                "flops_profiler: this run made no step {step}, so nothing was profiled; lower profile_step"
            )
        });
        Ok(table.into_iter().chain(missed).collect())
    }
}

/// `own` is the folder of the run: what lies in others may be of other runs as well.
fn monitor_of(
    tracker: &Tracker,
    after: Option<u64>,
    axis: Option<&'static str>,
    own: &Path,
) -> Result<Box<dyn Monitor>> {
    Ok(match tracker {
        Tracker::Csv(folder) => Box::new(Csv::open(folder, after, Rest::of(folder, own))?),
        Tracker::Jsonl(file) => Box::new(Jsonl::open(file, after, Rest::of(file, own))?),
        Tracker::TensorBoard(folder) => Box::new(TensorBoard::open(folder, after)?),
        Tracker::SwanLab { folder, project, workspace, name } => {
            let belongs = swanlab::Belongs {
                project: project.clone(),
                workspace: workspace.clone(),
                name: name.clone(),
            };
            let run = SwanLab::begin(folder, belongs)?;
            replace(&own.join(SWANLAB_RUN), format!("{:#}\n", run.public()).as_bytes())?;
            Box::new(run)
        }
        Tracker::Wandb { project, entity, group, name } => {
            let belongs = Belongs {
                project: project.clone(),
                entity: entity.clone(),
                group: group.clone(),
                name: name.clone(),
            };
            Box::new(Wandb::begin(Path::new("wandb"), belongs, axis)?)
        }
    })
}

/// `eval_loss` as `eval/loss`, and everything else of the log as `train/…`.
fn name_of(key: &str) -> String {
    match key.strip_prefix("eval_") {
        Some(rest) => format!("eval/{rest}"),
        None => format!("train/{key}"),
    }
}

/// What the moments of a rule keep of themselves; 0 for a rule that has none.
pub fn momentum(rule: &Rule) -> Momentum {
    match (rule.betas(), rule) {
        (Some([beta1, beta2]), _) => Momentum::Two(beta1, beta2),
        (None, Rule::Sgd { momentum, .. } | Rule::Muon { momentum, .. }) => Momentum::One(*momentum),
        (None, _) => Momentum::One(0.0),
    }
}
