//! A command of ours in the place of one of another program.

use std::os::unix::process::CommandExt;
use std::process::Command;

use oarlock_config::settings::secret::shown_command;

use super::variable::env_var;
use crate::console::{Outcome, eprint};
use crate::error::Error;
use crate::serving::API_KEY;

/// Runs this program with other words, of which the first is the command, and tells so. `idle` has what was written without
/// effect. A server finds the key that other programs look for in `API_KEY`.
pub fn run(words: &[String], idle: &[&str]) -> Outcome {
    let without_effect = match idle.is_empty() {
        true => String::new(),
        false => format!("; without effect here: {}", idle.join(", ")),
    };
    eprint(&format!("note: this is `oarlock {}`{without_effect}\n", shown_command(words)));
    let program = std::env::current_exe().map_err(Error::io("find", "this program"))?;
    let mut command = Command::new(&program);
    if words.first().is_some_and(|word| word == "serve")
        && let Some(key) = env_var("API_KEY")
    {
        command.env(API_KEY, key);
    }
    // It does not return unless it fails.
    let error = command.arg0("oarlock").args(words).exec();
    Err(Error::io("run", program)(error).into())
}
