//! A Chrome trace of each rank: what its ops and collectives took, for chrome://tracing or Perfetto.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::accelerator::handle::Accelerator;
use crate::{Error, Result};

/// How [`Accelerator::profile`] runs. The fields are those of Accelerate's `ProfileKwargs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileConfig {
    /// Which steps are recorded; all that runs, where there is none.
    pub schedule: Option<ProfileSchedule>,
    /// Where each rank writes its `profile_{rank}.json`; nothing is written without.
    pub output_trace_dir: Option<PathBuf>,
}

/// Which steps are recorded, as in torch: after `skip_first` steps, cycles of `wait`, `warmup` and `active` ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileSchedule {
    /// Steps of a cycle in which nothing is recorded.
    pub wait: usize,
    /// Steps in which it is and is thrown away.
    pub warmup: usize,
    /// Steps that are kept; at least one.
    pub active: usize,
    /// Cycles; 0 for no end.
    pub repeat: usize,
    /// Steps before the first cycle.
    pub skip_first: usize,
}

impl Default for ProfileSchedule {
    fn default() -> ProfileSchedule {
        ProfileSchedule { wait: 0, warmup: 0, active: 1, repeat: 0, skip_first: 0 }
    }
}

/// What becomes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Ignore,
    Warm,
    Keep,
}

impl ProfileSchedule {
    fn action(&self, step: usize) -> Action {
        let Some(step) = step.checked_sub(self.skip_first) else { return Action::Ignore };
        let cycle = self.wait + self.warmup + self.active;
        let (done, step) = (step / cycle, step % cycle);
        match step {
            _ if self.repeat > 0 && done >= self.repeat => Action::Ignore,
            step if step < self.wait => Action::Ignore,
            step if step < self.wait + self.warmup => Action::Warm,
            _ => Action::Keep,
        }
    }
}

/// The calls of one op or collective, for [`Profiler::key_averages`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAverage {
    /// Its name.
    pub key: String,
    /// Calls.
    pub count: u64,
    /// Their time.
    pub total: Duration,
}

/// Records what this rank does inside of [`Accelerator::profile`].
pub struct Profiler {
    accelerator: Accelerator,
    schedule: Option<ProfileSchedule>,
    /// Common to all ranks, as well as a meeting of them can make it.
    origin: Instant,
    step: usize,
    step_start: Instant,
    events: Vec<Value>,
    keys: BTreeMap<String, (u64, Duration)>,
    threads: Vec<ThreadId>,
}

impl Profiler {
    /// A step of the loop is over. Without a schedule it only marks the step in the trace.
    pub fn step(&mut self) {
        self.collect();
        self.step += 1;
        self.begin();
    }

    /// What is kept so far, by op and collective, the longest first.
    pub fn key_averages(&self) -> Vec<KeyAverage> {
        let keys = self.keys.iter();
        let mut all: Vec<KeyAverage> =
            keys.map(|(key, &(count, total))| KeyAverage { key: key.clone(), count, total }).collect();
        all.sort_by_key(|key| std::cmp::Reverse(key.total));
        all
    }

    fn action(&self) -> Action {
        self.schedule.map_or(Action::Keep, |schedule| schedule.action(self.step))
    }

    fn begin(&mut self) {
        self.step_start = Instant::now();
        if self.action() != Action::Ignore {
            self.accelerator.device().profile().enable_events();
            self.accelerator.communicator().start_trace();
        }
    }

    /// Ends a step: takes what was recorded, and keeps it where the schedule says so.
    fn collect(&mut self) {
        let ops = self.accelerator.device().profile().take_events();
        let collectives = self.accelerator.communicator().take_trace();
        if self.action() != Action::Keep {
            return;
        }
        let own = self.thread(std::thread::current().id());
        let step = format!("ProfilerStep#{}", self.step);
        let (start, time) = (self.step_start, self.step_start.elapsed());
        self.complete(&step, "user_annotation", own, (start, time), json!({}));
        for op in ops {
            self.count(op.op, op.time);
            let args = json!({ "flops": op.flops, "bytes": op.bytes });
            let thread = self.thread(op.thread);
            self.complete(op.op, "cpu_op", thread, (op.start, op.time), args);
        }
        for call in collectives {
            let name = call.operation.name();
            self.count(name, call.time);
            let site = format!("{}:{}", call.file, call.line);
            let args = json!({ "bytes": call.bytes, "ranks": call.ranks, "site": site });
            self.complete(name, "collective", own, (call.start, call.time), args);
        }
    }

