//! `accelerate`: the commands of Hugging Face Accelerate, with the same files and the same words.

mod checks;
mod checks_training;
mod cluster;
mod command;
mod dump;
mod env;
mod estimate_memory;
mod exported;
mod launch;
mod machines;
mod merge_weights;
mod questionnaire;
mod scalar;
mod site;
mod strategy;
mod test;
mod to_fsdp2;

use std::time::SystemTime;

use oarlock_config::nearest::nearest_of;

pub use command::ACCELERATE;

use super::follows::Follows;
use crate::config::flags::Flags;
use crate::config::{Problem, Problems, Words};
use crate::console::{Failure, Outcome, eprint, print};
use crate::error::Error;

/// A command of `accelerate`.
struct Subcommand {
    name: &'static str,
    about: &'static str,
    run: fn(&Words, SystemTime) -> Outcome,
    flags: Option<&'static Flags>,
}

const SUBCOMMANDS: &[Subcommand] = &[
    Subcommand {
        name: "config",
        about: "Ask what a training runs on, and keep the answers in a file",
        run: |words, _| questionnaire::run(words),
        flags: Some(&questionnaire::CONFIG),
    },
    Subcommand {
        name: "env",
        about: "Show versions, the machine and the configuration, for a report of a problem",
        run: |words, _| env::run(words),
        flags: Some(&env::ENV),
    },
    Subcommand {
        name: "launch",
        about: "Start a training run or a program on several processes",
        run: launch::run,
        flags: Some(&launch::LAUNCH),
    },
    Subcommand {
        name: "test",
        about: "Check that the ranks of this machine train as one would",
        run: test::run,
        flags: Some(&test::FLAGS),
    },
    Subcommand {
        name: "estimate-memory",
        about: "Show what a model takes of memory in several dtypes",
        run: |words, _| estimate_memory::run(words),
        flags: Some(&estimate_memory::FLAGS),
    },
    Subcommand {
        name: "merge-weights",
        about: "Put the model in a sharded checkpoint together",
        run: |words, _| merge_weights::run(words),
        flags: Some(&merge_weights::FLAGS),
    },
    Subcommand {
        name: "to-fsdp2",
        about: "Turn a configuration for FSDP 1 into one for FSDP 2",
        run: |words, _| to_fsdp2::run(words),
        flags: Some(&to_fsdp2::FLAGS),
    },
    Subcommand {
        name: "tpu-config",
        about: "Not supported: it prepares TPU machines, and there is no training on TPUs here",
        run: |_, _| Err(Error::Usage(NO_TPU.to_owned()).into()),
        flags: None,
    },
];

/// What `accelerate tpu-config` answers, whatever its arguments.
const NO_TPU: &str = "`accelerate tpu-config` starts commands on TPU machines of Google Cloud; there is no training on TPUs here, so \
                      there is nothing to prepare. A configuration with the answers for a pod can be written with `accelerate config`";

/// Runs `accelerate` with the words that follow its name.
pub(crate) fn run(words: &[String], started: SystemTime) -> Outcome {
    let words = Words::new(words);
    let Some(name) = words.get(0) else {
        eprint(&help());
        return Err(Failure::Reported(1));
    };
    if matches!(name, "-h" | "--help" | "help") {
        return print(&help());
    }
    let normal = name.replace('_', "-");
    match SUBCOMMANDS.iter().find(|command| command.name == normal) {
        Some(command) => (command.run)(&words.from(1), started),
        None => {
            let problem =
                Problem::new(format!("`accelerate` has no command `{name}`")).at(&words.location(0), "");
            let near = nearest_of(&normal, SUBCOMMANDS.iter().map(|command| command.name));
            let help = match near {
                Some(near) => format!("did you mean `accelerate {near}`?"),
                None => "`accelerate --help` lists them".to_owned(),
            };
            Err(Problems::from(problem.help(help)).into())
        }
    }
}

/// What may follow these words behind `accelerate`.
pub(super) fn follows(words: &[String]) -> Follows {
    let Some(name) = words.first() else {
        return Follows::Commands(SUBCOMMANDS.iter().map(|command| (command.name, command.about)).collect());
    };
    let normal = name.replace('_', "-");
    let command = SUBCOMMANDS.iter().find(|command| command.name == normal);
    command.and_then(|command| command.flags).map_or(Follows::Unknown, Follows::Flags)
}

/// What may follow `accelerate-launch`.
pub(super) fn follows_launch() -> Follows {
    Follows::Flags(&launch::LAUNCH)
}

/// Runs `accelerate-launch`.
pub(super) fn run_launch(words: &[String], started: SystemTime) -> Outcome {
    launch::run(&Words::new(words), started)
}

fn help() -> String {
    let lines = SUBCOMMANDS.iter().map(|command| format!("  {:16} {}\n", command.name, command.about));
    format!(
        "The commands of Accelerate {ACCELERATE}, without Python.\n\nUsage: accelerate COMMAND [flags]\n\n{}\n\
         `accelerate COMMAND --help` lists the flags of each.\n",
        lines.collect::<String>()
    )
}

/// What the originals made of the same input; `bench/golden/make_accelerate_cli.py` wrote it.
#[cfg(test)]
fn golden() -> serde_json::Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/accelerate_cli.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[cfg(test)]
mod tests;
