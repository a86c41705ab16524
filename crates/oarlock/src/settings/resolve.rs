//! Joins what was written in all layers into one setting for every key, each with its origin. Whatever is wrong with a
//! single key is found here; what is wrong between keys is found where the settings become values.

use std::sync::Arc;

use super::keys::{Key, Status, ValueType};
use super::layer::{Authority, Layer};
use super::location::{Location, Origin, ValueSource};
use super::most;
use super::node::{Entry, Node, written_twice};
use super::problem::{Problem, Problems};
use super::value::{self, Value};
use crate::nearest::nearest_of;

/// What is written where a value is to follow from others.
pub const AUTO: &str = "auto";

/// The rule by which a value stands in for one that is not known yet.
const ASSUMED: &str = "assumed until it is known";

/// The resolved value of one key.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The key.
    pub key: &'static Key,
    /// Its value.
    pub value: Value,
    /// Where the value comes from.
    pub origin: Origin,
    /// Whether a problem was reported for it; then the value is only a stand-in.
    pub broken: bool,
}

impl Setting {
    /// The location at which the value was written, if it was.
    pub fn location(&self) -> Option<&Location> {
        match &self.origin {
            Origin::Written(location) => Some(location),
            Origin::Rule(_) | Origin::Default => None,
        }
    }

    /// Whether somebody wrote a value other than null.
    pub fn is_written(&self) -> bool {
        self.location().is_some() && (self.broken || !matches!(self.value, Value::Null))
    }
}

/// Adds the locations of settings to a problem.
pub fn at(problem: Problem, settings: &[&Setting]) -> Problem {
    settings.iter().fold(problem, |problem, setting| match setting.location() {
        Some(location) => problem.at(location, ""),
        None => problem,
    })
}

/// One setting for every key, in the order of the table.
#[derive(Clone, Debug)]
pub struct Settings(Vec<Setting>);

impl Settings {
    /// The defaults of a table.
    pub fn of(keys: &'static [Key]) -> Self {
        let default =
            |key| Setting { key, value: value::default(key), origin: Origin::Default, broken: false };
        Settings(keys.iter().map(default).collect())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.0.iter()
    }

    /// The setting of a key of the table.
    ///
    /// # Panics
    /// If the table has no such key: a slip in this program, not in its input.
    pub fn get(&self, name: &str) -> &Setting {
        match self.0.iter().find(|setting| setting.key.name == name) {
            Some(setting) => setting,
            None => panic!("`{name}` is not in the table of keys"),
        }
    }

    /// What somebody wrote, other than null and `auto`.
    pub fn said(&self, name: &str) -> Option<&Setting> {
        Some(self.get(name)).filter(|setting| setting.is_written() && !is_auto(setting))
    }

    /// The same with its location.
    pub fn said_at(&self, name: &str) -> Option<(&Setting, &Location)> {
        let setting = self.said(name)?;
        Some((setting, setting.location()?))
    }

    /// Whether `auto` is written.
    pub fn is_auto(&self, name: &str) -> bool {
        is_auto(self.get(name))
    }

    /// Those for which `auto` is written.
    pub fn autos(&mut self) -> impl Iterator<Item = &mut Setting> {
        self.0.iter_mut().filter(|setting| is_auto(setting))
    }

    /// What was written, or the default.
    pub fn value(&self, name: &str) -> Value {
        let setting = self.get(name);
        if is_auto(setting) { value::default(setting.key) } else { setting.value.clone() }
    }

    /// A switch.
    pub fn bool(&self, name: &str) -> bool {
        matches!(self.value(name), Value::Bool(true))
    }