    fn count(&mut self, key: &str, time: Duration) {
        let (count, total) = self.keys.entry(key.to_owned()).or_default();
        *count += 1;
        *total += time;
    }

    /// The number of a thread, in the order in which they came.
    fn thread(&mut self, id: ThreadId) -> usize {
        self.threads.iter().position(|&thread| thread == id).unwrap_or_else(|| {
            self.threads.push(id);
            self.threads.len() - 1
        })
    }

    fn complete(
        &mut self,
        name: &str,
        cat: &str,
        tid: usize,
        (start, time): (Instant, Duration),
        args: Value,
    ) {
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let ts = micros(start.saturating_duration_since(self.origin));
        let pid = self.accelerator.process_index();
        self.events.push(json!({
            "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": micros(time), "args": args
        }));
    }

    /// The trace in the format of Chrome.
    fn trace(&self) -> Value {
        let rank = self.accelerator.process_index();
        let mut events = vec![json!({
            "ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": { "name": format!("rank {rank}") }
        })];
        events.extend((0..self.threads.len()).map(|tid| {
            json!({
                "ph": "M", "name": "thread_name", "pid": rank, "tid": tid,
                "args": { "name": format!("thread {tid}") }
            })
        }));
        events.extend(self.events.iter().cloned());
        json!({
            "schemaVersion": 1,
            "displayTimeUnit": "ms",
            "distributedInfo": { "rank": rank, "world_size": self.accelerator.num_processes() },
            "traceEvents": events,
        })
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // Whatever ends the loop, nothing goes on recording.
        self.accelerator.device().profile().take_events();
        self.accelerator.communicator().take_trace();
    }
}

impl Accelerator {
    /// Records what the ops and collectives of this rank take while `body` runs, all of it or the steps of a schedule
    /// (`profiler.step()` ends one), and writes `profile_{rank}.json` into `output_trace_dir`. Times are of the thread
    /// that calls; all ranks' begin at one moment, so traces of several ranks can be looked at together. All ranks call
    /// it.
    ///
    /// torch writes a file for each cycle of a schedule; here all kept steps are in one.
    ///
    /// # Errors
    /// A schedule that keeps no step; what `body` reports; a file that cannot be written; a failed rank.
    #[track_caller]
    pub fn profile<R>(
        &self,
        config: &ProfileConfig,
        body: impl FnOnce(&mut Profiler) -> Result<R>,
    ) -> Result<R> {
        if config.schedule.is_some_and(|schedule| schedule.active == 0) {
            return Err(Error::Usage(
                "profile: a schedule keeps at least one step, and `active` is 0".to_owned(),
            ));
        }
        self.communicator().barrier()?;
        let origin = Instant::now();
        let mut profiler = Profiler {
            accelerator: self.clone(),
            schedule: config.schedule,
            origin,
            step: 0,
            step_start: origin,
            events: Vec::new(),
            keys: BTreeMap::new(),
            threads: Vec::new(),
        };
        profiler.begin();
        let result = body(&mut profiler)?;
        profiler.collect();
        if let Some(dir) = &config.output_trace_dir {
            std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
            let path = dir.join(format!("profile_{}.json", self.process_index()));
            oarlock_files::replace(&path, profiler.trace().to_string()).map_err(Error::io("write", &path))?;
        }
        self.communicator().barrier()?;
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_that_of_torch() {
        use Action::{Ignore, Keep, Warm};
        let schedule = ProfileSchedule { wait: 1, warmup: 1, active: 2, repeat: 2, skip_first: 1 };
        let actions: Vec<Action> = (0..11).map(|step| schedule.action(step)).collect();
        // torch.profiler.schedule(...)(0..11): NONE NONE WARMUP RECORD RECORD_AND_SAVE, the same again, NONE NONE.
        assert_eq!(actions, [Ignore, Ignore, Warm, Keep, Keep, Ignore, Warm, Keep, Keep, Ignore, Ignore]);
        let endless = ProfileSchedule { active: 1, ..ProfileSchedule::default() };
        assert_eq!(endless.action(1000), Keep);
    }
}
