//! A block of another program's configuration, read against the table of its keys.

use super::deepspeed_keys;
use crate::settings::keys::Row;
use crate::settings::layer::{Authority, Layer};
use crate::settings::location::Origin;
use crate::settings::most;
use crate::settings::node::{Data, Entry, written_twice};
use crate::settings::problem::{Problem, Problems};
use crate::settings::resolve::{self, Setting, Settings, wrong_type};
use crate::settings::value::Value;

/// The ranks of a run.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    /// How many there are, where that is known: machines know it once they have met.
    pub n: Option<i64>,
    /// Whether they compute on GPUs.
    pub on_gpus: bool,
}

impl Ranks {
    /// So many ranks, on GPUs or not.
    pub fn new(n: usize, on_gpus: bool) -> Ranks {
        Ranks { n: Some(i64::try_from(n).unwrap_or(i64::MAX)), on_gpus }
    }
}

/// A block of another program's configuration.
#[derive(Clone, Debug)]
pub struct Dialect {
    /// Whose it is.
    pub title: &'static str,
    /// Its settings, by their paths in the block.
    pub settings: Settings,
}

/// The blocks of a run.
#[derive(Clone, Debug)]
pub struct Dialects {
    /// `deepspeed`.
    pub deepspeed: Option<Dialect>,
    /// `fsdp` and `fsdp_config`.
    pub fsdp: Option<Dialect>,
    /// What the log should say about them.
    pub notes: Vec<String>,
}

impl Dialects {
    /// The blocks there are.
    pub fn iter(&self) -> impl Iterator<Item = &Dialect> {
        self.deepspeed.iter().chain(&self.fsdp)
    }

    /// What the blocks ask for and is not there.
    pub fn missing(&self) -> Problems {
        let mut missing = Problems::default();
        self.iter().for_each(|block| missing.append(resolve::missing(&block.settings)));
        missing
    }
}

/// Reads the file of a block; the second word is what messages call it.
pub type ReadFile<'a> = dyn Fn(&str, &str) -> Result<Vec<Entry>, Problem> + 'a;

impl Dialect {
    /// Reads the entries of a DeepSpeed configuration.
    pub fn deepspeed(entries: &[Entry], problems: &mut Problems) -> Self {
        let mut dialect = Dialect::new("DeepSpeed", deepspeed_keys::KEYS, entries, &str::to_owned, problems);
        // To DeepSpeed a block without keys is one of the usual mode.
        let is_empty = |entry: &&Entry| matches!(&entry.value.data, Data::Map(inner) if inner.is_empty());
        let empty = entries.iter().find(|entry| entry.key == "sparse_attention").filter(is_empty);
        if let (Some(entry), Some(mode)) =
            (empty, dialect.settings.find_mut(deepspeed_keys::SPARSE_ATTENTION_MODE.name()))
        {
            mode.origin = Origin::Written(entry.location.clone());
        }
        dialect
    }

    /// Reads entries against a table; `normal` turns a name at the top into that of the table.
    pub(super) fn new(
        title: &'static str,
        keys: &'static [Row],
        entries: &[Entry],
        normal: &dyn Fn(&str) -> String,
        problems: &mut Problems,
    ) -> Self {
        let mut dialect = Dialect { title, settings: Settings::of(keys) };
        for entry in entries {
            dialect.take(keys, &normal(&entry.key), entry, problems);
        }
        dialect
    }

    /// Reads the entry at `path`: a block, or a setting.
    fn take(&mut self, keys: &'static [Row], path: &str, entry: &Entry, problems: &mut Problems) {
        let prefix = format!("{path}.");
        let has_inner = keys.iter().any(|key| key.name.starts_with(&prefix));
        if let Data::Map(entries) = &entry.value.data
            && has_inner
        {
            for inner in entries {
                self.take(keys, &format!("{prefix}{}", inner.key), inner, problems);
            }
        } else if let Some(setting) = self.settings.find_mut(path) {
            if let Err(problem) = settle(setting, entry) {
                problems.push(problem);
            }
        } else if has_inner && !entry.value.is_null() {
            let message = format!("`{path}` takes a mapping, not {}", entry.value.describe());
            problems.push(Problem::new(message).at(&entry.value.location, ""));
        } else if !has_inner && !is_comment(path) {
            problems.push(self.unknown(keys, path, entry));
        }
    }

