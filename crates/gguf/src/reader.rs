//! A GGUF file: checked once, then read where it lies.

use std::collections::TryReserveError;
use std::ops::Deref;

use crate::cursor::Cursor;
use crate::error::{Error, Result, shown, wrong_type};
use crate::tensor::{MAX_DIMS, Tensor};
use crate::types::TensorType;
use crate::value::{FromValue, Value};

/// The first four bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// The key that says to how many bytes the data of tensors is padded.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// The padding of files that do not say it.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;

/// The longest name of a tensor that llama.cpp reads.
pub(crate) const MAX_NAME_BYTES: usize = 63;

/// The bytes before the first key.
const HEADER_BYTES: usize = 24;

/// The fewest bytes of a key with its value: a length, a letter, a type and a byte.
const MIN_KEY_BYTES: usize = 14;

/// The fewest bytes of the description of a tensor: the length of its name, dimensions, type and offset.
const MIN_TENSOR_BYTES: usize = 24;

/// A GGUF file in memory, such as a mapped file. It dereferences to the bytes, and nothing of them is copied.
///
/// [`new`](Self::new) checks everything but the elements of tensors. What is kept beside the bytes are their places: at
/// most 24 bytes for each tensor and 8 for each key, which is less than they take in the file.
///
/// Bytes that change later, under a mapped file, can make keys and tensors disappear. They never cause a panic.
#[derive(Debug)]
pub struct Gguf<B> {
    bytes: B,
    version: u32,
    alignment: u64,
    /// Where the data of tensors begins, which is the end of the file if there are none.
    data_at: u64,
    /// The places of keys, in the order of the keys.
    keys: Vec<usize>,
    /// The places of the descriptions of tensors, in the order of the file.
    tensors: Vec<usize>,
    /// The numbers of the tensors, in the order of their names.
    names: Vec<usize>,
}

impl<B: Deref<Target = [u8]>> Gguf<B> {
    /// Checks a file and finds its keys and tensors.
    ///
    /// # Errors
    /// What the format or llama.cpp does not allow, with its place.
    pub fn new(bytes: B) -> Result<Gguf<B>> {
        let (version, n_tensors, mut cursor, n_keys) = read_header(&bytes)?;
        let keys = read_keys(&bytes, &mut cursor, n_keys)?;
        let at = cursor.at();
        let mut gguf =
            Gguf { bytes, version, alignment: 0, data_at: 0, keys, tensors: vec![], names: vec![] };
        gguf.alignment = gguf.read_alignment()?;
        gguf.read_tensors(at, n_tensors)?;
        Ok(gguf)
    }

