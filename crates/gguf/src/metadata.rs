//! The keys of a file that is written, in their order.

use std::ops::Deref;

use crate::error::{Error, Result, shown};
use crate::reader::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Gguf};
use crate::types::ValueType;
use crate::value::{MAX_LENGTH, Value};

/// The longest key that the format allows.
const MAX_KEY_BYTES: usize = 65535;

/// The keys and values of a file that is written. They keep the order in which they were set.
///
/// ```
/// use oarlock_gguf::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.set("general.architecture", "llama")?;
/// metadata.set("llama.block_count", 30_u32)?;
/// metadata.set("tokenizer.ggml.tokens", ["<s>", "a", "b"].as_slice())?;
/// assert!(metadata.set("llama.rope.freq_base", f32::NAN).is_err());
/// # Ok::<(), oarlock_gguf::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    key: String,
    /// The type and the value as they stand in a file.
    bytes: Vec<u8>,
}

/// What can be the value of a key.
pub trait ToValue {
    /// The type in a file.
    fn value_type(&self) -> ValueType;

    /// Appends the value as it stands in a file, without its type, or says what is wrong with it.
    ///
    /// # Errors
    /// A value that files cannot hold.
    fn put(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String>;
}

impl Metadata {
    /// No keys.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// The keys of a file, in its order.
    ///
    /// # Errors
    /// Values that are read and not written, such as numbers that are not finite.
    pub fn of<B: Deref<Target = [u8]>>(gguf: &Gguf<B>) -> Result<Metadata> {
        // No key stands in a file twice.
        let entries = gguf.metadata().map(|(key, value)| Entry::new(key, &value)).collect::<Result<_>>()?;
        Ok(Metadata { entries })
    }

    /// Sets a key. One that is there already keeps its place.
    ///
    /// # Errors
    /// An empty or too long key, and values that files cannot hold.
    pub fn set(&mut self, key: &str, value: impl ToValue) -> Result<()> {
        let entry = Entry::new(key, &value)?;
        match self.entries.iter_mut().find(|entry| entry.key == key) {
            Some(before) => *before = entry,
            None => self.entries.push(entry),
        }
        Ok(())
    }

    /// Takes a key away, and says whether it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        let n_entries = self.entries.len();
        self.entries.retain(|entry| entry.key != key);
        self.entries.len() < n_entries
    }

    /// Whether a key is set.
    pub fn contains(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no key is set.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// To how many bytes the data of tensors is padded.
    pub(crate) fn alignment(&self) -> u64 {
        let entry = self.entries.iter().find(|entry| entry.key == ALIGNMENT_KEY);
        entry.and_then(|entry| alignment_in(&entry.bytes)).map_or(DEFAULT_ALIGNMENT, u64::from)
    }

    /// Appends all keys and values as they stand in a file.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        for entry in &self.entries {
            put_text(entry.key.as_bytes(), bytes);
            bytes.extend_from_slice(&entry.bytes);
        }
    }
}

impl Entry {
    fn new(key: &str, value: &impl ToValue) -> Result<Entry> {
        let wrong = |problem: String| Error::Unwritable { name: format!("the key {}", shown(key)), problem };
        match key.len() {
            0 => return Err(wrong("it is empty".to_owned())),
            1..=MAX_KEY_BYTES => check_text(key.as_bytes()).map_err(wrong)?,
            n => return Err(wrong(format!("it has {n} bytes, and at most {MAX_KEY_BYTES} are allowed"))),
        }
        let mut bytes = value.value_type().id().to_le_bytes().to_vec();
        value.put(&mut bytes).map_err(wrong)?;
        if key == ALIGNMENT_KEY && !alignment_in(&bytes).is_some_and(u32::is_power_of_two) {
            return Err(wrong("it is no power of two of type u32".to_owned()));
        }
        Ok(Entry { key: key.to_owned(), bytes })
    }
}

/// The value of an entry whose type is u32.
fn alignment_in(entry: &[u8]) -> Option<u32> {
    let (value_type, value) = entry.split_first_chunk()?;
    let is_u32 = *value_type == ValueType::U32.id().to_le_bytes();
    is_u32.then_some(u32::from_le_bytes(value.try_into().ok()?))
}

pub(crate) fn put_text(text: &[u8], bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text);
}

fn check_text(text: &[u8]) -> std::result::Result<(), String> {
    if text.len() as u64 > MAX_LENGTH {
        return Err(format!("it has {} bytes, and llama.cpp reads at most {MAX_LENGTH}", text.len()));
    }
    match text.contains(&0) {
        true => Err("it contains the character NUL, where llama.cpp would end it".to_owned()),
        false => Ok(()),
    }
}

