//! Goes through the table of questions, asks a person for each, and keeps the answers.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::item::{Item, Kind};
use crate::front::accelerate::cluster::{Cluster, expand_home};

/// Somebody who answers.
pub trait Person {
    /// Answers in words.
    ///
    /// # Errors
    /// When no answer comes.
    fn words(&mut self, question: &str) -> Result<String, Silence>;

    /// Chooses one of several by its number.
    ///
    /// # Errors
    /// When no answer comes.
    fn choose(&mut self, question: &str, choices: &[&str], default: usize) -> Result<usize, Silence>;

    /// Is told why an answer is asked for again.
    ///
    /// # Errors
    /// When there is nobody to tell.
    fn told(&mut self, message: &str) -> Result<(), Silence>;
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Silence {
    /// The input has ended.
    #[error(
        "the input ended at the question \"{0}\"; nothing was written. Answer all questions, or write a file with `accelerate config default`"
    )]
    Ended(String),
    /// Ctrl-C.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// The answers cannot be kept.
    #[error("{0}; nothing was written")]
    Refused(&'static str),
    /// The terminal or the file fails.
    #[error("cannot ask: {0}; nothing was written")]
    Io(#[from] std::io::Error),
}

/// The answers so far, by key.
#[derive(Debug, Default)]
pub struct Answers(BTreeMap<&'static str, Value>);

impl Answers {
    /// Whether the value of a key is this word.
    pub fn is(&self, key: &str, word: &str) -> bool {
        self.0.get(key).and_then(Value::as_str) == Some(word)
    }

    /// Whether a key was answered with yes.
    pub fn yes(&self, key: &str) -> bool {
        self.0.get(key) == Some(&Value::Bool(true))
    }

    /// A whole number; 0 where there is none.
    pub fn int(&self, key: &str) -> i64 {
        self.0.get(key).and_then(Value::as_i64).unwrap_or(0)
    }

    /// Whether there is more than one of something.
    pub fn more_than_one(&self, key: &str) -> bool {
        self.int(key) > 1
    }

    /// Whether there are several devices of one kind, and neither DeepSpeed nor FSDP was chosen for them.
    pub fn is_multi(&self) -> bool {
        self.0.get("distributed_type").and_then(Value::as_str).is_some_and(|name| name.starts_with("MULTI_"))
    }

    /// What a process runs on.
    fn devices(&self) -> String {
        match self.0.get("distributed_type").and_then(Value::as_str) {
            Some("MULTI_CPU") => "processes".to_owned(),
            Some("MULTI_NEURON") => "NEURON cores".to_owned(),
            Some("XLA") => "TPU cores".to_owned(),
            Some(name) => format!("{}s", name.strip_prefix("MULTI_").unwrap_or("GPU")),
            None => "devices".to_owned(),
        }
    }

    /// The configuration that they make.
    pub fn cluster(self) -> Cluster {
        let mut said = Map::new();
        for (key, value) in self.0.into_iter().filter(|(key, _)| !key.starts_with('?')) {
            match key.split_once('.') {
                None => drop(said.insert(key.to_owned(), value)),
                Some((outer, inner)) => {
                    let map = said.entry(outer).or_insert_with(|| Value::Object(Map::new()));
                    if let Value::Object(map) = map {
                        map.insert(inner.to_owned(), value);
                    }
                }
            }
        }
        Cluster::of(said)
    }
}

/// Asks all questions that the answers call for.
///
/// # Errors
/// When an answer does not come, or the answers cannot be kept.
pub fn ask_all(
    items: &'static [Item],
    person: &mut dyn Person,
    answers: &mut Answers,
) -> Result<(), Silence> {
    for item in items {
        match *item {
            Item::Ask { key, text, kind } => {
                let value = answer(kind, text, person, answers)?;
                answers.0.insert(key, value);
            }
            Item::When(condition, items) => {
                if condition(answers) {
                    ask_all(items, person, answers)?;
                }
            }
            Item::Set(key, value) => drop(answers.0.insert(key, value.value())),
            Item::Join(key, of) => {
                let truths = of.iter().map(|key| Value::Bool(answers.yes(key))).collect();
                answers.0.insert(key, truths);
            }
            Item::Repeat { key, text, again } => {
                let mut said = Vec::new();
                loop {
                    said.push(answer(Kind::Words(None), text, person, answers)?);
                    if answer(Kind::YesNo(false), again, person, answers)? == Value::Bool(false) {
                        break;
                    }
                }
                answers.0.insert(key, Value::Array(said));
            }
            Item::Stop(why) => return Err(Silence::Refused(why)),
        }
    }
    Ok(())
}

/// Asks until the answer is of its kind.
fn answer(kind: Kind, text: &str, person: &mut dyn Person, answers: &Answers) -> Result<Value, Silence> {
    let text = text.replace("{devices}", &answers.devices());
    match kind {
        Kind::Menu(choices, default) => {
            let shown: Vec<&str> = choices.iter().map(|choice| choice.shown).collect();
            let chosen = person.choose(&text, &shown, default)?;
            return Ok(choices.get(chosen).map_or(Value::Null, |choice| choice.value.value()));
        }
        Kind::Below(of) => {
            /// More lines than a screen has are no menu.
            const LINES: i64 = 20;
            let n = answers.int(of);
            if n > LINES {
                return answer(
                    Kind::Whole { default: Some(0), least: 0, most: n - 1 },
                    &text,
                    person,
                    answers,
                );
            }
            let numbers: Vec<String> = (0..n).map(|i| i.to_string()).collect();
            let shown: Vec<&str> = numbers.iter().map(String::as_str).collect();
            return Ok(Value::from(person.choose(&text, &shown, 0)?));
        }
        _ => {}
    }
    loop {
        let said = person.words(&format!("{text}{} ", hint(kind)))?;
        match read(kind, &said) {
            Ok(value) => return Ok(value),
            Err(expected) => person.told(&format!("please answer with {expected}"))?,
        }
    }
}

/// What nothing stands for.
fn hint(kind: Kind) -> String {
    match kind {
        Kind::YesNo(true) => " [YES/no]".to_owned(),
        Kind::YesNo(false) => " [yes/NO]".to_owned(),
        Kind::Words(Some(default)) | Kind::FromHome(default) => format!(" [{default}]"),
        Kind::Whole { default: Some(default), .. } => format!(" [{default}]"),
        Kind::Real(default) => format!(" [{default:?}]"),
        _ => String::new(),
    }
}

/// The value of an answer, or what is expected instead.
fn read(kind: Kind, said: &str) -> Result<Value, String> {
    let environment = |name: &str| std::env::var(name).ok();
    match kind {
        Kind::YesNo(default) => match said.to_lowercase().as_str() {
            "" => Ok(Value::Bool(default)),
            "yes" | "y" => Ok(Value::Bool(true)),
            "no" | "n" => Ok(Value::Bool(false)),
            _ => Err("yes or no".to_owned()),
        },
        Kind::Words(default) => {
            Ok(Value::from(if said.is_empty() { default.unwrap_or_default() } else { said }))
        }
        Kind::Pieces => Ok(said.split(',').map(Value::from).collect()),
        Kind::FromHome(default) => {
            let path = if said.is_empty() { default } else { said.trim() };
            Ok(Value::from(expand_home(Path::new(path), &environment).display().to_string()))
        }
        Kind::Absolute => {
            let path = std::path::absolute(said).map_err(|_| "the path of a file".to_owned())?;
            Ok(Value::from(path.display().to_string()))
        }
        Kind::Whole { default: Some(default), .. } if said.is_empty() => Ok(Value::from(default)),
        Kind::Whole { least, most, .. } => {
            match plain_number(said).and_then(|digits| digits.parse::<i64>().ok()) {
                Some(number) if (least..=most).contains(&number) => Ok(Value::from(number)),
                _ if most == i64::MAX => Err(format!("a whole number, at least {least}")),
                _ => Err(format!("a whole number from {least} to {most}")),
            }
        }
        Kind::Real(default) if said.is_empty() => Ok(Value::from(default)),
        Kind::Real(_) => match plain_number(said).and_then(|digits| digits.parse::<f64>().ok()) {
            Some(number) if number.is_finite() => Ok(Value::from(number)),
            _ => Err("a number".to_owned()),
        },
        // Chosen by number, above.
        Kind::Menu(..) | Kind::Below(_) => Err("the number of a choice".to_owned()),
    }
}

/// A number without the blanks around it and the `_` between its digits.
fn plain_number(said: &str) -> Option<String> {
    let said = said.trim();
    let loose = said.starts_with('_') || said.ends_with('_') || said.contains("__");
    (!loose && !said.is_empty()).then(|| said.replace('_', ""))
}
