//! Flags of a command against a table of them: what each front end accepts, with the location at which it was written.
//! Hyphens and underscores are alike, `--flag value` and `--flag=value` too, and of a repeated flag the last counts,
//! as in the originals. Where they take a beginning that only one flag has for the flag, so do we.

use std::fmt::Write as _;

use oarlock_config::lookalikes::is_argument;
use oarlock_config::nearest::nearest_of;
use oarlock_config::settings::keys::{Row, ValueType};
use oarlock_config::settings::location::{Location, Origin};
use oarlock_config::settings::most;
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::resolve::{Settings, wrong_type};

use super::explain::{OWN, described, without_effect};
use super::words::Words;
use super::yaml::Node;

/// The flags of a command.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// How the command is called, for messages and help.
    pub command: &'static str,
    /// Switches never take a value; else the word true or false behind one is its value.
    pub bare_switches: bool,
    /// What follows the flags, for the help; empty if nothing may.
    pub operands: &'static str,
    /// A command line, with which the help begins.
    pub example: &'static str,
    /// What the command does, in a line.
    pub about: &'static str,
    /// The flags, by their names without hyphens. A [`ValueType::Bool`] needs no value.
    pub keys: &'static [Row],
    /// Names of one letter, and other names.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Which names may be cut short.
    pub abbreviations: Abbreviations,
}

/// Which flags a beginning of their name stands for, if it is that of no other: argparse's `allow_abbrev`.
#[derive(Clone, Copy, Debug)]
pub enum Abbreviations {
    /// None: the original forbids it.
    None,
    /// All but these, which the original does not have.
    AllBut(&'static [&'static str]),
}

/// What a name means.
enum Named {
    Flag(&'static Row),
    Help,
    /// It begins several names.
    Ambiguous(Vec<&'static str>),
    Unknown,
}

/// What was read.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// One setting for every flag.
    pub settings: Settings,
    /// What follows the flags: the first word that is none, and all after it.
    pub rest: Words,
    /// `--dry-run`.
    pub dry_run: bool,
    /// `--print-config`.
    pub print_config: bool,
    /// `--help` or `-h`.
    pub help: bool,
}

impl Flags {
    /// Reads flags up to the first word that is none (or `--`). A wrong one is reported, and the others are still read.
    pub fn parse(&self, words: &Words, problems: &mut Problems) -> Parsed {
        let settings = Settings::of(self.keys);
        let mut out = Parsed {
            settings,
            rest: words.from(words.len()),
            dry_run: false,
            print_config: false,
            help: false,
        };
        let mut i = 0;
        while let Some(word) = words.get(i) {
            if word == "--" {
                out.rest = words.from(i + 1);
                break;
            }
            let Some(body) = word.strip_prefix('-').filter(|body| !body.is_empty()) else {
                if is_argument(word) {
                    problems.push(self.unknown(word, &words.location(i)));
                    i += 1;
                    continue;
                }
                out.rest = words.from(i);
                break;
            };
            let body = body.strip_prefix('-').unwrap_or(body);
            let start = word.len() - body.len();
            let (name, attached) = match body.split_once('=') {
                Some((name, _)) => (name, Some(words.part(i, start + name.len() + 1..word.len()))),
                None => (body, None),
            };
            let location = words.part(i, start..start + name.len());
            match name.replace('_', "-").as_str() {
                "dry-run" => out.dry_run = true,
                "print-config" => out.print_config = true,
                _ => match self.named(name, word.starts_with("--")) {
                    Named::Help => out.help = true,
                    wrong @ (Named::Ambiguous(_) | Named::Unknown) => {
                        let (problem, meant) = match wrong {
                            Named::Ambiguous(names) => {
                                (ambiguous(name, &names, &location), names.last().copied())
                            }
                            _ => (self.unknown(name, &location), self.nearest(name)),
                        };
                        problems.push(problem);
                        // The value of a flag with a slip in its name is not a program to start.
                        let meant = meant.and_then(|near| self.find(near));
                        let has_value = attached.is_none()
                            && words.get(i + 1).is_some_and(|next| {
                                meant.is_some_and(|key| takes(key, next, self.bare_switches))
                            });
                        i += usize::from(has_value);
                    }
                    Named::Flag(key) => {
                        // The last word of a launcher is what it starts, also where that is called `true`.
                        let program = !self.operands.is_empty() && words.get(i + 2).is_none();
                        let bare = self.bare_switches || program;
                        let next =
                            words.get(i + 1).filter(|next| attached.is_none() && takes(key, next, bare));
                        let value = attached.or(next.map(|_| words.location(i + 1)));
                        if let Err(problem) = self.settle(key, &location, value, &mut out.settings) {
                            problems.push(problem);
                        }
                        i += usize::from(next.is_some());
                    }
                },
            }
            i += 1;
        }
        out
    }