fn check_number(number: f64) -> std::result::Result<(), String> {
    match number.is_finite() {
        true => Ok(()),
        false => Err(format!("it is {number}, and a finite number was expected")),
    }
}

/// A number of a type that is not a float.
macro_rules! whole_numbers {
    ($($number:ident: $value_type:ident;)*) => {
        $(impl ToValue for $number {
            fn value_type(&self) -> ValueType {
                ValueType::$value_type
            }

            fn put(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
                bytes.extend_from_slice(&self.to_le_bytes());
                Ok(())
            }
        })*
    };
}

whole_numbers! { u8: U8; i8: I8; u16: U16; i16: I16; u32: U32; i32: I32; u64: U64; i64: I64; }

impl ToValue for f32 {
    fn value_type(&self) -> ValueType {
        ValueType::F32
    }

    fn put(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
        bytes.extend_from_slice(&self.to_le_bytes());
        check_number((*self).into())
    }
}

impl ToValue for f64 {
    fn value_type(&self) -> ValueType {
        ValueType::F64
    }

    fn put(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
        bytes.extend_from_slice(&self.to_le_bytes());
        check_number(*self)
    }
}

impl ToValue for bool {
    fn value_type(&self) -> ValueType {
        ValueType::Bool
    }

    fn put(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
        bytes.push(u8::from(*self));
        Ok(())
    }
}

impl ToValue for &str {
    fn value_type(&self) -> ValueType {
        ValueType::String
    }

    fn put(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
        put_text(self.as_bytes(), bytes);
        check_text(self.as_bytes())
    }
}

impl ToValue for String {
    fn value_type(&self) -> ValueType {
        ValueType::String
    }

    fn put(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
        self.as_str().put(bytes)
    }
}

/// What can be an element of an array: an empty one has a type, too.
pub trait ToElement: ToValue {
    /// The type in a file.
    const ELEM_TYPE: ValueType;
}

macro_rules! elements {
    ($($elem:ty: $value_type:ident;)*) => {
        $(impl ToElement for $elem {
            const ELEM_TYPE: ValueType = ValueType::$value_type;
        })*
    };
}

elements! {
    u8: U8; i8: I8; u16: U16; i16: I16; u32: U32; i32: I32; u64: U64; i64: I64;
    f32: F32; f64: F64; bool: Bool; &str: String; String: String;
}

impl<T: ToElement> ToValue for &[T] {
    fn value_type(&self) -> ValueType {
        ValueType::Array
    }

    fn put(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
        put_array_header(T::ELEM_TYPE, self.len() as u64, bytes)?;
        put_all(self.iter(), bytes)
    }
}

impl ToValue for Value<'_> {
    fn value_type(&self) -> ValueType {
        Value::value_type(self)
    }

    fn put(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
        match self {
            Value::U8(number) => number.put(bytes),
            Value::I8(number) => number.put(bytes),
            Value::U16(number) => number.put(bytes),
            Value::I16(number) => number.put(bytes),
            Value::U32(number) => number.put(bytes),
            Value::I32(number) => number.put(bytes),
            Value::F32(number) => number.put(bytes),
            Value::Bool(holds) => holds.put(bytes),
            Value::String(text) => {
                put_text(text, bytes);
                check_text(text)
            }
            Value::Array(array) => {
                put_array_header(array.elem_type(), array.len() as u64, bytes)?;
                put_all(array.iter(), bytes)
            }
            Value::U64(number) => number.put(bytes),
            Value::I64(number) => number.put(bytes),
            Value::F64(number) => number.put(bytes),
        }
    }
}

fn put_array_header(elem_type: ValueType, n: u64, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
    if n > MAX_LENGTH {
        return Err(format!("it has {n} elements, and llama.cpp reads at most {MAX_LENGTH}"));
    }
    bytes.extend_from_slice(&elem_type.id().to_le_bytes());
    bytes.extend_from_slice(&n.to_le_bytes());
    Ok(())
}

fn put_all(
    elems: impl Iterator<Item = impl PutElement>,
    bytes: &mut Vec<u8>,
) -> std::result::Result<(), String> {
    for (index, elem) in elems.enumerate() {
        elem.put_element(bytes).map_err(|problem| format!("in its element {index}, {problem}"))?;
    }
    Ok(())
}

/// An element, by value or by reference.
trait PutElement {
    fn put_element(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String>;
}

impl<T: ToElement> PutElement for &T {
    fn put_element(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
        (**self).put(bytes)
    }
}

impl PutElement for Value<'_> {
    fn put_element(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
        self.put(bytes)
    }
}