    /// A whole number; 0 for none.
    pub fn int(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Int(x) => x,
            _ => 0,
        }
    }

    /// A count, if there is one.
    pub fn count(&self, name: &str) -> Option<usize> {
        match self.value(name) {
            Value::Int(x) => usize::try_from(x).ok(),
            _ => None,
        }
    }

    /// A count; 0 for none.
    pub fn usize(&self, name: &str) -> usize {
        self.count(name).unwrap_or(0)
    }

    /// The number of all ranks, unless only a guess stands in for it: machines know it once they have met.
    pub fn known_ranks(&self) -> Option<usize> {
        let ranks = self.get("num_processes");
        let is_guess = matches!(ranks.origin, Origin::Rule(ASSUMED));
        self.count("num_processes").filter(|_| !is_guess)
    }

    /// A number; 0 for none.
    pub fn f64(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::Float(x) => x,
            _ => 0.0,
        }
    }

    /// A number of either kind; 0 for none.
    pub fn f64_or_int(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::Int(x) => x as f64,
            _ => self.f64(name),
        }
    }

    /// Words, if there are any.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.value(name) {
            Value::Text(x) => Some(x),
            _ => None,
        }
    }

    /// Words as they were written, `auto` too; empty for none.
    pub fn word(&self, name: &str) -> &str {
        match &self.get(name).value {
            Value::Text(x) => x,
            _ => "",
        }
    }

    /// Names; empty for none.
    pub fn list(&self, name: &str) -> &[String] {
        match &self.get(name).value {
            Value::List(names) => names,
            _ => &[],
        }
    }

    /// Settings inside a setting; empty for none.
    pub fn entries(&self, name: &str) -> &[Entry] {
        match &self.get(name).value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// A problem of the settings with these names.
    pub fn problem(&self, message: impl Into<String>, names: &[&str]) -> Problem {
        let settings: Vec<&Setting> = names.iter().map(|name| self.get(name)).collect();
        at(Problem::new(message), &settings)
    }

    /// Reports a problem of the settings with these names.
    pub fn report(
        &self,
        problems: &mut Problems,
        message: impl Into<String>,
        names: &[&str],
        help: impl Into<String>,
    ) {
        problems.push(self.problem(message, names).help(help));
    }

    /// These, and where nobody wrote one, that of `under`, which are of the same table.
    #[must_use]
    pub fn over(mut self, under: &Settings) -> Settings {
        for (setting, below) in self.0.iter_mut().zip(&under.0) {
            if setting.location().is_none() {
                *setting = below.clone();
            }
        }
        self
    }

    /// The setting of a key, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Setting> {
        self.0.iter_mut().find(|setting| setting.key.name == name)
    }

    /// Replaces a value by one that follows from other settings.
    pub fn derive(&mut self, name: &str, value: Value, rule: &'static str) {
        if let Some(setting) = self.get_mut(name) {
            setting.value = value;
            setting.origin = Origin::Rule(rule);
        }
    }
}

fn is_auto(setting: &Setting) -> bool {
    matches!(&setting.value, Value::Text(text) if text == AUTO)
}

/// Adds a layer of settings, later ones over earlier ones; `unknown` is what to say of a name that is no key. What is
/// asked for in vain is found by [`refuse`], when all has been said.
pub fn add(
    layer: &Layer,
    settings: &mut Settings,
    unknown: &dyn Fn(&Entry) -> Problem,
    problems: &mut Problems,
) {
    for (i, entry) in layer.entries.iter().enumerate() {
        let first = match layer.authority {
            Authority::Replaces => layer.entries[..i].iter().find(|other| other.key == entry.key),
            Authority::MustAgree | Authority::Assumed => None,
        };
        let done = match first {
            Some(first) => Err(written_twice(&entry.key, &entry.location, &first.location)),
            None => settle(entry, layer.authority, settings, unknown),
        };
        if let Err(problem) = done {
            problems.push(problem);
        }
    }
}

/// Reports what was written although it is not there. What counts is the last word: an argument may replace what a
/// file asks for in vain.
pub fn refuse(settings: &mut Settings, problems: &mut Problems) {
    for setting in &mut settings.0 {
        if let Some(problem) = absent(setting) {
            problems.push(problem);
            setting.broken = true;
        }
    }
}

/// What was written and is not there, without refusing it: it can be shown, but not run.
pub fn missing(settings: &Settings) -> Problems {
    settings.iter().filter_map(absent).collect()
}

fn absent(setting: &Setting) -> Option<Problem> {
    let reason = match setting.key.status {
        Status::Later(reason) | Status::Only(reason) => reason,
        Status::Among(there, reason) if !there.iter().any(|name| setting.value.to_string() == *name) => {
            reason
        }
        _ => return None,
    };
    let location =
        setting.location().filter(|_| !setting.broken && !changes_nothing(setting.key, &setting.value))?;
    let message = format!("`{}: {}` is not supported yet", setting.key.name, setting.value);
    Some(Problem::new(message).at(location, "").help(reason))
}

