//! Metadata values as a file holds them: numbers, texts, and arrays that are read where they lie.

use crate::cursor::Cursor;
use crate::error::{Error, Result, shown};
use crate::types::ValueType;

/// The most elements of an array, and the most bytes of a text, that llama.cpp reads.
pub(crate) const MAX_LENGTH: u64 = 1 << 30;

/// A metadata value. Texts and arrays borrow from the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// An unsigned byte.
    U8(u8),
    /// A signed byte.
    I8(i8),
    /// An unsigned number of 16 bits.
    U16(u16),
    /// A signed number of 16 bits.
    I16(i16),
    /// An unsigned number of 32 bits.
    U32(u32),
    /// A signed number of 32 bits.
    I32(i32),
    /// IEEE single precision.
    F32(f32),
    /// Whether something holds.
    Bool(bool),
    /// A text. It is UTF-8 by the format, but some vocabularies hold other bytes.
    String(&'a [u8]),
    /// Values of one type.
    Array(Array<'a>),
    /// An unsigned number of 64 bits.
    U64(u64),
    /// A signed number of 64 bits.
    I64(i64),
    /// IEEE double precision.
    F64(f64),
}

/// An array of metadata values, which are decoded when they are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    elem_type: ValueType,
    n_elems: u64,
    bytes: &'a [u8],
}

/// What a metadata value can be read as.
///
/// Whole numbers of any width are read as one another if they fit, since converters do not agree on the width.
pub trait FromValue<'a>: Sized {
    /// What the value has to be, for messages.
    const EXPECTED: &'static str;

    /// The value, unless it is of another kind or does not fit.
    fn from_value(value: Value<'a>) -> Option<Self>;
}

impl<'a> Value<'a> {
    /// The type of the value in a file.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// Reads a value of a type that is no array.
    fn scalar(value_type: ValueType, cursor: &mut Cursor<'a>, key: &str) -> Result<Value<'a>> {
        let part = &format_args!("the value of the key {}", Shown(key));
        Ok(match value_type {
            ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(part)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(part)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(part)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(part)?)),
            ValueType::U32 => Value::U32(cursor.u32(part)?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(part)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(part)?)),
            // llama.cpp takes any other byte for true as well.
            ValueType::Bool => Value::Bool(cursor.array::<1>(part)? != [0]),
            ValueType::String => {
                let at = cursor.at();
                let text = cursor.text(part)?;
                if text.len() as u64 > MAX_LENGTH {
                    return Err(too_long(key, at, text.len() as u64, "bytes"));
                }
                Value::String(text)
            }
            ValueType::U64 => Value::U64(cursor.u64(part)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(part)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(part)?)),
            ValueType::Array => return Err(nested(key, cursor.at())),
        })
    }

    /// Reads the type of a value and the value.
    pub(crate) fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Value<'a>> {
        let part = &format_args!("the type of the key {}", Shown(key));
        let read_type = |cursor: &mut Cursor<'a>| {
            let at = cursor.at();
            let id = cursor.u32(part)?;
            ValueType::from_id(id).ok_or_else(|| Error::Key {
                key: shown(key),
                at: at as u64,
                problem: format!("has a value of type {id}, and types go from 0 to 12"),
            })
        };
        match read_type(cursor)? {
            ValueType::Array => {
                let elem_type = read_type(cursor)?;
                let at = cursor.at();
                let n_elems = cursor.u64(part)?;
                if n_elems > MAX_LENGTH {
                    return Err(too_long(key, at, n_elems, "elements"));
                }
                Array::read(elem_type, n_elems, cursor, key).map(Value::Array)
            }
            value_type => Value::scalar(value_type, cursor, key),
        }
    }
}

impl<'a> Array<'a> {
    /// The type of the elements, which is never an array.
    pub fn elem_type(&self) -> ValueType {
        self.elem_type
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        // A file in memory has no more elements than there are addresses: each takes a byte.
        usize::try_from(self.n_elems).unwrap_or(usize::MAX)
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.n_elems == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (mut cursor, elem_type) = (Cursor::new(self.bytes, 0), self.elem_type);
        (0..self.n_elems).map_while(move |_| Value::scalar(elem_type, &mut cursor, "").ok())
    }