    /// The version of the format, 2 or 3, which differ in nothing that is read.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// To how many bytes the data of each tensor is padded.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The keys and their values, in the order of the file.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let mut cursor = Cursor::new(&self.bytes, HEADER_BYTES);
        (0..self.keys.len()).map_while(move |_| {
            let key = text_at(&mut cursor)?;
            Some((key, Value::read(&mut cursor, key).ok()?))
        })
    }

    /// The value of a key, unless the file lacks it.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        let at = |place: &usize| raw_text_at(&self.bytes, *place);
        let found = self.keys.binary_search_by(|place| at(place).cmp(key.as_bytes())).ok()?;
        let mut cursor = Cursor::new(&self.bytes, *self.keys.get(found)?);
        let key = text_at(&mut cursor)?;
        Value::read(&mut cursor, key).ok()
    }

    /// The value of a key as a number, text or list, or `None` if the file lacks it.
    ///
    /// # Errors
    /// A value of another kind.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let wrong = || wrong_type(key, T::EXPECTED, value.value_type());
        T::from_value(value).ok_or_else(wrong).map(Some)
    }

    /// The value of a key that the file must have.
    ///
    /// # Errors
    /// A missing key, and a value of another kind.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.get(key)?.ok_or_else(|| Error::MissingKey { key: shown(key) })
    }

    /// The number of tensors.
    pub fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// The tensors in the order of the file, which is also that of their data.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.tensors.iter().filter_map(|place| self.tensor_at(*place))
    }

    /// The tensor of a name.
    ///
    /// # Errors
    /// A file without such a tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let place = |number: &usize| self.tensors.get(*number).copied().unwrap_or(usize::MAX);
        let named = |number: &usize| raw_text_at(&self.bytes, place(number)).cmp(name.as_bytes());
        let found = self.names.binary_search_by(named).ok().and_then(|found| self.names.get(found));
        let tensor = found.and_then(|number| self.tensor_at(place(number)));
        tensor.ok_or_else(|| Error::MissingTensor { name: shown(name) })
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    fn tensor_at(&self, place: usize) -> Option<Tensor<'_>> {
        let description = Description::read(&mut Cursor::new(&self.bytes, place), 0).ok()?;
        let begin = usize::try_from(self.data_at.checked_add(description.offset)?).ok()?;
        let end = begin.checked_add(usize::try_from(description.n_bytes).ok()?)?;
        Some(Tensor::new(
            description.name,
            description.dims,
            description.n_dims,
            description.tensor_type,
            self.bytes.get(begin..end)?,
        ))
    }

    fn read_alignment(&self) -> Result<u64> {
        let wrong = |found: String| Error::WrongValue {
            key: ALIGNMENT_KEY.to_owned(),
            expected: "a power of two of type u32",
            found,
        };
        match self.value(ALIGNMENT_KEY) {
            None => Ok(DEFAULT_ALIGNMENT),
            Some(Value::U32(alignment)) if alignment.is_power_of_two() => Ok(alignment.into()),
            Some(Value::U32(alignment)) => Err(wrong(alignment.to_string())),
            Some(other) => Err(wrong(format!("a value of type {}", other.value_type()))),
        }
    }

    /// Checks the descriptions of tensors, which begin at a place, and finds the data.
    fn read_tensors(&mut self, at: usize, n_tensors: u64) -> Result<()> {
        let mut cursor = Cursor::new(&self.bytes, at);
        let mut tensors = places(&cursor, n_tensors, MIN_TENSOR_BYTES, "the descriptions of tensors")?;
        let mut end = 0_u64;
        let mut last_byte = 0_u64;
        for number in 0..n_tensors {
            let at = cursor.at();
            let description = Description::read(&mut cursor, number)?;
            let wrong = |problem| description.wrong(at, problem);
            if description.offset != end {
                return Err(wrong(format!(
                    "has its data at offset {}, and offset {end} was expected: the data of tensors lies in the order \
                     of their descriptions, without gaps",
                    description.offset
                )));
            }
            last_byte = end.saturating_add(description.n_bytes);
            end = last_byte
                .checked_next_multiple_of(self.alignment)
                .ok_or_else(|| wrong("makes the data of all tensors too long to count".to_owned()))?;
            tensors.push(at);
        }
        // A file without tensors ends without padding.
        let data_at = match n_tensors {
            0 => cursor.at() as u64,
            _ => (cursor.at() as u64).next_multiple_of(self.alignment),
        };
        let len = self.bytes.len() as u64;
        if data_at.saturating_add(last_byte) > len {
            return Err(Error::Cut {
                part: "the data of tensors".to_owned(),
                at: data_at,
                needs: last_byte,
                left: len.saturating_sub(data_at),
            });
        }
        self.data_at = data_at;
        let name = |number: &usize| raw_text_at(&self.bytes, tensors[*number]);
        let mut names = reserved(tensors.len()).map_err(|_| no_memory("the names of tensors"))?;
        names.extend(0..tensors.len());
        names.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        if let Some(twice) = names.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            let number = twice[0].max(twice[1]);
            let description =
                Description::read(&mut Cursor::new(&self.bytes, tensors[number]), number as u64)?;
            return Err(description.wrong(tensors[number], "has the name of another tensor".to_owned()));
        }
        (self.tensors, self.names) = (tensors, names);
        Ok(())
    }
}

