//! What the commands of `accelerate` have in common: their flags, and how they are read and refused.

use crate::config::flags::{Abbreviations, Flags, Parsed};
use crate::config::keys::{Row, Status, ValueType};
use crate::config::{Problem, Problems, Words, resolve};
use crate::console::{Failure, Outcome, print};

/// The version of Accelerate whose commands, files and words these are.
pub const ACCELERATE: &str = "1.15.0";

/// A command without flags, on which the commands below build.
pub(super) const COMMAND: Flags = Flags {
    command: "accelerate",
    bare_switches: false,
    operands: "",
    example: "accelerate launch src/train.py recipes/sft.yaml",
    about: "",
    keys: &[],
    aliases: &[],
    abbreviations: Abbreviations::AllBut(&[]),
};

/// The flags of a command with at most so many operands, in any order; `None` if the command only showed its help.
pub(super) fn parse(flags: &Flags, words: &Words, operands: usize) -> Result<Option<Parsed>, Failure> {
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
pub(super) fn refuse(message: impl Into<String>, help: impl Into<String>) -> Outcome {
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

oarlock_config::key_table! {
    /// The flags of commands that read a configuration and nothing else.
    pub(super) const KEYS = [
        CONFIG_FILE: Option<String> = Row::flag(ValueType::Path, "config_file", "", Status::Used, "The file; by default default_config.yaml in $HF_HOME/accelerate, else in huggingface/accelerate of the cache"),
    ];
}
