//! The answers of the questionnaire, and the configuration that they make.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::front::accelerate::cluster::Cluster;

/// The answers so far, by key.
#[derive(Debug, Default)]
pub struct Answers(BTreeMap<&'static str, Value>);

impl Answers {
    /// Keeps the value of a key.
    pub fn insert(&mut self, key: &'static str, value: Value) {
        self.0.insert(key, value);
    }

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
    pub fn devices(&self) -> String {
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
        let mut values = Map::new();
        for (key, value) in self.0.into_iter().filter(|(key, _)| !key.starts_with('?')) {
            match key.split_once('.') {
                None => drop(values.insert(key.to_owned(), value)),
                Some((outer, inner)) => {
                    let map = values.entry(outer).or_insert_with(|| Value::Object(Map::new()));
                    if let Value::Object(map) = map {
                        map.insert(inner.to_owned(), value);
                    }
                }
            }
        }
        Cluster::of(values)
    }
}