/// Applies one entry.
fn settle(
    entry: &Entry,
    authority: Authority,
    settings: &mut Settings,
    unknown: &dyn Fn(&Entry) -> Problem,
) -> Result<(), Problem> {
    let (name, inner) = match entry.key.split_once('.') {
        Some((name, inner)) => (name, Some(inner)),
        None => (entry.key.as_str(), None),
    };
    let Some(setting) = settings.get_mut(name) else {
        return Err(unknown(entry));
    };
    let key = setting.key;
    let location = if inner.is_some() { &entry.location } else { &entry.value.location };
    // A location of no width (`key:` and nothing) is shown at its key.
    let location = if location.bytes.is_empty() { &entry.location } else { location };

    let value = match inner {
        None => most::read(key, &entry.value),
        Some(inner) if key.value_type == ValueType::Map => {
            let mut entries = match &setting.value {
                Value::Map(entries) => entries.clone(),
                _ => Vec::new(),
            };
            entries.retain(|other| other.key != inner);
            entries.push(Entry { key: inner.to_owned(), ..entry.clone() });
            Some(Value::Map(entries))
        }
        Some(inner) => {
            setting.broken = true;
            return Err(Problem::new(format!("`{name}` has no setting `{inner}` inside it"))
                .at(&entry.location, "")
                .help(format!("`{name}` takes {}", key.value_type.describe())));
        }
    };
    let Some(value) = value else {
        setting.broken = true;
        setting.origin = Origin::Written(location.clone());
        return Err(wrong_type(key, &entry.value, location));
    };
    if matches!(value, Value::Null) && authority == Authority::Replaces {
        // `key: null` asks for the default.
        setting.value = value::default(key);
        setting.origin = Origin::Written(location.clone());
        return Ok(());
    }
    let is_default = |location: &Location| location.source.read_from == ValueSource::Defaults;
    let is_said = setting.location().is_some_and(|location| !is_default(location));
    if authority == Authority::Assumed {
        if !is_said {
            (setting.value, setting.origin) = (value, Origin::Rule(ASSUMED));
        }
        return Ok(());
    }
    if authority == Authority::MustAgree && is_said && !setting.broken {
        if setting.value.agrees(&value) {
            return Ok(());
        }
        return Err(conflict(setting, &value, location));
    }
    setting.value = value;
    setting.origin = Origin::Written(location.clone());
    Ok(())
}

/// The default, false, and a block that is empty or not enabled leave everything as it is.
fn changes_nothing(key: &Key, value: &Value) -> bool {
    let off = match value {
        Value::Bool(false) => key.default.is_empty(),
        Value::Map(entries) => {
            let enabled = entries.iter().find(|entry| entry.key == "enabled");
            entries.is_empty()
                || enabled.is_some_and(|entry| {
                    matches!(value::read(ValueType::Bool, &entry.value), Some(Value::Bool(false)))
                })
        }
        _ => false,
    };
    off || value.agrees(&value::default(key))
}

/// What to say of a value of another type than its key takes.
pub fn wrong_type(key: &Key, node: &Node, location: &Location) -> Problem {
    let problem =
        Problem::new(format!("`{}` takes {}, not {}", key.name, most::describe(key, node), node.describe()))
            .at(location, "");
    let Some(text) = node.word() else { return problem };
    if let ValueType::Choice(names) = key.value_type
        && let Some(name) = nearest_of(text, names.iter().copied())
    {
        return problem.help(format!("did you mean `{name}`?"));
    }
    match key.default {
        "" => problem,
        default => problem.help(format!("the default is {default}")),
    }
}

fn conflict(setting: &Setting, value: &Value, location: &Location) -> Problem {
    let name = setting.key.name;
    let problem = Problem::new(format!("`{name}` is {}, but {location} says {value}", setting.value));
    let problem = match setting.location() {
        Some(first) => problem.at(first, format!("{} here", setting.value)),
        None => problem,
    };
    let same = setting.location().is_some_and(|first| Arc::ptr_eq(&first.source, &location.source));
    let problem = if same { problem.at(location, format!("{value} here")) } else { problem };
    problem.help(match location.source.read_from {
        ValueSource::Environment => {
            format!("remove one of them, or write the same number for `{name}` in both")
        }
        ValueSource::File => {
            "remove one of them, or write the same value in both; \"auto\" in the block takes the other"
                .to_owned()
        }
        _ => "remove one of them, or write the same value in both".to_owned(),
    })
}