/// What a file says about a tensor.
#[derive(Debug)]
struct Description<'a> {
    name: &'a str,
    dims: [u64; MAX_DIMS],
    n_dims: usize,
    tensor_type: TensorType,
    offset: u64,
    n_bytes: u64,
}

impl<'a> Description<'a> {
    fn read(cursor: &mut Cursor<'a>, number: u64) -> Result<Description<'a>> {
        let at = cursor.at();
        let part = &format_args!("the description of tensor {number}");
        let name = cursor.text(part)?;
        let wrong = |problem| Error::Tensor { name: number.to_string(), at: at as u64, problem };
        let name = std::str::from_utf8(name).map_err(|_| wrong("has a name that is not UTF-8".to_owned()))?;
        let wrong = |problem| Error::Tensor { name: shown(name), at: at as u64, problem };
        if name.len() > MAX_NAME_BYTES {
            let problem =
                format!("has a name of {} bytes, and at most {MAX_NAME_BYTES} are read", name.len());
            return Err(wrong(problem));
        }
        let n_dims = cursor.u32(part)?;
        let n_dims = usize::try_from(n_dims)
            .ok()
            .filter(|n| *n <= MAX_DIMS)
            .ok_or_else(|| wrong(format!("has {n_dims} dimensions, and at most {MAX_DIMS} are read")))?;
        let mut dims = [1; MAX_DIMS];
        for dim in &mut dims[..n_dims] {
            *dim = cursor.u64(part)?;
        }
        let id = cursor.u32(part)?;
        let tensor_type = TensorType::from_id(id).ok_or_else(|| {
            wrong(format!("has type {id}, which does not exist or is newer than this program"))
        })?;
        let offset = cursor.u64(part)?;
        let n_bytes = tensor_bytes(dims, tensor_type).map_err(wrong)?;
        Ok(Description { name, dims, n_dims, tensor_type, offset, n_bytes })
    }

    fn wrong(&self, at: usize, problem: String) -> Error {
        Error::Tensor { name: shown(self.name), at: at as u64, problem }
    }
}

/// The bytes of a tensor, or what is wrong with its shape.
pub(crate) fn tensor_bytes(
    dims: [u64; MAX_DIMS],
    tensor_type: TensorType,
) -> std::result::Result<u64, String> {
    let most = i64::MAX as u64;
    let counts = |n: u64, dim: u64| n.checked_mul(dim).filter(|n| *n <= most);
    // The product of the others may be too large even where one dimension is zero.
    let n_elems = dims.iter().try_fold(1_u64, |n, dim| counts(n, *dim).filter(|_| *dim <= most));
    let rows = dims[1..].iter().try_fold(1_u64, |n, dim| counts(n, *dim));
    let (Some(_), Some(n_rows)) = (n_elems, rows) else {
        return Err(format!("has the shape {dims:?}, which has too many elements to count"));
    };
    if !dims[0].is_multiple_of(tensor_type.block_elems() as u64) {
        return Err(format!(
            "has rows of {} elements, which are not whole blocks of {tensor_type} of {} elements",
            dims[0],
            tensor_type.block_elems()
        ));
    }
    let n_bytes = tensor_type.row_bytes(dims[0]).and_then(|row_bytes| counts(row_bytes, n_rows));
    n_bytes.ok_or_else(|| format!("has the shape {dims:?}, which has too many bytes to count"))
}

/// The version, the number of tensors, the place of the first key, and the number of keys.
fn read_header(bytes: &[u8]) -> Result<(u32, u64, Cursor<'_>, u64)> {
    let mut cursor = Cursor::new(bytes, 0);
    let part = "the header";
    match cursor.array(&part) {
        Ok(MAGIC) => {}
        _ => return Err(Error::NotGguf { found: bytes[..bytes.len().min(4)].to_vec() }),
    }
    let version = cursor.u32(&part)?;
    match version {
        2 | 3 => {}
        _ if version != 0 && version & 0xffff == 0 => return Err(Error::BigEndian),
        found => return Err(Error::Version { found }),
    }
    let (n_tensors, n_keys) = (cursor.u64(&part)?, cursor.u64(&part)?);
    Ok((version, n_tensors, cursor, n_keys))
}

/// Checks the keys and their values, and gives the places of the keys in the order of the keys.
fn read_keys(bytes: &[u8], cursor: &mut Cursor<'_>, n_keys: u64) -> Result<Vec<usize>> {
    let mut keys = places(cursor, n_keys, MIN_KEY_BYTES, "the keys")?;
    for number in 0..n_keys {
        let at = cursor.at();
        let wrong = |problem: &str| {
            let problem = problem.to_owned();
            Error::Key { key: format!("number {number}"), at: at as u64, problem }
        };
        let key = cursor.text(&format_args!("key {number}"))?;
        let key = std::str::from_utf8(key).map_err(|_| wrong("is not UTF-8"))?;
        if key.is_empty() {
            return Err(wrong("is empty"));
        }
        Value::read(cursor, key)?;
        keys.push(at);
    }
    let key = |place: &usize| raw_text_at(bytes, *place);
    keys.sort_unstable_by(|a, b| key(a).cmp(key(b)).then(a.cmp(b)));
    if let Some(twice) = keys.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
        let name = shown(&String::from_utf8_lossy(key(&twice[1])));
        let problem = "stands in the file twice".to_owned();
        return Err(Error::Key { key: name, at: twice[1] as u64, problem });
    }
    Ok(keys)
}