    /// Takes flags that nobody wrote from variables, `PREFIX_NAME`; `read` looks up a variable. A wrong one is reported,
    /// and the others are still read.
    pub fn read_environment(
        &self,
        prefix: &str,
        read: &dyn Fn(&str) -> Option<String>,
        settings: &mut Settings,
        problems: &mut Problems,
    ) {
        for key in self.keys {
            if settings.setting(key).location().is_some() {
                continue;
            }
            let name = format!("{prefix}{}", key.name.to_uppercase());
            let Some(value) = read(&name) else { continue };
            let location = Location::of_variable(&name, &value);
            if let Err(problem) = self.settle(key, &location, Some(location.clone()), settings) {
                problems.push(problem);
            }
        }
    }

    /// The flag that a word with its hyphens means, if it means one and has no value of its own.
    pub fn meant(&self, word: &str) -> Option<&'static Row> {
        let (name, long) = match word.strip_prefix("--") {
            Some(name) => (name, true),
            None => (word.strip_prefix('-')?, false),
        };
        match self.named(name, long) {
            Named::Flag(key) => Some(key),
            _ => None,
        }
    }

    /// What somebody wrote: a name, or with `long` the beginning of one.
    fn named(&self, name: &str, long: bool) -> Named {
        const HELP: &str = "help";
        // A name of one letter has one hyphen.
        let short = name.len() == 1;
        if name == HELP || (name == "h" && !long) {
            return Named::Help;
        }
        if let Some(key) = self.find(name).filter(|_| !(short && long)) {
            return Named::Flag(key);
        }
        let Abbreviations::AllBut(own) = self.abbreviations else { return Named::Unknown };
        let normal = name.replace('-', "_");
        let others = self.aliases.iter().map(|(alias, _)| *alias).filter(|alias| alias.len() > 1);
        let names: Vec<&str> = std::iter::once(HELP)
            .chain(self.keys.iter().map(|key| key.name).filter(|name| !own.contains(name)))
            .chain(others)
            .filter(|name| long && !normal.is_empty() && name.starts_with(&normal))
            .collect();
        let mut meant = names.iter().map(|name| self.find(name));
        match meant.next() {
            None => Named::Unknown,
            // Two names of one flag are not two flags.
            Some(first) if meant.any(|other| other.map(|key| key.name) != first.map(|key| key.name)) => {
                Named::Ambiguous(names)
            }
            Some(Some(key)) => Named::Flag(key),
            Some(None) => Named::Help,
        }
    }

    fn find(&self, name: &str) -> Option<&'static Row> {
        let normal = name.replace('-', "_");
        let name =
            self.aliases.iter().find(|(alias, _)| *alias == normal).map_or(normal.as_str(), |(_, key)| key);
        self.keys.iter().find(|key| key.name == name)
    }

    fn nearest(&self, name: &str) -> Option<&'static str> {
        let names = self.keys.iter().map(|key| key.name).chain(OWN.iter().map(|(name, _)| *name));
        nearest_of(&name.replace('-', "_"), names)
    }

    fn settle(
        &self,
        key: &'static Row,
        location: &Location,
        value: Option<Location>,
        settings: &mut Settings,
    ) -> Result<(), Problem> {
        let node = match value {
            Some(location) => Node::scalar(location.text(), location.clone()),
            None if key.value_type == ValueType::Bool => Node::scalar("true", location.clone()),
            None => {
                let message = format!("`--{}` needs a value: {}", key.name, key.value_type.describe());
                return Err(Problem::new(message).at(location, ""));
            }
        };
        let read = most::read(key, &node).ok_or_else(|| wrong_type(key, &node, &node.location))?;
        if let Some(setting) = settings.find_mut(key.name) {
            setting.value = read;
            setting.origin = Origin::Written(node.location);
        }
        Ok(())
    }

    fn unknown(&self, name: &str, location: &Location) -> Problem {
        let hyphens = if is_argument(name) { "" } else { "--" };
        let problem =
            Problem::new(format!("`{}` has no flag `{hyphens}{name}`", self.command)).at(location, "");
        match self.nearest(name) {
            Some(near) => problem.help(format!("did you mean `--{near}`?")),
            None => problem.help(format!("`{} --help` lists them", self.command)),
        }
    }

    /// The help text.
    pub fn help(&self) -> String {
        let mut out =
            format!("Example: {}\n\n{}\n\nUsage: {} [flags]", self.example, self.about, self.command);
        if !self.operands.is_empty() {
            let _ = write!(out, " {}", self.operands);
        }
        out.push_str("\n\n");
        let left = |key: &Row| match key.value_type {
            ValueType::Bool => format!("--{}", key.name),
            value_type => format!("--{} {}", key.name, value_type.placeholder()),
        };
        let width = self.keys.iter().map(|key| left(key).len()).max().unwrap_or(0).min(44);
        for key in self.keys {
            let _ = writeln!(out, "  {:width$}  {}{}", left(key), described(key), without_effect(key));
        }
        for (name, doc) in OWN {
            let _ = writeln!(out, "  {:width$}  {doc}", format!("--{name}"));
        }
        out
    }
}

