//! Front ends: what other programs' configurations say, in this program's terms. A block of theirs is read against a
//! table of its keys; what has a key of ours joins the settings as if written there, and must agree with them; what
//! divides states over ranks becomes [`ShardArgs`]. The names of stages and strategies end here.

mod deepspeed;
pub mod deepspeed_keys;
mod fsdp;
pub mod fsdp_keys;
mod left_out;
mod methods;

use super::entry::{Authority, Entry, Layer};
use super::keys::Key;
use super::node::Data;
use super::problem::{Problem, Problems};
use super::resolve::{self, Setting, Settings, wrong_type};
use super::source::Origin;
use super::value::{self, Field, Value};
use crate::config::{LossScale, ShardArgs};
use crate::nearest::nearest_of;

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
pub type ReadFile<'a> = dyn Fn(&str, &str) -> Result<Vec<Field>, Problem> + 'a;

/// Reads the blocks that the settings hold, or name the file of, and joins what they say to the settings.
pub fn read(settings: &mut Settings, file: &ReadFile<'_>, problems: &mut Problems) -> Dialects {
    let mut dialects = Dialects {
        deepspeed: deepspeed::read(settings, file, problems),
        fsdp: fsdp::read(settings, file, problems),
        notes: Vec::new(),
    };
    if dialects.deepspeed.is_some() && dialects.fsdp.is_some() {
        let written = ["deepspeed", "fsdp", "fsdp_config"].map(|name| settings.get(name));
        let problem = Problem::new("`deepspeed` and `fsdp` exclude each other");
        problems.push(resolve::at(problem, &written).help("keep one of them"));
    }
    if let Some(block) = &dialects.deepspeed {
        dialects.notes.extend(deepspeed::scheduler_of_script(block, settings));
        let mut layer = deepspeed::layer(block, settings, problems);
        dialects.notes.extend(deepspeed::rate_of_scheduler(&mut layer, settings));
        resolve::add(&layer, settings, &unknown, problems);
        deepspeed::batch(block, settings, problems);
    }
    left_out::warmup(dialects.deepspeed.as_ref(), settings);
    dialects.notes.extend(dialects.deepspeed.iter().filter_map(|block| left_out::told(block, settings)));
    dialects
}

/// What is sharded across the ranks, and how the loss is scaled.
pub fn shard(dialects: &mut Dialects, ranks: i64, problems: &mut Problems) -> (ShardArgs, LossScale) {
    let notes = &mut dialects.notes;
    match (&dialects.deepspeed, &dialects.fsdp) {
        (Some(block), _) => {
            (deepspeed::shard(block, ranks, notes, problems), deepspeed::loss_scale(block, problems))
        }
        (None, Some(block)) => (fsdp::shard(block, ranks, notes, problems), LossScale::UNSAID),
        (None, None) => (ShardArgs::UNSAID, LossScale::UNSAID),
    }
}

impl Dialect {
    /// Reads the fields of a DeepSpeed configuration.
    pub fn deepspeed(fields: &[Field], problems: &mut Problems) -> Self {
        Dialect::new("DeepSpeed", deepspeed_keys::KEYS, fields, &str::to_owned, problems)
    }

    /// DeepSpeed's learning rate and weight decay for its optimizer, where nobody says them.
    pub fn defaults(&self) -> (f64, f64) {
        left_out::defaults(self)
    }

    /// Reads fields against a table; `normal` turns a name at the top into that of the table.
    fn new(
        title: &'static str,
        keys: &'static [Key],
        fields: &[Field],
        normal: &dyn Fn(&str) -> String,
        problems: &mut Problems,
    ) -> Self {
        let mut dialect = Dialect { title, settings: Settings::of(keys) };
        for field in fields {
            dialect.take(keys, &normal(&field.name), field, problems);
        }
        dialect
    }

