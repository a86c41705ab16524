//! What a key is: its name, type, default and meaning. A table of keys declares each of them once, as a constant by which
//! it is read: a key that does not exist, or is read as another type, does not compile.

use std::fmt;
use std::marker::PhantomData;

/// The owner of a setting: the part of the configuration that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The model to train.
    Model,
    /// The text to train on.
    Data,
    /// The training method.
    Method,
    /// Batches, length and precision of the run.
    Train,
    /// The optimizer and its learning rate.
    Optimizer,
    /// Evaluation.
    Eval,
    /// Checkpoints and the final model.
    Save,
    /// Logs and plots.
    Log,
    /// Processes.
    Ranks,
}

impl Group {
    /// All groups in the order in which help and tables show them.
    pub const ALL: [Group; 9] = [
        Group::Model,
        Group::Data,
        Group::Method,
        Group::Train,
        Group::Optimizer,
        Group::Eval,
        Group::Save,
        Group::Log,
        Group::Ranks,
    ];

    /// The heading of the group.
    pub fn title(self) -> &'static str {
        match self {
            Group::Model => "Model",
            Group::Data => "Data",
            Group::Method => "Method",
            Group::Train => "Training",
            Group::Optimizer => "Optimizer and learning rate",
            Group::Eval => "Evaluation",
            Group::Save => "Checkpoints",
            Group::Log => "Logs",
            Group::Ranks => "Processes",
        }
    }
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueType {
    /// true or false.
    Bool,
    /// A whole number, at least this.
    Int(i64),
    /// A number.
    Float(Range),
    /// A count of steps, or below 1 the share of all steps.
    Steps,
    /// Any words.
    Text,
    /// Words that no output shows.
    Secret,
    /// A file or folder, relative to the working directory.
    Path,
    /// true, false or a folder.
    BoolOrPath,
    /// One of these.
    Choice(&'static [&'static str]),
    /// Names, as a list or separated by commas.
    List,
    /// Settings inside a setting.
    Map,
    /// Settings inside a setting, or the file that holds them.
    MapOrPath,
}

impl ValueType {
    /// The type in words, as in "takes …".
    pub fn describe(self) -> String {
        match self {
            ValueType::Bool => "true or false".to_owned(),
            ValueType::Int(i64::MIN) => "a whole number".to_owned(),
            ValueType::Int(min) => format!("a whole number, at least {min}"),
            ValueType::Float(range) => range.describe().to_owned(),
            ValueType::Steps => "a whole number of steps, or a share of all steps between 0 and 1".to_owned(),
            ValueType::Text | ValueType::Secret => "words".to_owned(),
            ValueType::Path => "a path".to_owned(),
            ValueType::BoolOrPath => "true, false or a path".to_owned(),
            ValueType::Choice(names) => format!("one of {}", names.join(", ")),
            ValueType::List => "names separated by commas".to_owned(),
            ValueType::Map => "a mapping such as {min_lr: 1e-5}".to_owned(),
            ValueType::MapOrPath => "a path or a mapping".to_owned(),
        }
    }

    /// The placeholder of a value in the help text.
    pub fn placeholder(self) -> &'static str {
        match self {
            ValueType::Bool => "BOOL",
            ValueType::Int(_) => "N",
            ValueType::Float(_) => "X",
            ValueType::Steps => "STEPS",
            ValueType::Text | ValueType::Secret => "TEXT",
            ValueType::Path => "PATH",
            ValueType::BoolOrPath => "BOOL|PATH",
            ValueType::Choice(_) => "NAME",
            ValueType::List => "NAMES",
            ValueType::Map => "MAP",
            ValueType::MapOrPath => "PATH|MAP",
        }
    }
}

/// The values that a number may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Every finite number.
    Any,
    /// x > 0.
    Positive,
    /// x >= 0.
    NotNegative,
    /// 0 <= x < 1.
    BelowOne,
    /// 0 <= x <= 1.
    Share,
}