fn ambiguous(name: &str, names: &[&str], location: &Location) -> Problem {
    let names: Vec<String> = names.iter().map(|name| format!("--{name}")).collect();
    Problem::new(format!("ambiguous option: --{name} could match {}", names.join(", "))).at(location, "")
}

/// Compares what words mean as flags of a command with what the original's parser takes them for
/// (`bench/golden/make_abbreviations.py`).
#[cfg(test)]
pub(crate) fn assert_abbreviations(flags: &Flags, command: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/abbreviations.json");
    let all: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let words = all[command].as_object().unwrap();
    assert!(words.len() > 5, "{command}");
    let flag = |name: &str| match flags.find(name) {
        Some(key) => key.name,
        None if name == "help" => "help",
        None => panic!("`{command}` has no --{name}"),
    };
    for (word, theirs) in words {
        let mut theirs: Vec<&str> =
            theirs.as_array().unwrap().iter().map(|name| flag(name.as_str().unwrap())).collect();
        theirs.sort_unstable();
        theirs.dedup();
        let name = word.strip_prefix("--").unwrap();
        let mut ours = match flags.named(name, true) {
            Named::Flag(key) => vec![key.name],
            Named::Help => vec!["help"],
            Named::Ambiguous(names) => names.into_iter().map(flag).collect(),
            Named::Unknown => Vec::new(),
        };
        ours.sort_unstable();
        ours.dedup();
        assert_eq!(ours, theirs, "{command} {word}");
    }
}

