//! What may stand in the place of a word of the command line. The scripts of `oarlock completions` ask for it at each press of
//! the key: `oarlock complete-words --current=WORD -- WORD …`, with the words before it behind the name of the program.
//!
//! Each line of the answer is a kind, a value, a tab and what the value means. `w` is a whole word, and `p` a part of one, which
//! goes on without a blank. `f` stands for all files and `d` for all folders, which the shell lists itself, behind that beginning
//! of the word.

mod candidate;
mod keys;

use std::ffi::OsString;

use clap::{Arg, Args, Command, ValueHint};

use self::candidate::Candidate;
use self::keys::{settings, value_of_flag};
use crate::config::explain::OWN;
use crate::config::flags::Flags;
use crate::console::{Outcome, print};
use crate::front::{self, Follows, recipes};

#[derive(Args)]
pub(super) struct CompleteArgs {
    /// The word up to the cursor
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    current: OsString,
    /// The words before it
    #[arg(last = true)]
    words: Vec<OsString>,
}

/// Prints what may stand there; `program` are the commands of Oarlock itself.
pub(super) fn run(args: &CompleteArgs, mut program: Command) -> Outcome {
    program.build();
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    let words: Vec<String> = args.words.iter().map(text).collect();
    print(&candidates(&program, &words, &text(&args.current)).iter().map(Candidate::line).collect::<String>())
}

/// What may stand behind these words, of all that goes on from what is written of the current one.
fn candidates(program: &Command, words: &[String], current: &str) -> Vec<Candidate> {
    let mut found = match words.split_first().and_then(|(name, rest)| Some((front::find(name)?, rest))) {
        Some((front_end, rest)) => match (front_end.follows)(rest) {
            Follows::Flags(flags) => behind_flags(flags, rest, current),
            Follows::Commands(commands) => {
                commands.iter().map(|(name, about)| Candidate::word(*name, *about)).collect()
            }
            Follows::Training => settings(rest.get(1..).unwrap_or_default(), current, &[]),
            Follows::Unknown => vec![Candidate::files("")],
        },
        None => of_oarlock(program, words, current),
    };
    found.retain(|candidate| candidate.continues(current));
    found
}

/// The same behind the commands of Oarlock itself.
fn of_oarlock(program: &Command, words: &[String], current: &str) -> Vec<Candidate> {
    let (mut command, mut rest) = (program, words);
    while let Some((name, later)) = rest.split_first()
        && let Some(found) = command.find_subcommand(name)
    {
        (command, rest) = (found, later);
    }
    let mut found: Vec<Candidate> = Vec::new();
    if command.has_subcommands() {
        let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
        found.extend(visible.map(|one| Candidate::word(one.get_name(), about(one))));
        if command.get_name() == program.get_name() {
            found.extend(front::ALL.iter().map(|one| Candidate::word(one.names[0], one.about)));
        }
    }
    let Operands { n, waiting, only } = operands(command, rest);
    if let Some(arg) = waiting {
        return values(arg, current, "");
    }
    if let Some((arg, value)) =
        current.split_once('=').and_then(|(flag, _)| Some((long(command, flag)?, flag)))
    {
        return values(arg, current, &format!("{value}="));
    }
    if takes_settings(command) {
        let recipes: &[_] = if command.get_name() == "train" { &recipes::ALL } else { &[] };
        found.extend(settings(rest, current, recipes));
    } else if let Some(arg) = operand(command, n).filter(|_| only || !current.starts_with('-')) {
        found.extend(values(arg, current, ""));
    }
    if current.starts_with('-') && !only {
        found.extend(command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(flag));
    }
    found
}

/// What the words of a command have been so far.
struct Operands<'a> {
    /// How many are no flags.
    n: usize,
    /// The flag that the next word is the value of.
    waiting: Option<&'a Arg>,
    /// No flags follow any more.
    only: bool,
}

fn operands<'a>(command: &'a Command, words: &[String]) -> Operands<'a> {
    let mut found = Operands { n: 0, waiting: None, only: false };
    for word in words {
        if found.waiting.take().is_some() {
            continue;
        }
        match word.as_str() {
            "--" if !found.only => found.only = true,
            word if word.len() > 1 && word.starts_with('-') && !found.only => {
                let arg = long(command, word).or_else(|| short(command, word));
                found.waiting = arg.filter(|arg| takes_value(arg));
            }
            _ => found.n += 1,
        }
    }
    found
}

fn long<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.strip_prefix("--")?;
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    })
}

fn short<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let mut letters = word.strip_prefix('-')?.chars();
    let (letter, rest) = (letters.next()?, letters.next());
    command.get_arguments().find(|arg| arg.get_short() == Some(letter) && rest.is_none())
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|n| n.takes_values())
}

/// The operand of this number, or the last one, where that takes many.
fn operand(command: &Command, n: usize) -> Option<&Arg> {
    let all: Vec<&Arg> = command.get_positionals().collect();
    let last = all.last().filter(|last| last.get_num_args().is_some_and(|n| n.max_values() > 1));
    all.get(n).or(last).copied()
}

/// Whether the words of a command are a configuration and settings.
fn takes_settings(command: &Command) -> bool {
    let is_setting = |arg: &Arg| {
        arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.contains("key=value")))
    };
    command.get_positionals().any(is_setting)
}

/// The values of an argument behind what is written before them. Of several, those before the last comma stay.
fn values(arg: &Arg, current: &str, behind: &str) -> Vec<Candidate> {
    let listed = current.rsplit_once(',').filter(|_| arg.get_value_delimiter() == Some(','));
    let behind = listed.map_or(behind.to_owned(), |(before, _)| format!("{before},"));
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        let visible = possible.iter().filter(|value| !value.is_hide_set());
        let help =
            |help: Option<&clap::builder::StyledStr>| help.map(ToString::to_string).unwrap_or_default();
        let word = |value: &clap::builder::PossibleValue| {
            Candidate::word(format!("{behind}{}", value.get_name()), help(value.get_help()))
        };
        return visible.map(word).collect();
    }
    match arg.get_value_hint() {
        ValueHint::AnyPath | ValueHint::FilePath => vec![Candidate::Files { behind }],
        ValueHint::DirPath => vec![Candidate::Folders { behind }],
        _ => Vec::new(),
    }
}

/// A flag of a command, with what it means.
fn flag(arg: &Arg) -> Option<Candidate> {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    Some(Candidate::word(format!("--{}", arg.get_long()?), help))
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// What may stand behind the words of a command with a table of flags, which ends with a program or a file.
fn behind_flags(flags: &Flags, words: &[String], current: &str) -> Vec<Candidate> {
    let waiting = words.last().and_then(|last| flags.meant(last)).filter(|key| keys::takes_value(key));
    if let Some(key) = waiting {
        return value_of_flag(key, "");
    }
    if let Some((name, key)) = current.split_once('=').and_then(|(name, _)| Some((name, flags.meant(name)?)))
    {
        return value_of_flag(key, &format!("{name}="));
    }
    if !current.starts_with('-') {
        return vec![Candidate::files("")];
    }
    let used = flags.keys.iter().filter(|key| key.is_used());
    let of_key = used.map(|key| Candidate::word(format!("--{}", key.name), keys::about(key)));
    of_key.chain(OWN.iter().map(|(name, doc)| Candidate::word(format!("--{name}"), *doc))).collect()
}

#[cfg(test)]
mod tests;