    fn unknown(&self, keys: &'static [Row], path: &str, entry: &Entry) -> Problem {
        let (block, name) = path.rsplit_once('.').unwrap_or(("", path));
        let message = match block {
            "" => format!("unknown key `{name}` in the {} configuration", self.title),
            _ => format!("unknown key `{name}` in `{block}`"),
        };
        let problem = Problem::new(message).at(&entry.location, "");
        let inner = |key: &'static Row| match block {
            "" => Some(key.name),
            _ => key.name.strip_prefix(block)?.strip_prefix('.'),
        };
        let siblings = |is_wanted: &dyn Fn(&Row) -> bool| {
            let names = keys.iter().filter(|key| is_wanted(key)).filter_map(inner);
            let mut names: Vec<&str> = names.filter_map(|name| name.split('.').next()).collect();
            names.dedup();
            names
        };
        let elsewhere = keys.iter().find(|key| key.name.rsplit('.').next() == Some(name));
        match elsewhere.and_then(|key| key.name.rsplit_once('.')) {
            Some((home, _)) => problem.help(format!("`{name}` belongs in `{home}`")),
            None => {
                let there = siblings(&Row::is_used).join(", ");
                problem.did_you_mean(name, siblings(&|_| true), format!("there are {there}"))
            }
        }
    }
}

/// Takes what is written for one setting of a block.
///
/// # Errors
/// If it was written before, or is of another type.
pub fn settle(setting: &mut Setting, entry: &Entry) -> Result<(), Problem> {
    let key = setting.key;
    let location =
        if entry.value.location.bytes.is_empty() { &entry.location } else { &entry.value.location };
    if let Some(first) = setting.location() {
        return Err(written_twice(key.name, &entry.location, first));
    }
    setting.origin = Origin::Written(location.clone());
    let auto = entry.value.word() == Some(resolve::AUTO);
    if auto && key.is_used() {
        setting.value = Value::Text(resolve::AUTO.to_owned());
    } else if !auto && !entry.value.is_null() {
        match most::read(key, &entry.value) {
            Some(value) => setting.value = value,
            None => {
                setting.broken = true;
                return Err(wrong_type(key, &entry.value, location));
            }
        }
    }
    Ok(())
}

/// The entries of a setting that holds a block or names its file.
pub(super) fn entries(
    setting: &Setting,
    what: &str,
    file: &ReadFile<'_>,
    problems: &mut Problems,
) -> Option<Vec<Entry>> {
    let path = match &setting.value {
        Value::Map(entries) => return Some(entries.clone()),
        Value::Text(path) => path,
        _ => return None,
    };
    let problem = match file(path, what) {
        Ok(entries) => return Some(entries),
        Err(problem) => problem,
    };
    problems.push(match (problem.location(), setting.location()) {
        (None, Some(location)) => problem.at(location, ""),
        _ => problem,
    });
    None
}

/// Joins what a block says about keys of ours to the settings, with which it must agree.
pub fn join(entries: Vec<Entry>, settings: &mut Settings, problems: &mut Problems) {
    // A block names no key that a table of a training run lacks.
    let unknown =
        |entry: &Entry| Problem::new(format!("unknown key `{}`", entry.key)).at(&entry.location, "");
    resolve::add(&Layer { authority: Authority::MustAgree, entries }, settings, &unknown, problems);
}

/// Whether a number of ranks divides all ranks, where these are known; else it is reported.
pub(super) fn divides(
    block: &Dialect,
    key: &'static Row,
    part: usize,
    ranks: Option<i64>,
    problems: &mut Problems,
) {
    if let Some(ranks) = ranks.filter(|ranks| part as i64 > 0 && ranks % part as i64 != 0) {
        let message = format!("`{}` ({part}) does not divide the {ranks} ranks", key.name);
        block.settings.report(problems, message, &[key], "groups of ranks are of one size");
    }
}

/// Whether a key stands for a comment, as JSON has no other: LLaMA-Factory's files have `_comment`.
fn is_comment(path: &str) -> bool {
    path.rsplit('.').next().is_some_and(|name| name.starts_with('_'))
}