impl Range {
    /// Whether a value lies in the range.
    pub fn contains(self, x: f64) -> bool {
        x.is_finite()
            && match self {
                Range::Any => true,
                Range::Positive => x > 0.0,
                Range::NotNegative => x >= 0.0,
                Range::BelowOne => (0.0..1.0).contains(&x),
                Range::Share => (0.0..=1.0).contains(&x),
            }
    }

    /// The range in words.
    pub fn describe(self) -> &'static str {
        match self {
            Range::Any => "a number",
            Range::Positive => "a number greater than 0",
            Range::NotNegative => "a number, at least 0",
            Range::BelowOne => "a number from 0 to below 1",
            Range::Share => "a number from 0 to 1",
        }
    }
}

/// What a key does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It has its meaning.
    Used,
    /// It has its meaning, but only the default is there yet: every other value is an error that says this.
    Only(&'static str),
    /// It has its meaning, but only these values are there yet: every other value is an error that says this.
    Among(&'static [&'static str], &'static str),
    /// It is accepted and changes nothing, for this reason.
    NoEffect(&'static str),
    /// It is not there yet. Only values that change nothing are accepted (the default, false, null); every other is an error that says this.
    Later(&'static str),
}

/// What values have in common that are read alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// true or false.
    Bool,
    /// Whole numbers.
    Int,
    /// Numbers.
    Float,
    /// Words.
    Text,
    /// Words that no output shows.
    Secret,
    /// Names.
    List,
    /// Settings inside a setting.
    Map,
    /// One of several of these.
    Mixed,
}

impl Kind {
    /// The kind of a type of value.
    pub const fn of(value_type: ValueType) -> Kind {
        match value_type {
            ValueType::Bool => Kind::Bool,
            ValueType::Int(_) => Kind::Int,
            ValueType::Float(_) | ValueType::Steps => Kind::Float,
            ValueType::Text | ValueType::Path | ValueType::Choice(_) => Kind::Text,
            ValueType::Secret => Kind::Secret,
            ValueType::List => Kind::List,
            ValueType::Map => Kind::Map,
            ValueType::BoolOrPath | ValueType::MapOrPath => Kind::Mixed,
        }
    }
}

/// What the type as which a key is read says about the key.
pub trait Typed {
    /// The values that it is for.
    const KIND: Kind;
    /// Whether it is for keys without a default; `None`: for all.
    const IS_OPTIONAL: Option<bool>;
    /// Whether it holds numbers below 0.
    const IS_SIGNED: bool = true;
}

/// A row of a table of keys: all that is known of a key but the type as which it is read.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Who owns it.
    pub group: Group,
    /// The type of its value.
    pub value_type: ValueType,
    /// The default as one would write it, empty for none.
    pub default: &'static str,
    /// What it does here.
    pub status: Status,
    /// What it means, in one line.
    pub doc: &'static str,
}

impl Row {
    /// A flag of a command, or a key of another program's configuration.
    pub const fn flag(
        value_type: ValueType,
        name: &'static str,
        default: &'static str,
        status: Status,
        doc: &'static str,
    ) -> Row {
        Row { name, group: Group::Ranks, value_type, default, status, doc }
    }

    /// Whether the key has a meaning here.
    pub fn is_used(&self) -> bool {
        matches!(self.status, Status::Used | Status::Only(_) | Status::Among(..))
    }
}

/// Its name.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A row of a table of keys.
pub const fn key(
    group: Group,
    value_type: ValueType,
    name: &'static str,
    default: &'static str,
    status: Status,
    doc: &'static str,
) -> Row {
    Row { name, group, value_type, default, status, doc }
}

/// The row of a key of another table, which this one has as well.
pub const fn row<T>(key: Key<T>) -> Row {
    *key.row
}

/// How many rows tables have together.
pub const fn n_rows(tables: &[&[Row]]) -> usize {
    let (mut n, mut table) = (0, 0);
    while table < tables.len() {
        n += tables[table].len();
        table += 1;
    }
    n
}

/// The rows of tables, one table after another; `N` is [how many](n_rows) there are.
pub const fn joined<const N: usize>(tables: &[&[Row]]) -> [Row; N] {
    let mut rows = [tables[0][0]; N];
    let (mut n, mut table) = (0, 0);
    while table < tables.len() {
        let mut at = 0;
        while at < tables[table].len() {
            rows[n] = tables[table][at];
            (n, at) = (n + 1, at + 1);
        }
        table += 1;
    }
    rows
}

