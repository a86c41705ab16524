//! `torchrun`: its flags and variables as a launch.

mod flags;
mod meaning;
#[cfg(test)]
mod tests;

use std::time::SystemTime;

use crate::config::written::{Authority, Entry, Layer};
use crate::config::{Problems, Words, resolve};
use crate::console::{Failure, Outcome, say};
use crate::front::job::Job;
use crate::front::script::{self, Call};
use crate::launch;
use flags::FLAGS;

/// Runs the command.
pub(crate) fn run(words: &[String], started: SystemTime) -> Outcome {
    let list = Words::new(words);
    if FLAGS.parse(&list, &mut Problems::default()).help {
        return say(&FLAGS.help());
    }
    let again = std::iter::once("torchrun".to_owned()).chain(words.iter().cloned()).collect();
    let read = |name: &str| std::env::var(name).ok();
    job(again, &list, &read).map_err(Failure::Problems)?.run(started)
}

/// The job that words and variables describe; `read` looks up a variable.
fn job(again: Vec<String>, words: &Words, read: &dyn Fn(&str) -> Option<String>) -> Result<Job, Problems> {
    let mut problems = Problems::default();
    let mut parsed = FLAGS.parse(words, &mut problems);
    FLAGS.read_environment("PET_", read, &mut parsed.settings, &mut problems);
    resolve::refuse(&mut parsed.settings, &mut problems);
    let launch = meaning::launch(&parsed.settings, read, &mut problems);
    let call = Call { module: parsed.settings.bool("module"), no_python: parsed.settings.bool("no_python") };
    if call.module && call.no_python {
        let text = "`--module` and `--no-python` exclude each other";
        problems.push(
            parsed.settings.problem(text, &["module", "no_python"]).help("a module is Python; leave out one"),
        );
    }
    // It takes precedence, as in the original.
    let call = if parsed.settings.bool("run_path") { Call::default() } else { call };
    let script = match script::resolve(&parsed.rest, call, "torchrun") {
        Ok(script) => Some(script),
        Err(more) => {
            problems.append(more);
            None
        }
    };
    let (Some(script), true) = (script, problems.is_empty()) else { return Err(problems) };
    // A rank is told by its launcher, which may have bound it to fewer cores than --nproc-per-node counted.
    let said = (!launch::is_our_rank()).then(|| {
        let location = parsed.settings.get("nproc_per_node").location().cloned();
        let location = location.unwrap_or_else(|| words.location(words.len()));
        let ranks = launch.place(0, 0).world_size().to_string();
        Layer {
            authority: Authority::MustAgree,
            entries: vec![Entry::new("num_processes", ranks, &location)],
        }
    });
    Job::new(again, launch, script, said.into_iter().collect(), &parsed)
}