/// Whether the word after a flag is its value: a switch takes one only if it is true or false.
fn takes(key: &Row, next: &str, bare_switches: bool) -> bool {
    match key.value_type {
        ValueType::Bool if bare_switches => false,
        ValueType::Bool => next.eq_ignore_ascii_case("true") || next.eq_ignore_ascii_case("false"),
        // A negative number is a value, and so are words with a blank between them; another word that begins like a
        // flag is one.
        _ => !next.starts_with('-') || next.contains(' ') || next.parse::<f64>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use oarlock_config::settings::keys::Status;

    use super::*;

    const fn key(value_type: ValueType, name: &'static str, status: Status) -> Row {
        Row::flag(value_type, name, "", status, "a flag")
    }

    oarlock_config::key_table! {
        /// Some flags.
        const KEYS = [
            NPROC_PER_NODE: Option<usize> = key(ValueType::Int(1), "nproc_per_node", Status::Used),
            STANDALONE: bool = key(ValueType::Bool, "standalone", Status::Used),
            ROLE: Option<String> = key(ValueType::Text, "role", Status::Used),
        ];
    }

    const FLAGS: Flags = Flags {
        command: "launch",
        bare_switches: false,
        operands: "SCRIPT …",
        example: "launch train.py",
        about: "Launches.",
        keys: KEYS,
        aliases: &[("r", "role")],
        abbreviations: Abbreviations::AllBut(&[]),
    };

    fn parse(line: &str) -> (Parsed, Problems) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut problems = Problems::default();
        let parsed = FLAGS.parse(&Words::new(&words), &mut problems);
        (parsed, problems)
    }

    #[test]
    fn a_switch_leaves_the_launcher_its_program() {
        let (parsed, _) = parse("--standalone true");
        assert_eq!(parsed.rest.to_vec(), ["true"]);
        let (parsed, _) = parse("--standalone false train.py");
        assert!(!parsed.settings.get(STANDALONE));
        assert_eq!(parsed.rest.to_vec(), ["train.py"]);
    }

    #[test]
    fn every_spelling_is_the_same_flag() {
        for line in ["--nproc-per-node 2", "--nproc_per_node=2", "--nproc-per-node=4 --nproc_per_node 2"] {
            let (parsed, problems) = parse(&format!("{line} --standalone -r x train.py --role y"));
            assert!(problems.is_empty(), "{problems}");
            assert_eq!(parsed.settings.get(NPROC_PER_NODE), Some(2));
            assert!(parsed.settings.get(STANDALONE));
            assert_eq!(parsed.settings.get(ROLE), Some("x"));
            assert_eq!(parsed.rest.to_vec(), ["train.py", "--role", "y"]);
        }
    }

    #[test]
    fn the_beginning_of_one_name_stands_for_it_and_that_of_several_for_none() {
        let (parsed, problems) = parse("--nproc-per 2 --stand --ro=x train.py --nproc 3");
        assert!(problems.is_empty(), "{problems}");
        assert_eq!((parsed.settings.get(NPROC_PER_NODE), parsed.settings.get(STANDALONE)), (Some(2), true));
        assert_eq!(parsed.settings.get(ROLE), Some("x"));
        assert_eq!(parsed.rest.to_vec(), ["train.py", "--nproc", "3"], "what follows is the program's");
        assert!(parse("--he").0.help);
        const TWO: Flags = Flags {
            keys: &[
                key(ValueType::Bool, "no_ssh", Status::Used),
                key(ValueType::Bool, "no_ssh_check", Status::Used),
                key(ValueType::Bool, "no_own", Status::Used),
            ],
            abbreviations: Abbreviations::AllBut(&["no_own"]),
            ..FLAGS
        };
        let reported = |flags: Flags, word: &str| {
            let mut problems = Problems::default();
            flags.parse(&Words::new(&[word.to_owned()]), &mut problems);
            problems.to_string()
        };
        assert!(
            reported(TWO, "--no").ends_with("ambiguous option: --no could match --no_ssh, --no_ssh_check")
        );
        assert_eq!(reported(TWO, "--no-ssh"), "", "a name is not a beginning");
        assert!(reported(TWO, "--no_o").contains("has no flag"), "what the original lacks is written out");
        assert!(reported(TWO, "-no_ssh_c").contains("has no flag"));
        let strict = Flags { abbreviations: Abbreviations::None, ..TWO };
        assert!(reported(strict, "--no_ssh_c").contains("did you mean `--no_ssh_check`?"));
    }

    #[test]
    fn wrong_flags_are_reported_with_their_places() {
        let (parsed, problems) = parse("--nproc_per_nodes 2 x");
        assert_eq!(parsed.rest.to_vec(), ["x"]);
        assert!(problems.to_string().contains("did you mean `--nproc_per_node`?"), "{problems}");
        let (_, problems) = parse("--nproc_per_node two --role");
        assert_eq!(problems.len(), 2, "{problems}");
        assert!(problems.to_string().contains("whole number, at least 1, not"), "{problems}");
        assert!(problems.to_string().contains("`--role` needs a value"), "{problems}");
    }

    #[test]
    fn a_switch_takes_only_words_for_true_and_false() {
        let (parsed, _) = parse("--standalone false x");
        assert!(!parsed.settings.get(STANDALONE));
        let (parsed, _) = parse("--standalone 1");
        assert!(parsed.settings.get(STANDALONE));
        assert_eq!(parsed.rest.to_vec(), ["1"]);
    }

    #[test]
    fn a_bare_switch_takes_none() {
        let words = ["--standalone", "true", "x"].map(str::to_owned);
        let flags = Flags { bare_switches: true, ..FLAGS };
        let parsed = flags.parse(&Words::new(&words), &mut Problems::default());
        assert!(parsed.settings.get(STANDALONE));
        assert_eq!(parsed.rest.to_vec(), ["true", "x"]);
    }

    #[test]
    fn help_names_every_flag() {
        let help = FLAGS.help();
        for key in FLAGS.keys {
            assert!(help.contains(&format!("--{}", key.name)));
        }
        assert!(help.contains("--dry-run") && help.starts_with("Example: launch train.py\n\nLaunches."));
    }
}