    /// All elements as one kind, unless there is one of another kind.
    pub fn to_vec<T: FromValue<'a>>(&self) -> Option<Vec<T>> {
        self.iter().map(T::from_value).collect()
    }

    fn read(elem_type: ValueType, n_elems: u64, cursor: &mut Cursor<'a>, key: &str) -> Result<Array<'a>> {
        let part = &format_args!("the value of the key {}", Shown(key));
        let bytes = match elem_type.fixed_bytes() {
            // At most 2^30 elements of 8 bytes.
            Some(elem_bytes) => cursor.take(n_elems * elem_bytes as u64, part)?,
            None if elem_type == ValueType::String => {
                let mut end = *cursor;
                for _ in 0..n_elems {
                    let at = end.at();
                    let text = end.text(part)?;
                    if text.len() as u64 > MAX_LENGTH {
                        return Err(too_long(key, at, text.len() as u64, "bytes"));
                    }
                }
                cursor.take((end.at() - cursor.at()) as u64, part)?
            }
            None => return Err(nested(key, cursor.at())),
        };
        Ok(Array { elem_type, n_elems, bytes })
    }
}

/// A name in a message that may never be printed, and is escaped when it is.
struct Shown<'a>(&'a str);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shown(self.0))
    }
}

fn too_long(key: &str, at: usize, n: u64, unit: &str) -> Error {
    let problem = format!("has {n} {unit}, and at most {MAX_LENGTH} are read");
    Error::Key { key: shown(key), at: at as u64, problem }
}

fn nested(key: &str, at: usize) -> Error {
    let problem = "is an array of arrays, which llama.cpp does not read either".to_owned();
    Error::Key { key: shown(key), at: at as u64, problem }
}

/// Whole numbers, each from all of them.
macro_rules! from_whole_numbers {
    ($($number:ident: $expected:literal;)*) => {
        $(impl<'a> FromValue<'a> for $number {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: Value<'a>) -> Option<$number> {
                match value {
                    Value::U8(n) => n.try_into().ok(),
                    Value::I8(n) => n.try_into().ok(),
                    Value::U16(n) => n.try_into().ok(),
                    Value::I16(n) => n.try_into().ok(),
                    Value::U32(n) => n.try_into().ok(),
                    Value::I32(n) => n.try_into().ok(),
                    Value::U64(n) => n.try_into().ok(),
                    Value::I64(n) => n.try_into().ok(),
                    _ => None,
                }
            }
        })*
    };
}

from_whole_numbers! {
    u8: "a whole number from 0 to 255";
    u16: "a whole number from 0 to 65535";
    u32: "a whole number of 32 bits that is not negative";
    i32: "a whole number of 32 bits";
    u64: "a whole number that is not negative";
    i64: "a whole number of 64 bits";
    usize: "a whole number that is not negative";
}

impl<'a> FromValue<'a> for f32 {
    const EXPECTED: &'static str = "a number of type f32";

    fn from_value(value: Value<'a>) -> Option<f32> {
        match value {
            Value::F32(number) => Some(number),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for f64 {
    const EXPECTED: &'static str = "a number of type f32 or f64";

    fn from_value(value: Value<'a>) -> Option<f64> {
        match value {
            Value::F32(number) => Some(number.into()),
            Value::F64(number) => Some(number),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for bool {
    const EXPECTED: &'static str = "true or false";

    fn from_value(value: Value<'a>) -> Option<bool> {
        match value {
            Value::Bool(holds) => Some(holds),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a [u8] {
    const EXPECTED: &'static str = "a text";

    fn from_value(value: Value<'a>) -> Option<&'a [u8]> {
        match value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a text in UTF-8";

    fn from_value(value: Value<'a>) -> Option<&'a str> {
        <&[u8]>::from_value(value).and_then(|text| std::str::from_utf8(text).ok())
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    const EXPECTED: &'static str = "an array";

    fn from_value(value: Value<'a>) -> Option<Array<'a>> {
        match value {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

impl<'a, T: FromValue<'a>> FromValue<'a> for Vec<T> {
    const EXPECTED: &'static str = "an array of one kind";

    fn from_value(value: Value<'a>) -> Option<Vec<T>> {
        Array::from_value(value).and_then(|array| array.to_vec())
    }
}
