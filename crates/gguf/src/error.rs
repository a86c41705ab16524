//! What can be wrong with a GGUF file, or with what one is asked to hold.

use std::io;

use crate::types::{TensorType, ValueType};

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong, with the key or tensor and, where a file was read, the byte at which it stands.
///
/// Names of keys and tensors come from the file. They are shortened, and their control characters are escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file does not begin with the four letters.
    #[error(
        "this is no GGUF file: it begins with {found:02x?} instead of the letters GGUF; name a file that ends in .gguf"
    )]
    NotGguf {
        /// The first bytes of the file, at most four.
        found: Vec<u8>,
    },

    /// A version that is not read here.
    #[error(
        "the file has version {found} of GGUF, and versions 2 and 3 can be read; convert the model again"
    )]
    Version {
        /// The version that the file names.
        found: u32,
    },

    /// The numbers of the file have their most significant byte first.
    #[error(
        "the numbers of the file are big-endian, and only little-endian files can be read; convert the model again"
    )]
    BigEndian,

    /// The file ends too early.
    #[error(
        "the file ends inside {part}: {needs} bytes are needed at byte {at}, and {left} are left; fetch the file again"
    )]
    Cut {
        /// What was being read.
        part: String,
        /// Where it begins.
        at: u64,
        /// The bytes that it needs.
        needs: u64,
        /// The bytes that the file still has.
        left: u64,
    },

    /// A key or its value breaks the format.
    #[error("the key {key} at byte {at} {problem}")]
    Key {
        /// The key, or its number in the file where it has no name.
        key: String,
        /// Where the entry begins.
        at: u64,
        /// What was expected and what was found.
        problem: String,
    },

    /// The description of a tensor breaks the format.
    #[error("the tensor {name} at byte {at} {problem}")]
    Tensor {
        /// The tensor, or its number in the file where it has no name.
        name: String,
        /// Where its description begins.
        at: u64,
        /// What was expected and what was found.
        problem: String,
    },

    /// A key that is needed is not in the file.
    #[error("the file has no key {key}; it may come from an older converter, so convert the model again")]
    MissingKey {
        /// The key.
        key: String,
    },

    /// The value of a key is something else.
    #[error("the key {key} holds {found}, and {expected} was expected")]
    WrongValue {
        /// The key.
        key: String,
        /// What the caller asked for.
        expected: &'static str,
        /// The type in the file, or the number where only its size is wrong.
        found: String,
    },

    /// A tensor that is needed is not in the file.
    #[error("the file has no tensor {name}")]
    MissingTensor {
        /// The tensor.
        name: String,
    },

    /// The blocks of a type are not read or not made here.
    #[error("blocks of type {tensor_type} cannot be {done} here; take a type such as Q8_0 or Q4_K")]
    Unsupported {
        /// The type.
        tensor_type: TensorType,
        /// "read" or "made".
        done: &'static str,
    },

    /// Slices whose lengths do not belong together.
    #[error("{what} has {found} elements, and {expected} were expected")]
    Length {
        /// Which slice.
        what: &'static str,
        /// What its length has to be.
        expected: u64,
        /// Its length.
        found: u64,
    },

    /// A row that is not a whole number of blocks.
    #[error("a row of {row_elems} elements is not whole blocks of {tensor_type}, which have {} elements", tensor_type.block_elems())]
    Row {
        /// The elements of a row.
        row_elems: u64,
        /// The type.
        tensor_type: TensorType,
    },

    /// A value that is not a number, or too large for its type.
    #[error(
        "element {index} of row {row} is {value}, which {tensor_type} cannot hold; the weights are damaged or diverged"
    )]
    Element {
        /// The row among those that were given.
        row: u64,
        /// The element, or the first of a block whose scale is too large.
        index: u64,
        /// The value.
        value: f32,
        /// The type.
        tensor_type: TensorType,
    },

    /// Something that a file cannot hold.
    #[error("{name} cannot be written: {problem}")]
    Unwritable {
        /// The key or tensor.
        name: String,
        /// What was expected and what was found.
        problem: String,
    },

    /// An importance matrix that breaks its format.
    #[error("the importance matrix at byte {at}: {problem}")]
    Importance {
        /// Where the entry begins.
        at: u64,
        /// What was expected and what was found.
        problem: String,
    },

    /// Whatever takes the bytes of a file refused them.
    #[error("the file could not be written: {0}")]
    Io(#[from] io::Error),
}

/// The name of a key or tensor as messages show it: not too long, without control characters.
pub(crate) fn shown(name: &str) -> String {
    const MOST_CHARS: usize = 80;
    let mut text: String = name.chars().take(MOST_CHARS).flat_map(char::escape_debug).collect();
    if name.chars().nth(MOST_CHARS).is_some() {
        text.push('…');
    }
    text
}

/// That a key holds another type than the caller asked for.
pub(crate) fn wrong_type(key: &str, expected: &'static str, found: ValueType) -> Error {
    Error::WrongValue { key: shown(key), expected, found: format!("a value of type {found}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_short_and_without_control_characters() {
        assert_eq!(shown("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
        assert_eq!(shown("a\u{1b}[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(shown(&"x".repeat(81)), "x".repeat(80) + "…");
    }
}
