//! `accelerate config`: asks what a training runs on and keeps the answers in a file; `default` asks nothing, `update`
//! brings an older file up to date.

mod answers;
mod ask;
mod item;
mod prompter;
mod table;

#[cfg(test)]
mod tests;

use answers::Answers;
use ask::ask_all;
use prompter::{LinePrompter, PromptError, Prompter, TerminalPrompter};
use serde_json::json;

use super::cluster::{Cluster, config_file, save_or_show};
use super::command::{COMMAND, parse};
use crate::config::flags::Flags;
use crate::config::keys::{Row, Status, ValueType, row};
use crate::config::{Problem, Problems, Words};
use crate::console::{Failure, Outcome, eprint, print};
use crate::error::Error;
use crate::launch::devices::Devices;

pub(super) const CONFIG: Flags = Flags {
    command: "accelerate config",
    operands: "[default|update]",
    example: "accelerate config",
    about: "Asks what a training runs on, and keeps the answers in a file.\n\
            `accelerate config default` asks nothing; `accelerate config update` brings an older file up to date.",
    keys: super::command::KEYS,
    ..COMMAND
};

oarlock_config::key_table! {
    /// The flags of `accelerate config default`.
    const DEFAULT_KEYS = [
        CONFIG_FILE: Option<String> = row(super::command::CONFIG_FILE),
        MIXED_PRECISION: String = Row::flag(ValueType::Choice(&["no", "fp16", "bf16"]), "mixed_precision", "no", Status::Used, "The precision of the arithmetic"),
    ];
}

pub(super) const DEFAULT: Flags = Flags {
    command: "accelerate config default",
    example: "accelerate config default --mixed_precision bf16",
    about: "Writes a file for this machine without asking.",
    keys: DEFAULT_KEYS,
    ..COMMAND
};

pub(super) const UPDATE: Flags = Flags {
    command: "accelerate config update",
    example: "accelerate config update",
    about: "Reads a file of any age, and writes it with today's keys and defaults.",
    keys: super::command::KEYS,
    ..COMMAND
};

/// Runs the command.
pub fn run(words: &Words) -> Outcome {
    match words.get(0) {
        Some("default") => default(&words.from(1)),
        Some("update") => update(&words.from(1)),
        _ => ask(words),
    }
}

fn ask(words: &Words) -> Outcome {
    let Some(parsed) = parse(&CONFIG, words, 1)? else { return Ok(()) };
    match parsed.rest.get(0) {
        None => {}
        Some("default") => return default(&parsed.rest.from(1)),
        Some("update") => return update(&parsed.rest.from(1)),
        Some(other) => {
            let problem = Problem::new(format!("`accelerate config` has no `{other}`"));
            let problem = problem.at(&parsed.rest.location(0), "").help("there are `default` and `update`");
            return Err(Problems::from(problem).into());
        }
    }
    let answered = match TerminalPrompter::here() {
        Some(mut terminal) => configuration(&mut terminal),
        None => {
            configuration(&mut LinePrompter { input: std::io::stdin().lock(), output: std::io::stdout() })
        }
    };
    let cluster = answered.map_err(|error| match error {
        PromptError::Interrupted => {
            eprint(&format!("{error}\n"));
            Failure::Reported(130)
        }
        error => Failure::Error(Error::Usage(error.to_string())),
    })?;
    let path = config_file(&parsed.settings);
    let done = format!("accelerate configuration saved at {}", path.display());
    save_or_show(&path, &cluster.to_text(&path), parsed.dry_run, &done)
}

/// The configuration that the user's answers describe.
fn configuration(prompter: &mut dyn Prompter) -> Result<Cluster, PromptError> {
    let mut answers = Answers::default();
    ask_all(table::QUESTIONS, prompter, &mut answers)?;
    Ok(answers.cluster())
}

fn default(words: &Words) -> Outcome {
    let Some(parsed) = parse(&DEFAULT, words, 0)? else { return Ok(()) };
    let path = config_file(&parsed.settings);
    if path.exists() && !parsed.dry_run {
        return print(&format!(
            "Configuration already exists at {0}, will not override. Run `accelerate config`, or name another file with \
             `--config_file`\n",
            path.display()
        ));
    }
    let precision = parsed.settings.get(MIXED_PRECISION);
    let done = format!("accelerate configuration saved at {}", path.display());
    save_or_show(&path, &basic(&Devices::visible(), precision).to_json(), parsed.dry_run, &done)
}

/// The configuration of one machine: all its GPUs, or its CPU.
fn basic(devices: &Devices, precision: &str) -> Cluster {
    let (gpus, kind) = (devices.gpus, if devices.gpus > 1 { "MULTI_GPU" } else { "NO" });
    let values = json!({
        "distributed_type": kind, "mixed_precision": precision, "use_cpu": gpus == 0, "num_processes": gpus.max(1),
    });
    Cluster::of(values.as_object().cloned().unwrap_or_default())
}

fn update(words: &Words) -> Outcome {
    let Some(parsed) = parse(&UPDATE, words, 0)? else { return Ok(()) };
    let path = config_file(&parsed.settings);
    let cluster = Cluster::read(&path)?;
    let done = format!("Successfully updated the configuration file at {}.", path.display());
    save_or_show(&path, &cluster.to_text(&path), parsed.dry_run, &done)
}
