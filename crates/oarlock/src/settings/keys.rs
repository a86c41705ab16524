//! What a key is: its name, type, default and meaning.

/// The owner of a setting: the part of the configuration that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The model to train.
    Model,
    /// The text to train on.
    Data,
    /// The training method.
    Method,
    /// Batches, length and precision of the training.
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

/// A key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
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

impl Key {
    /// A flag of a command, or a key of another program's configuration.
    pub const fn flag(
        value_type: ValueType,
        name: &'static str,
        default: &'static str,
        status: Status,
        doc: &'static str,
    ) -> Key {
        Key { name, group: Group::Ranks, value_type, default, status, doc }
    }

    /// Whether the key has a meaning here.
    pub fn is_used(&self) -> bool {
        matches!(self.status, Status::Used | Status::Only(_) | Status::Among(..))
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
) -> Key {
    Key { name, group, value_type, default, status, doc }
}

/// The row of another table with this name.
///
/// # Panics
/// If that table has none, when the program is compiled.
pub const fn row(table: &'static [Key], name: &str) -> Key {
    let mut i = 0;
    while i < table.len() {
        if is(table[i].name, name) {
            return table[i];
        }
        i += 1;
    }
    panic!("the table has no key of this name")
}

const fn is(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}
