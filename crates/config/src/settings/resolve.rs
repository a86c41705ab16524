//! Joins what was written in all layers into one setting for every key, each with its origin. Whatever is wrong with a
//! single key is found here; what is wrong between keys is found where the settings become values.

use std::sync::Arc;

use super::keys::{Key, Row, Status, ValueType};
use super::layer::{Authority, Layer};
use super::location::{Location, Origin, ValueSource};
use super::most;
use super::node::{Entry, Node, written_twice};
use super::problem::{Problem, Problems};
use super::read::{Read, Words};
use super::value::{self, Value};
use crate::nearest::nearest_of;

pub use super::value::AUTO;

/// The rule by which a value stands in for one that is not known yet.
const ASSUMED: &str = "assumed until it is known";

/// The resolved value of one key.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The key.
    pub key: &'static Row,
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

    /// Whether its value is `auto`.
    pub fn is_auto(&self) -> bool {
        matches!(&self.value, Value::Text(text) if text == AUTO)
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
    pub fn of(keys: &'static [Row]) -> Self {
        let default =
            |key| Setting { key, value: value::default(key), origin: Origin::Default, broken: false };
        Settings(keys.iter().map(default).collect())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.0.iter()
    }

    /// The setting of a key of the table.
    pub fn setting(&self, key: impl Into<&'static Row>) -> &Setting {
        let key = key.into();
        let found = self.find(key.name);
        debug_assert!(found.is_some(), "`{}` is a key of another table", key.name);
        // What a table does not have, nobody can have written.
        found.unwrap_or(&ABSENT)
    }

    /// The setting of this name, if the table has one.
    pub fn find(&self, name: &str) -> Option<&Setting> {
        self.0.iter().find(|setting| setting.key.name == name)
    }

    /// The value of a key: what was written, or the default.
    pub fn get<T: Read>(&self, key: Key<T>) -> T::Of<'_> {
        T::read(&self.setting(key).value, key.row)
    }

    /// The same as a value of its own.
    pub fn owned<T: Read>(&self, key: Key<T>) -> T {
        T::owned(&self.setting(key).value, key.row)
    }

    /// Words as they were written, `auto` too; empty for none.
    pub fn word<T: Words>(&self, key: Key<T>) -> &str {
        match &self.setting(key).value {
            Value::Text(x) => x,
            _ => "",
        }
    }

    /// What somebody wrote, other than null and `auto`.
    pub fn said(&self, key: impl Into<&'static Row>) -> Option<&Setting> {
        Some(self.setting(key)).filter(|setting| setting.is_written() && !setting.is_auto())
    }

    /// The same with its location.
    pub fn said_at(&self, key: impl Into<&'static Row>) -> Option<(&Setting, &Location)> {
        let setting = self.said(key)?;
        Some((setting, setting.location()?))
    }

    /// Those for which `auto` is written.
    pub fn autos(&mut self) -> impl Iterator<Item = &mut Setting> {
        self.0.iter_mut().filter(|setting| setting.is_auto())
    }

    /// The value of a key, unless only a guess stands in for it until it is known.
    pub fn known<T: Read>(&self, key: Key<T>) -> Option<T::Of<'_>> {
        let setting = self.setting(key);
        let is_guess = matches!(setting.origin, Origin::Rule(ASSUMED));
        (!is_guess).then(|| T::read(&setting.value, setting.key))
    }

    /// A problem of the settings of these keys.
    pub fn problem(&self, message: impl Into<String>, keys: &[&'static Row]) -> Problem {
        let settings: Vec<&Setting> = keys.iter().map(|key| self.setting(*key)).collect();
        at(Problem::new(message), &settings)
    }

    /// Reports a problem of the settings of these keys.
    pub fn report(
        &self,
        problems: &mut Problems,
        message: impl Into<String>,
        keys: &[&'static Row],
        help: impl Into<String>,
    ) {
        problems.push(self.problem(message, keys).help(help));
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

    /// The setting of this name, to be changed.
    pub fn find_mut(&mut self, name: &str) -> Option<&mut Setting> {
        self.0.iter_mut().find(|setting| setting.key.name == name)
    }

    /// Replaces a value by one that follows from other settings.
    pub fn derive(&mut self, key: impl Into<&'static Row>, value: Value, rule: &'static str) {
        if let Some(setting) = self.find_mut(key.into().name) {
            setting.value = value;
            setting.origin = Origin::Rule(rule);
        }
    }
}

/// What stands for the setting of a key that a table does not have.
static ABSENT: Setting = Setting {
    key: &Row::flag(ValueType::Text, "", "", Status::Used, ""),
    value: Value::Null,
    origin: Origin::Default,
    broken: false,
};

/// Adds a layer of settings, later ones over earlier ones; `unknown` is what to say of a name that is not a key. What is
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
    let Some(setting) = settings.find_mut(name) else {
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
fn changes_nothing(key: &Row, value: &Value) -> bool {
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
pub fn wrong_type(key: &Row, node: &Node, location: &Location) -> Problem {
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

#[cfg(test)]
mod tests {
    use super::super::keys::Range::Any;
    use super::super::keys::Status::Used;
    use super::super::keys::ValueType::{Bool, Float, Int, List, Map, Text};
    use super::*;

    super::super::keys::key_table! {
        /// A key of each type.
        const KEYS = [
            SWITCH: bool = Row::flag(Bool, "switch", "", Used, "A switch"),
            UNSET: Option<bool> = Row::flag(Bool, "unset", "", Used, "A switch that may be unset"),
            BLOCK_COUNT: usize = Row::flag(Int(1), "block.count", "8", Used, "A count"),
            OFFSET: i64 = Row::flag(Int(-9), "offset", "-1", Used, "A number"),
            RATE: f64 = Row::flag(Float(Any), "rate", "0.5", Used, "A rate"),
            LIMIT: Option<f64> = Row::flag(Float(Any), "limit", "", Used, "A limit"),
            ROLE: String = Row::flag(Text, "role", "main", Used, "A name"),
            NOTE: Option<String> = Row::flag(Text, "note", "", Used, "Words"),
            NAMES: Vec<String> = Row::flag(List, "names", "", Used, "Names"),
            INNER: Vec<Entry> = Row::flag(Map, "inner", "", Used, "Settings"),
        ];
    }

    #[test]
    fn what_nobody_wrote_is_the_default() {
        let settings = Settings::of(KEYS);
        assert_eq!((settings.get(SWITCH), settings.get(UNSET)), (false, None));
        assert_eq!((settings.get(BLOCK_COUNT), settings.get(OFFSET)), (8, -1));
        assert_eq!((settings.get(RATE), settings.get(LIMIT)), (0.5, None));
        assert_eq!((settings.get(ROLE), settings.get(NOTE)), ("main", None));
        assert!(settings.get(NAMES).is_empty() && settings.get(INNER).is_empty());
    }

    #[test]
    fn auto_is_the_default_and_a_word_as_it_is_written() {
        let mut settings = Settings::of(KEYS);
        for key in KEYS {
            settings.find_mut(key.name).unwrap().value = Value::Text(AUTO.to_owned());
        }
        assert_eq!((settings.get(BLOCK_COUNT), settings.get(RATE), settings.get(LIMIT)), (8, 0.5, None));
        assert_eq!((settings.get(ROLE), settings.get(NOTE)), ("main", None));
        assert_eq!((settings.word(ROLE), settings.word(NOTE)), (AUTO, AUTO));
    }

    #[test]
    fn empty_words_are_no_words() {
        let mut settings = Settings::of(KEYS);
        settings.derive(ROLE, Value::Null, "a test");
        assert_eq!(settings.get(ROLE), "");
    }
}
