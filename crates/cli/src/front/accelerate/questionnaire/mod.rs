//! `accelerate config`: asks what a training runs on and keeps the answers in a file; `default` asks nothing, `update`
//! brings an older file up to date.

mod answers;
mod item;
mod person;
mod table;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use answers::{Answers, Person, Silence, ask_all};
use person::{Lines, Terminal};
use serde_json::json;

use super::cluster::{Cluster, default_file, save_or_show};
use super::{CONFIG_FILE, parse};
use crate::config::flags::{Abbreviations, Flags, Parsed};
use crate::config::keys::{Key, Status, ValueType};
use crate::config::{Problem, Words};
use crate::console::{Failure, Outcome, say, tell};
use crate::error::Error;
use crate::launch::devices::Devices;

pub(super) const CONFIG: Flags = Flags {
    command: "accelerate config",
    bare_switches: false,
    operands: "[default|update]",
    about: "Asks what a training runs on, and keeps the answers in a file.\n\
            `accelerate config default` asks nothing; `accelerate config update` brings an older file up to date.",
    keys: &[CONFIG_FILE],
    aliases: &[],
    abbreviations: Abbreviations::AllBut(&[]),
};

pub(super) const DEFAULT: Flags = Flags {
    command: "accelerate config default",
    bare_switches: false,
    operands: "",
    about: "Writes a file for this machine without asking.",
    keys: &[
        CONFIG_FILE,
        Key::flag(
            ValueType::Choice(&["no", "fp16", "bf16"]),
            "mixed_precision",
            "no",
            Status::Used,
            "The precision of the arithmetic",
        ),
    ],
    aliases: &[],
    abbreviations: Abbreviations::AllBut(&[]),
};

pub(super) const UPDATE: Flags = Flags {
    command: "accelerate config update",
    bare_switches: false,
    operands: "",
    about: "Reads a file of any age, and writes it with today's keys and defaults.",
    keys: &[CONFIG_FILE],
    aliases: &[],
    abbreviations: Abbreviations::AllBut(&[]),
};

/// Runs the command.
pub fn run(words: &Words) -> Outcome {
    match words.get(0) {
        Some("default") => default(&words.from(1)),
        Some("update") => update(&words.from(1)),
        _ => ask(words),
    }
}

/// The file that is meant.
fn file(parsed: &Parsed) -> PathBuf {
    parsed
        .settings
        .text("config_file")
        .map_or_else(|| default_file(&|name| std::env::var(name).ok()), PathBuf::from)
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
            return Err(Failure::Problems(problem.into()));
        }
    }
    let asked = match Terminal::here() {
        Some(mut terminal) => asked(&mut terminal),
        None => asked(&mut Lines { input: std::io::stdin().lock(), output: std::io::stdout() }),
    };
    let cluster = asked.map_err(|silence| match silence {
        Silence::Interrupted => {
            tell(&format!("{silence}\n"));
            Failure::Told(130)
        }
        silence => Failure::Error(Error::Usage(silence.to_string())),
    })?;
    let path = file(&parsed);
    let done = format!("accelerate configuration saved at {}", path.display());
    save_or_show(&path, &cluster.to_text(&path), parsed.dry_run, &done)
}

/// The configuration that a person describes.
fn asked(person: &mut dyn Person) -> Result<Cluster, Silence> {
    let mut answers = Answers::default();
    ask_all(table::QUESTIONS, person, &mut answers)?;
    Ok(answers.cluster())
}

fn default(words: &Words) -> Outcome {
    let Some(parsed) = parse(&DEFAULT, words, 0)? else { return Ok(()) };
    let path = file(&parsed);
    if path.exists() && !parsed.dry_run {
        return say(&format!(
            "Configuration already exists at {0}, will not override. Run `accelerate config`, or name another file with \
             `--config_file`\n",
            path.display()
        ));
    }
    let precision = parsed.settings.text("mixed_precision").unwrap_or_default();
    let done = format!("accelerate configuration saved at {}", path.display());
    save_or_show(&path, &basic(&devices(), &precision).to_json(), parsed.dry_run, &done)
}

fn devices() -> Devices {
    Devices::here(std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())
}

/// The configuration of one machine: all its GPUs, or its CPU.
fn basic(devices: &Devices, precision: &str) -> Cluster {
    let (gpus, kind) = (devices.gpus, if devices.gpus > 1 { "MULTI_GPU" } else { "NO" });
    let said = json!({
        "distributed_type": kind, "mixed_precision": precision, "use_cpu": gpus == 0, "num_processes": gpus.max(1),
    });
    Cluster::of(said.as_object().cloned().unwrap_or_default())
}

fn update(words: &Words) -> Outcome {
    let Some(parsed) = parse(&UPDATE, words, 0)? else { return Ok(()) };
    let path = file(&parsed);
    let cluster = Cluster::read(&path).map_err(Failure::Problems)?;
    let done = format!("Successfully updated the configuration file at {}.", path.display());
    save_or_show(&path, &cluster.to_text(&path), parsed.dry_run, &done)
}