/// Room for the places of so many things, unless the rest of the file is too short for them.
fn places(cursor: &Cursor<'_>, n: u64, min_bytes: usize, part: &str) -> Result<Vec<usize>> {
    let (at, left) = (cursor.at() as u64, cursor.left() as u64);
    let needs = n.saturating_mul(min_bytes as u64);
    if needs > left {
        return Err(Error::Cut { part: part.to_owned(), at, needs, left });
    }
    // It fits into memory as often as the bytes of the file do.
    usize::try_from(n).ok().and_then(|n| reserved(n).ok()).ok_or_else(|| no_memory(part))
}

fn reserved(n: usize) -> std::result::Result<Vec<usize>, TryReserveError> {
    let mut places = Vec::new();
    places.try_reserve_exact(n)?;
    Ok(places)
}

fn no_memory(part: &str) -> Error {
    std::io::Error::new(std::io::ErrorKind::OutOfMemory, format!("no memory for the places of {part}")).into()
}

/// The text at a place, empty if there is none.
fn raw_text_at(bytes: &[u8], place: usize) -> &[u8] {
    Cursor::new(bytes, place).text(&"a name").unwrap_or_default()
}

fn text_at<'a>(cursor: &mut Cursor<'a>) -> Option<&'a str> {
    cursor.text(&"a key").ok().and_then(|text| std::str::from_utf8(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head of the shortest keys and of the shortest tensors.
    fn shortest(n_keys: u64, n_tensors: u64) -> Vec<u8> {
        let mut bytes =
            [MAGIC.as_slice(), &3_u32.to_le_bytes(), &n_tensors.to_le_bytes(), &n_keys.to_le_bytes()]
                .concat();
        let mut letters = (b'!'..=b'~').map(char::from);
        for _ in 0..n_keys {
            let key = letters.next().unwrap_or('a');
            bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, key as u8, 0, 0, 0, 0, 7]);
        }
        for _ in 0..n_tensors {
            bytes.extend([0; MIN_TENSOR_BYTES]);
        }
        bytes
    }

    #[test]
    fn what_is_kept_is_shorter_than_the_file() {
        // The data of a tensor without dimensions is one number.
        let file = [shortest(90, 1), vec![0; 64]].concat();
        let gguf = Gguf::new(file.as_slice()).unwrap();
        let n_places = gguf.keys.capacity() + gguf.tensors.capacity() + gguf.names.capacity();
        assert_eq!(n_places, 92);
        assert!(n_places * size_of::<usize>() < file.len());
        assert!(MIN_KEY_BYTES > size_of::<usize>() && MIN_TENSOR_BYTES > 2 * size_of::<usize>());
    }
}
