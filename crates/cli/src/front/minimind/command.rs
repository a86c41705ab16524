//! `oarlock train_pretrain`.

use std::time::SystemTime;

use super::flags::{COMMAND, FLAGS};
use super::translation::training;
use crate::config::{Problems, ResolvedConfig, Words};
use crate::console::{Outcome, print};
use crate::front::job::Job;
use crate::front::variable::env_var;
use crate::launch::Launch;

/// Runs `oarlock train_pretrain`; `started` is when this process began.
pub(crate) fn run(words: &[String], started: SystemTime) -> Outcome {
    let read = Words::new(words);
    let mut problems = Problems::default();
    if FLAGS.parse(&read, &mut problems).help {
        return print(&FLAGS.help());
    }
    let training = training(&read, &env_var)?;
    let again = std::iter::once(COMMAND.to_owned()).chain(words.iter().cloned()).collect();
    let launch = |config: &ResolvedConfig| Ok(Launch::local(config.ranks.num_processes));
    Job::of_training(again, training, &env_var, launch)?.run(started)
}
