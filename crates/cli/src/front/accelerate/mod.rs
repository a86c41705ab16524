//! `accelerate`: the commands of Hugging Face Accelerate, with the same files and the same words.

mod checks;
mod checks_training;
mod cluster;
mod dump;
mod env;
mod estimate_memory;
mod exported;
mod launch;
mod machines;
mod merge_weights;
mod questionnaire;
mod scalar;
mod strategy;
mod test;
mod to_fsdp2;

use std::time::SystemTime;

use oarlock_config::nearest::nearest_of;

use crate::config::flags::{Abbreviations, Flags, Parsed};
use crate::config::keys::{Row, Status, ValueType};
use crate::config::{Problem, Problems, Words, resolve};
use crate::console::{Failure, Outcome, eprint, print};
use crate::error::Error;

/// The version of Accelerate whose commands, files and words these are.
pub const ACCELERATE: &str = "1.15.0";

/// A command of `accelerate`.
struct Subcommand {
    name: &'static str,
    about: &'static str,
    run: fn(&Words, SystemTime) -> Outcome,
}

const SUBCOMMANDS: &[Subcommand] = &[
    Subcommand {
        name: "config",
        about: "Ask what a training runs on, and keep the answers in a file",
        run: |words, _| questionnaire::run(words),
    },
    Subcommand {
        name: "env",
        about: "Show versions, the machine and the configuration, for a report of a problem",
        run: |words, _| env::run(words),
    },
    Subcommand {
        name: "launch",
        about: "Start a training run or a program on several processes",
        run: launch::run,
    },
    Subcommand {
        name: "test",
        about: "Check that the ranks of this machine train as one would",
        run: test::run,
    },
    Subcommand {
        name: "estimate-memory",
        about: "Show what a model takes of memory in several dtypes",
        run: |words, _| estimate_memory::run(words),
    },
    Subcommand {
        name: "merge-weights",
        about: "Put the model in a sharded checkpoint together",
        run: |words, _| merge_weights::run(words),
    },
    Subcommand {
        name: "to-fsdp2",
        about: "Turn a configuration for FSDP 1 into one for FSDP 2",
        run: |words, _| to_fsdp2::run(words),
    },
    Subcommand {
        name: "tpu-config",
        about: "Not supported: it prepares TPU machines, and there is no training on TPUs here",
        run: |_, _| Err(Error::Usage(NO_TPU.to_owned()).into()),
    },
];

/// What `accelerate tpu-config` answers, whatever its arguments.
const NO_TPU: &str = "`accelerate tpu-config` starts commands on TPU machines of Google Cloud; there is no training on TPUs here, so \
                      there is nothing to prepare. A configuration with the answers for a pod can be written with `accelerate config`";

/// A command without flags, on which the commands below build.
const COMMAND: Flags = Flags {
    command: "accelerate",
    bare_switches: false,
    operands: "",
    example: "accelerate launch src/train.py recipes/sft.yaml",
    about: "",
    keys: &[],
    aliases: &[],
    abbreviations: Abbreviations::AllBut(&[]),
};

oarlock_config::key_table! {
    /// The flags of commands that read a configuration and nothing else.
    const KEYS = [
        CONFIG_FILE: Option<String> = Row::flag(ValueType::Path, "config_file", "", Status::Used, "The file; by default default_config.yaml in $HF_HOME/accelerate, else in huggingface/accelerate of the cache"),
    ];
}

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

/// The flags of a command with at most so many operands, in any order; `None` if the command only showed its help.
fn parse(flags: &Flags, words: &Words, operands: usize) -> Result<Option<Parsed>, Failure> {
    let mut problems = Problems::default();
    let mut parsed = flags.parse(&operands_last(flags, words), &mut problems);
    if parsed.help {
        print(&flags.help())?;
        return Ok(None);
    }
    resolve::refuse(&mut parsed.settings, &mut problems);
    if parsed.rest.len() > operands {
        let extra = parsed.rest.get(operands).unwrap_or_default();
        let problem = Problem::new(format!("`{}` takes no `{extra}`", flags.command));
        problems.push(
            problem.at(&parsed.rest.location(operands), "").help(format!("see `{} --help`", flags.command)),
        );
    }
    Ok(problems.into_result(|| Some(parsed))?)
}

/// Refuses a command with one problem.
fn refuse(message: impl Into<String>, help: impl Into<String>) -> Outcome {
    Err(Problems::from(Problem::new(message).help(help)).into())
}

/// The words with flags first, as argparse reads them in any order; several values of a list become one.
fn operands_last(flags: &Flags, words: &Words) -> Words {
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            last.extend(words.by_ref().map(str::to_owned));
            break;
        }
        if !word.starts_with('-') {
            last.push(word.to_owned());
            continue;
        }
        first.push(word.to_owned());
        let is_value = |next: &&str| !next.starts_with('-');
        match flags.meant(word).map(|key| key.value_type) {
            Some(ValueType::List) => {
                let mut values = Vec::new();
                while let Some(value) = words.next_if(is_value) {
                    values.push(value);
                }
                first.extend((!values.is_empty()).then(|| values.join(",")));
            }
            Some(kind) if kind != ValueType::Bool => first.extend(words.next_if(is_value).map(str::to_owned)),
            _ => {}
        }
    }
    if !last.is_empty() {
        first.push("--".to_owned());
    }
    first.extend(last);
    Words::new(&first)
}

/// What the originals made of the same input; `bench/golden/make_accelerate_cli.py` wrote it.
#[cfg(test)]
fn golden() -> serde_json::Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/accelerate_cli.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[cfg(test)]
mod tests;