    /// Reads the field at `path`: a block, or a setting.
    fn take(&mut self, keys: &'static [Key], path: &str, field: &Field, problems: &mut Problems) {
        let prefix = format!("{path}.");
        let has_inner = keys.iter().any(|key| key.name.starts_with(&prefix));
        let blank = field.value.is_null();
        if let Data::Map(pairs) = &field.value.data
            && has_inner
        {
            for (name, value) in pairs {
                match &name.data {
                    Data::Scalar { text, .. } => {
                        let inner =
                            Field { name: text.clone(), place: name.place.clone(), value: value.clone() };
                        self.take(keys, &format!("{prefix}{text}"), &inner, problems);
                    }
                    _ => problems.push(Problem::new("a key is a word").at(&name.place, "")),
                }
            }
        } else if let Some(setting) = self.settings.get_mut(path) {
            if let Err(problem) = settle(setting, field) {
                problems.push(problem);
            }
        } else if has_inner && !blank {
            let message = format!("`{path}` takes a mapping, not {}", field.value.describe());
            problems.push(Problem::new(message).at(&field.value.place, ""));
        } else if !has_inner {
            problems.push(self.unknown(keys, path, field));
        }
    }

    fn unknown(&self, keys: &'static [Key], path: &str, field: &Field) -> Problem {
        let (block, name) = path.rsplit_once('.').unwrap_or(("", path));
        let message = match block {
            "" => format!("unknown key `{name}` in the {} configuration", self.title),
            _ => format!("unknown key `{name}` in `{block}`"),
        };
        let problem = Problem::new(message).at(&field.place, "");
        let inner = |key: &'static Key| match block {
            "" => Some(key.name),
            _ => key.name.strip_prefix(block)?.strip_prefix('.'),
        };
        let siblings = keys.iter().filter_map(inner).filter_map(|name| name.split('.').next());
        let elsewhere = keys.iter().find(|key| key.name.rsplit('.').next() == Some(name));
        match (nearest_of(name, siblings), elsewhere.and_then(|key| key.name.rsplit_once('.'))) {
            (_, Some((home, _))) => problem.help(format!("`{name}` belongs into `{home}`")),
            (Some(near), None) => problem.help(format!("did you mean `{near}`?")),
            (None, None) => problem.help(format!("docs/{}.md lists every key", self.title.to_lowercase())),
        }
    }
}

/// Takes what is written for one setting of a block.
///
/// # Errors
/// If it was written before, or is of another type.
pub fn settle(setting: &mut Setting, field: &Field) -> Result<(), Problem> {
    let key = setting.key;
    let place = if field.value.place.bytes.is_empty() { &field.place } else { &field.value.place };
    if let Some(first) = setting.place() {
        let problem = Problem::new(format!("`{}` is written twice", key.name));
        return Err(problem
            .at(&field.place, "again here")
            .at(first, "first here")
            .help("remove one of them"));
    }
    setting.origin = Origin::Written(place.clone());
    let auto = matches!(&field.value.data, Data::Scalar { text, .. } if text.trim() == resolve::AUTO);
    if auto && key.is_used() {
        setting.value = Value::Text(resolve::AUTO.to_owned());
    } else if !auto && !field.value.is_null() {
        match value::read(key.kind, &field.value) {
            Some(value) => setting.value = value,
            None => {
                setting.broken = true;
                return Err(wrong_type(key, &field.value, place));
            }
        }
    }
    Ok(())
}

/// The fields of a setting that holds a block or names its file.
fn fields(setting: &Setting, what: &str, file: &ReadFile<'_>, problems: &mut Problems) -> Option<Vec<Field>> {
    match &setting.value {
        Value::Map(fields) => Some(fields.clone()),
        Value::Text(path) => match file(path, what) {
            Ok(fields) => Some(fields),
            Err(problem) => {
                problems.push(match (problem.place(), setting.place()) {
                    (None, Some(place)) => problem.at(place, ""),
                    _ => problem,
                });
                None
            }
        },
        _ => None,
    }
}

/// A block names no key that a table of a training lacks.
pub(super) fn unknown(entry: &Entry) -> Problem {
    Problem::new(format!("unknown key `{}`", entry.key)).at(&entry.place, "")
}

/// Whether a number of ranks divides all ranks; else it is reported.
fn divides(block: &Dialect, name: &str, part: usize, ranks: i64, problems: &mut Problems) {
    if part as i64 > 0 && ranks % part as i64 != 0 {
        let message = format!("`{name}` ({part}) does not divide the {ranks} ranks");
        problems.push(block.settings.problem(message, &[name]).help("groups of ranks are of one size"));
    }
}

/// An empty layer of what must agree.
fn layer() -> Layer {
    Layer { authority: Authority::MustAgree, entries: Vec::new() }
}
