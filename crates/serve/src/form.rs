//! What an answer has to be, where not every text will do.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// What an answer has to be, behind its thoughts.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// What it is where it calls nothing; `None` where it has to call.
    pub text: Option<TextForm>,
    /// The functions that it may call.
    pub calls: Vec<CallForm>,
    /// Whether it has one call at most.
    pub has_one_call: bool,
}

/// What a text has to be.
#[derive(Clone, Debug, PartialEq)]
pub enum TextForm {
    /// Anything.
    Any,
    /// JSON of a schema.
    Json(Schema),
    /// What a regular expression matches as a whole.
    Regex(String),
    /// One of these texts, of which there is at least one.
    OneOf(Vec<String>),
    /// What a grammar in Lark's notation gives.
    Lark(String),
    /// What a grammar in llama.cpp's notation gives.
    Gbnf(String),
}

/// A JSON schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// The schema, an object.
    pub value: Value,
    /// Whether what cannot be promised is refused; else it is passed over.
    pub is_strict: bool,
}

/// A function that an answer may call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallForm {
    /// Its name.
    pub name: String,
    /// What its arguments are.
    pub arguments: Schema,
}

/// A form as its backend has read it. What is in it, the backend alone knows.
#[derive(Clone)]
pub struct ReadForm(Arc<dyn Any + Send + Sync>);

impl ReadForm {
    /// Holds what a backend needs to hold answers to a form.
    pub fn new(form: impl Any + Send + Sync) -> ReadForm {
        ReadForm(Arc::new(form))
    }

    /// What it holds; `None` for another type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl PartialEq for ReadForm {
    fn eq(&self, other: &ReadForm) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for ReadForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadForm(…)")
    }
}
