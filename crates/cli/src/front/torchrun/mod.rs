//! `torchrun`: its flags and variables as a launch.

mod flags;
mod meaning;
#[cfg(test)]
mod tests;

use self::flags as keys;
use std::time::SystemTime;

use super::variable::env_var;
use crate::config::environment;
use crate::config::written::{Authority, Entry, Layer};
use crate::config::{Problems, Words, resolve};
use crate::console::{Outcome, print};
use crate::front::job::Job;
use crate::front::script::{self, Call, Script};
use crate::launch;
pub(super) use flags::FLAGS;

/// Runs the command.
pub(crate) fn run(words: &[String], started: SystemTime) -> Outcome {
    let list = Words::new(words);
    if FLAGS.parse(&list, &mut Problems::default()).help {
        return print(&FLAGS.help());
    }
    let again = std::iter::once("torchrun".to_owned()).chain(words.iter().cloned()).collect();
    job(again, &list, &env_var)?.run(started)
}

/// The job that words and variables describe; `read` looks up a variable.
fn job(again: Vec<String>, words: &Words, read: &dyn Fn(&str) -> Option<String>) -> Result<Job, Problems> {
    let mut problems = Problems::default();
    let mut parsed = FLAGS.parse(words, &mut problems);
    FLAGS.read_environment("PET_", read, &mut parsed.settings, &mut problems);
    resolve::refuse(&mut parsed.settings, &mut problems);
    let launch = meaning::launch(&parsed.settings, read, &mut problems);
    let call =
        Call { module: parsed.settings.get(keys::MODULE), no_python: parsed.settings.get(keys::NO_PYTHON) }
            .checked(&parsed.settings, [keys::MODULE.row, keys::NO_PYTHON.row], &mut problems);
    // It takes precedence, as in the original.
    let call = if parsed.settings.get(keys::RUN_PATH) { Call::default() } else { call };
    let script = script::resolve(&parsed.rest, call, "torchrun").map_err(|wrong| problems.append(wrong)).ok();
    let (Some(mut script), true) = (script, problems.is_empty()) else { return Err(problems) };
    if let (Script::Training(training), Some("cpu")) =
        (&mut script, Some(parsed.settings.get(keys::NPROC_PER_NODE)))
        && let Some(location) = parsed.settings.setting(keys::NPROC_PER_NODE).location()
    {
        // Whoever counts cores does not mean ranks that share a GPU; the run's own words come later.
        let entries = vec![environment::device_cpu(location)];
        training.layers.insert(0, Layer { authority: Authority::Replaces, entries });
    }
    // The launcher sets the number for its ranks, which may be bound to fewer cores than --nproc-per-node counted.
    let layer = (!launch::is_our_rank()).then(|| {
        let location = parsed.settings.setting(keys::NPROC_PER_NODE).location().cloned();
        let location = location.unwrap_or_else(|| words.location(words.len()));
        let ranks = launch.worker(0, 0).world_size().to_string();
        Layer {
            // Other machines may have other numbers of ranks.
            authority: if launch.machines() == 1 { Authority::MustAgree } else { Authority::Assumed },
            entries: vec![Entry::new("num_processes", ranks, &location)],
        }
    });
    Job::new(again, launch, script, layer.into_iter().collect(), &parsed)
}
