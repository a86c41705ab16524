//! What a pickle holds.

use super::globals::{Element, Global};

/// Where a value lies.
pub(super) type Id = u32;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// A whole number of at most 64 bits.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text.
    Text(String),
    /// Bytes; nothing that is imported lies in them.
    Bytes,
    /// A list or a set.
    List(Vec<Id>),
    /// A tuple.
    Tuple(Vec<Id>),
    /// A dictionary, in the order of its making.
    Dict(Vec<(Id, Id)>),
    /// A class or a function of the list.
    Global(Global),
    /// An object of a class that is not looked into further than its attributes.
    Object {
        /// Its attributes.
        state: Option<Id>,
    },
    /// Elements in a file of their own in the container.
    Storage {
        /// What they are.
        element: Element,
        /// The name of the file.
        key: String,
        /// How many.
        n_elems: u64,
    },
    /// A tensor over a storage.
    Tensor {
        /// The storage.
        storage: Id,
        /// The first element.
        first: u64,
        /// Its sizes.
        shape: Vec<u64>,
        /// Its strides.
        strides: Vec<u64>,
    },
}
