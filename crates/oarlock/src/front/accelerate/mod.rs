//! `accelerate`: the commands of Hugging Face's Accelerate.

mod exported;
mod file;
mod launch;
mod launch_flags;
mod machines;
mod strategy;

#[cfg(test)]
mod tests;

use std::time::SystemTime;

use crate::config::keys::nearest_of;
use crate::config::{Problem, Words};
use crate::console::{Failure, Outcome, say};

/// A command of `accelerate`.
struct Subcommand {
    name: &'static str,
    about: &'static str,
    /// Runs it with the words that follow its name.
    run: fn(&Words, SystemTime) -> Outcome,
}

/// All of them.
const SUBCOMMANDS: &[Subcommand] = &[Subcommand {
    name: "launch",
    about: "Starts a training or a program on several processes",
    run: launch::run,
}];

/// Runs `accelerate`.
pub(super) fn run(words: &[String], started: SystemTime) -> Outcome {
    let words = Words::new(words);
    let name = match words.get(0) {
        None | Some("--help" | "-h" | "help") => return say(&help()),
        Some(name) => name.replace('_', "-"),
    };
    match SUBCOMMANDS.iter().find(|subcommand| subcommand.name == name) {
        Some(subcommand) => (subcommand.run)(&words.from(1), started),
        None => {
            let problem =
                Problem::new(format!("`accelerate` has no command `{name}`")).at(&words.place(0), "");
            let names = SUBCOMMANDS.iter().map(|subcommand| subcommand.name);
            let help = match nearest_of(&name, names.clone()) {
                Some(near) => format!("did you mean `accelerate {near}`?"),
                None => format!("there are {}", names.collect::<Vec<_>>().join(", ")),
            };
            Err(Failure::Problems(problem.help(help).into()))
        }
    }
}

/// Runs `accelerate-launch`.
pub(super) fn run_launch(words: &[String], started: SystemTime) -> Outcome {
    launch::run(&Words::new(words), started)
}

fn help() -> String {
    let mut out = "Runs a training on several processes.\n\nUsage: accelerate COMMAND [flags]\n\n".to_owned();
    for Subcommand { name, about, .. } in SUBCOMMANDS {
        out.push_str(&format!("  {name:16}{about}\n"));
    }
    out.push_str("\n`accelerate COMMAND --help` lists the flags of a command.\n");
    out
}