/// A key that is read as a `T`: a constant that [`key_table!`](crate::key_table) declares.
pub struct Key<T> {
    /// What is known of it.
    pub row: &'static Row,
    read_as: PhantomData<fn() -> T>,
}

impl<T: Typed> Key<T> {
    /// The key of a row, under the name of its constant.
    ///
    /// # Panics
    /// When the program is compiled: if the row is not read as a `T`, or the constant is not called as the key.
    pub const fn new(constant: &str, row: &'static Row) -> Key<T> {
        assert!(is_named(constant, row.name), "the constant is not called as its key");
        let kind = Kind::of(row.value_type);
        assert!(T::KIND as u8 == kind as u8, "the key has values of another type than it is read as");
        let is_signed = matches!(row.value_type, ValueType::Int(least) if least < 0);
        assert!(T::IS_SIGNED || !is_signed, "the key may be negative: read it as i64");
        if let Some(optional) = T::IS_OPTIONAL {
            assert!(optional == row.default.is_empty(), "a key is read as an Option if it has no default");
        }
        Key { row, read_as: PhantomData }
    }
}

impl<T> Key<T> {
    /// Its name.
    pub const fn name(self) -> &'static str {
        self.row.name
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.row.name).finish()
    }
}

/// Its name.
impl<T> fmt::Display for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.row.fmt(f)
    }
}

impl<T> From<Key<T>> for &'static Row {
    fn from(key: Key<T>) -> &'static Row {
        key.row
    }
}

/// Whether a constant is called as a key: in capitals, with `_` for the dots of a path.
const fn is_named(constant: &str, name: &str) -> bool {
    let (constant, name) = (constant.as_bytes(), name.as_bytes());
    let mut i = 0;
    while i < constant.len() && i < name.len() {
        let expected = if name[i] == b'.' { b'_' } else { name[i].to_ascii_uppercase() };
        if constant[i] != expected {
            return false;
        }
        i += 1;
    }
    i == constant.len() && i == name.len()
}

/// Declares a table of keys: each with the constant by which it is read, the type as which, and its [`Row`].
///
/// ```
/// use oarlock_config::settings::keys::Row;
/// use oarlock_config::settings::keys::Status::Used;
/// use oarlock_config::settings::keys::ValueType::{Bool, Int};
/// use oarlock_config::settings::resolve::Settings;
///
/// oarlock_config::key_table! {
///     /// The flags.
///     pub const FLAGS = [
///         QUIET: bool = Row::flag(Bool, "quiet", "false", Used, "Print nothing"),
///         PORT: Option<usize> = Row::flag(Int(0), "port", "", Used, "The port"),
///     ];
/// }
///
/// let settings = Settings::of(FLAGS);
/// assert!(!settings.get(QUIET));
/// assert_eq!(settings.get(PORT), None);
/// ```
///
/// A constant of another type than its row does not compile:
///
/// ```compile_fail
/// use oarlock_config::settings::keys::Row;
/// use oarlock_config::settings::keys::Status::Used;
/// use oarlock_config::settings::keys::ValueType::Int;
///
/// oarlock_config::key_table! {
///     /// The flags.
///     pub const FLAGS = [
///         PORT: bool = Row::flag(Int(0), "port", "", Used, "The port"),
///     ];
/// }
/// ```
#[macro_export]
macro_rules! key_table {
    ($(#[$doc:meta])* $vis:vis const $table:ident = [$($key:ident: $read_as:ty = $row:expr),* $(,)?];) => {
        $(
            #[doc = concat!("The key of [`", stringify!($table), "`] with this name in small letters.")]
            $vis const $key: $crate::settings::keys::Key<$read_as> = {
                const ROW: &$crate::settings::keys::Row = &$row;
                $crate::settings::keys::Key::new(stringify!($key), ROW)
            };
        )*

        $(#[$doc])*
        $vis const $table: &[$crate::settings::keys::Row] = &[$(*$key.row),*];
    };
}

pub use key_table;
