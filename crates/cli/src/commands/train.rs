//! `oarlock train`: the run of a configuration file.

use std::time::SystemTime;

use crate::console::Outcome;
use crate::front::llamafactory;

/// Runs the command; `started` is when this process began.
pub(super) fn run(words: &[String], started: SystemTime) -> Outcome {
    llamafactory::train(words, &llamafactory::Called::OARLOCK, started)
}
