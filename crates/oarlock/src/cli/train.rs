//! `oarlock train`: the training of a configuration file on this machine.

use std::time::SystemTime;

use crate::config::{Words, explain, train_config, written};
use crate::console::{Failure, Outcome, say};
use crate::front::job::{Job, Program};
use crate::launch::Launch;

/// Runs the command; `started` is when this process began.
pub(super) fn run(words: &[String], started: SystemTime) -> Outcome {
    let arguments = written::arguments(&Words::new(words)).map_err(Failure::Problems)?;
    if arguments.help || words.is_empty() {
        say(&explain::help())?;
        return if arguments.help { Ok(()) } else { Err(Failure::Told(2)) };
    }
    let config = train_config(&arguments, &|name| std::env::var(name).ok()).map_err(Failure::Problems)?;
    let again = std::iter::once("train".to_owned()).chain(words.iter().cloned());
    let job = Job {
        words: again.collect(),
        launch: Launch::local(config.ranks.num_processes),
        program: Program::Training(Box::new(config)),
        notes: Vec::new(),
        dry_run: arguments.dry_run,
        print_config: arguments.print_config,
    };
    job.run(started)
}
