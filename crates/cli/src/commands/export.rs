//! `oarlock export`: a base with its adapters as one model.

use crate::console::Outcome;
use crate::front::llamafactory;

/// Runs the command.
pub(super) fn run(words: &[String]) -> Outcome {
    llamafactory::export(words)
}
