//! Runs the instructions of a pickle on a stack of values, with marks and a memo. Only what `torch.save` writes
//! is understood: protocols 2 to 4, without persistent names by text, extension codes, buffers and classic instances.

use std::collections::HashMap;

use super::globals::{Global, lookup};
use super::value::{Id, Value};
use crate::import::error::PickleProblem;

/// The most sizes of a tensor, as in torch.
const MAX_DIMS: usize = 64;

/// The longest name of a class or a storage. Like [`MAX_DIMS`] it keeps what is copied small.
const MAX_NAME_BYTES: usize = 256;

/// How many times the bytes of a program what it makes may take in memory, what any may take, and what none may exceed. One
/// that `torch.save` writes takes some ten times its own; what is copied again and again takes thousands.
const MAX_GROWTH: usize = 80;
const SMALL_BYTES: usize = 1 << 20;
const MOST_BYTES: usize = 1 << 28;

type Result<T> = std::result::Result<T, PickleProblem>;

/// Runs a program; returns all values and which is the result.
pub fn run(bytes: &[u8]) -> Result<(Vec<Value>, Id)> {
    let mut unpickler = Unpickler {
        bytes,
        at: 0,
        left_bytes: limit(bytes),
        // An instruction makes one value at most, so this never grows; what is not used takes no memory.
        values: Vec::with_capacity(bytes.len().min(MOST_BYTES / size_of::<Value>())),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    loop {
        if let Some(root) = unpickler.step()? {
            return Ok((unpickler.values, root));
        }
    }
}

/// What a program may take in memory.
fn limit(bytes: &[u8]) -> usize {
    bytes.len().saturating_mul(MAX_GROWTH).saturating_add(SMALL_BYTES).min(MOST_BYTES)
}

struct Unpickler<'a> {
    bytes: &'a [u8],
    at: usize,
    /// How much what is made may still take.
    left_bytes: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// The sizes that the stack had.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Unpickler<'a> {
    /// The next instruction; the result when it is the last.
    fn step(&mut self) -> Result<Option<Id>> {
        let at = self.at;
        match self.number::<1>()? as u8 {
            b'.' => return self.pop().map(Some),
            // The protocol, and frames, which say how much to read ahead.
            0x80 => self.number::<1>().and_then(|protocol| match protocol {
                2..=4 => Ok(()),
                _ => Err(self.malformed("the protocol is none of 2 to 4")),
            })?,
            0x95 => drop(self.number::<8>()?),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' => {
                let number = self.number::<4>()?;
                self.push(Value::Int(i64::from(number as u32 as i32)))?;
            }
            b'K' => self.number::<1>().and_then(|n| self.push(Value::Int(n as i64)))?,
            b'M' => self.number::<2>().and_then(|n| self.push(Value::Int(n as i64)))?,
            0x8a => self.number::<1>().and_then(|n| self.long(n))?,
            0x8b => self.number::<4>().and_then(|n| self.long(n))?,
            b'G' => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(self.take(8)?);
                self.push(Value::Float(f64::from_be_bytes(bytes)))?;
            }
            b'X' => self.number::<4>().and_then(|n| self.text(n))?,
            0x8c => self.number::<1>().and_then(|n| self.text(n))?,
            0x8d => self.number::<8>().and_then(|n| self.text(n))?,
            b'B' | b'T' => self.number::<4>().and_then(|n| self.skip(n))?,
            b'C' | b'U' => self.number::<1>().and_then(|n| self.skip(n))?,
            0x8e => self.number::<8>().and_then(|n| self.skip(n))?,
            b']' | 0x8f => self.push(Value::List(Vec::new()))?,
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b')' => self.push(Value::Tuple(Vec::new()))?,
            b't' => self.since_mark().and_then(|ids| self.push(Value::Tuple(ids)))?,
            0x91 => self.since_mark().and_then(|ids| self.push(Value::List(ids)))?,
            count @ 0x85..=0x87 => {
                let from = self.checked_depth(usize::from(count - 0x84))?;
                let ids = self.stack.split_off(from);
                self.push(Value::Tuple(ids))?;
            }
            b'a' => self.pop().and_then(|id| self.append(vec![id]))?,
            b'e' | 0x90 => self.since_mark().and_then(|ids| self.append(ids))?,
            b's' => {
                let from = self.checked_depth(2)?;
                let ids = self.stack.split_off(from);
                self.set_items(&ids)?;
            }
            b'u' => self.since_mark().and_then(|ids| self.set_items(&ids))?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop_text()?, self.pop_text()?);
                self.global(&module, &name)?;
            }
            b'R' | 0x81 => {
                let (arguments, callee) = (self.pop()?, self.pop()?);
                self.call(callee, arguments)?;
            }
            b'b' => self.build()?,
            b'Q' => self.storage()?,
            b'q' => self.number::<1>().and_then(|key| self.put(key as u32))?,
            b'r' => self.number::<4>().and_then(|key| self.put(key as u32))?,
            0x94 => self.put(self.memo.len() as u32)?,
            b'h' => self.number::<1>().and_then(|key| self.recall(key as u32))?,
            b'j' => self.number::<4>().and_then(|key| self.recall(key as u32))?,
            code => return Err(PickleProblem::Opcode { code, at }),
        }
        Ok(None)
    }

    fn malformed(&self, why: &'static str) -> PickleProblem {
        PickleProblem::Malformed { at: self.at, why }
    }

    // What follows an instruction.

    fn take(&mut self, n_bytes: u64) -> Result<&'a [u8]> {
        let n_bytes = usize::try_from(n_bytes).map_err(|_| PickleProblem::Truncated)?;
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..n_bytes).ok_or(PickleProblem::Truncated)?;
        self.at += n_bytes;
        Ok(taken)
    }

    /// A little-endian number of `N` bytes, at most 8.
    fn number<const N: usize>(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(self.take(N as u64)?);
        Ok(u64::from_le_bytes(bytes))
    }

    fn line(&mut self) -> Result<&'a str> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or(PickleProblem::Truncated)?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).map_err(|_| self.malformed("a name is not UTF-8"))
    }

    fn text(&mut self, n_bytes: u64) -> Result<()> {
        let bytes = self.take(n_bytes)?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.malformed("a text is not UTF-8"))?;
        self.push(Value::Text(text.to_string()))
    }

    fn skip(&mut self, n_bytes: u64) -> Result<()> {
        self.take(n_bytes)?;
        self.push(Value::Bytes)
    }

    /// A whole number in two's complement; one of more than 64 bits is nothing that is imported.
    fn long(&mut self, n_bytes: u64) -> Result<()> {
        let bytes = self.take(n_bytes)?;
        let value = match bytes.len() {
            0 => Value::Int(0),
            n_bytes @ 1..=8 => {
                let mut wide = [if bytes[n_bytes - 1] & 0x80 == 0 { 0 } else { 0xff }; 8];
                wide[..n_bytes].copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(wide))
            }
            _ => Value::Object { state: None },
        };
        self.push(value)
    }

    // The stack and the memo.

    fn push(&mut self, value: Value) -> Result<()> {
        let own = match &value {
            Value::Text(text) | Value::Storage { key: text, .. } => text.len(),
            Value::List(ids) | Value::Tuple(ids) => size_of_val(&ids[..]),
            Value::Tensor { shape, strides, .. } => size_of_val(&shape[..]) + size_of_val(&strides[..]),
            _ => 0,
        };
        self.spend(size_of::<Value>() + size_of::<Id>() + own)?;
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
        Ok(())
    }

    /// Counts memory before it is taken.
    fn spend(&mut self, n_bytes: usize) -> Result<()> {
        let left = self.left_bytes.checked_sub(n_bytes);
        self.left_bytes = left
            .ok_or_else(|| PickleProblem::TooLarge { what: "bytes in memory", limit: limit(self.bytes) })?;
        Ok(())
    }

    /// Where the last `count` values begin; they lie above the last mark.
    fn checked_depth(&self, count: usize) -> Result<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let from = self.stack.len().checked_sub(count).filter(|from| *from >= floor);
        from.ok_or_else(|| self.malformed("the stack is empty"))
    }

    fn pop(&mut self) -> Result<Id> {
        let from = self.checked_depth(1)?;
        let id = self.stack[from];
        self.stack.truncate(from);
        Ok(id)
    }

    fn top(&mut self) -> Result<Id> {
        self.checked_depth(1).map(|from| self.stack[from])
    }

    fn pop_text(&mut self) -> Result<String> {
        let id = self.pop()?;
        match self.value(id) {
            Value::Text(text) if text.len() <= MAX_NAME_BYTES => Ok(text.clone()),
            _ => Err(self.malformed("a name is not a text, or a long one")),
        }
    }

    fn since_mark(&mut self) -> Result<Vec<Id>> {
        let from = self.marks.pop().ok_or_else(|| self.malformed("there is no mark"))?;
        Ok(self.stack.split_off(from))
    }

    fn put(&mut self, key: u32) -> Result<()> {
        let id = self.top()?;
        self.spend(2 * size_of::<(u32, Id)>())?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<()> {
        let id = *self.memo.get(&key).ok_or_else(|| self.malformed("the memo has no such value"))?;
        self.spend(2 * size_of::<Id>())?;
        self.stack.push(id);
        Ok(())
    }

    fn value(&self, id: Id) -> &Value {
        &self.values[id as usize]
    }

    // Containers, and the few things that classes and functions stand for.

    fn append(&mut self, ids: Vec<Id>) -> Result<()> {
        let list = self.top()?;
        match &mut self.values[list as usize] {
            Value::List(list) => list.extend(ids),
            _ => return Err(self.malformed("elements are added to what is not a list")),
        }
        Ok(())
    }

    fn set_items(&mut self, ids: &[Id]) -> Result<()> {
        let dict = self.top()?;
        let (pairs, []) = ids.as_chunks::<2>() else {
            return Err(self.malformed("a key has no value"));
        };
        match &mut self.values[dict as usize] {
            Value::Dict(items) => items.extend(pairs.iter().map(|[key, value]| (*key, *value))),
            _ => return Err(self.malformed("items are added to what is not a dictionary")),
        }
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Result<()> {
        let global = lookup(module, name)
            .ok_or_else(|| PickleProblem::Global { module: module.to_string(), name: name.to_string() })?;
        self.push(Value::Global(global))
    }

    fn call(&mut self, callee: Id, arguments: Id) -> Result<()> {
        let (Value::Global(global), Value::Tuple(arguments)) = (self.value(callee), self.value(arguments))
        else {
            return Err(self.malformed("what is called is not a class, or has no arguments"));
        };
        match (*global, arguments.as_slice()) {
            (Global::Dict, []) => self.push(Value::Dict(Vec::new())),
            (Global::Sequence, []) => self.push(Value::List(Vec::new())),
            (Global::Sequence | Global::First, &[first, ..]) => {
                self.stack.push(first);
                Ok(())
            }
            (Global::Tensor, &[storage, first, shape, strides, ..]) => {
                self.tensor(storage, first, shape, strides)
            }
            (Global::TensorOfType, &[function, _, arguments, ..]) => {
                // One level: a function that asks for another one in turn is none that torch.save writes.
                match self.value(function) {
                    Value::Global(Global::Tensor | Global::First) => self.call(function, arguments),
                    _ => Err(self.malformed("a tensor is made by no function that is known")),
                }
            }
            (Global::Object, _) => self.push(Value::Object { state: None }),
            _ => Err(self.malformed("a class has other arguments than it should")),
        }
    }

    fn tensor(&mut self, storage: Id, first: Id, shape: Id, strides: Id) -> Result<()> {
        let count = |id: Id| match self.value(id) {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let counts = |id: Id| -> Option<Vec<u64>> {
            match self.value(id) {
                Value::Tuple(ids) if ids.len() <= MAX_DIMS => ids.iter().map(|id| count(*id)).collect(),
                _ => None,
            }
        };
        let is_storage = matches!(self.value(storage), Value::Storage { .. });
        let tensor = match (count(first), counts(shape), counts(strides)) {
            (Some(first), Some(shape), Some(strides)) if is_storage && shape.len() == strides.len() => {
                Value::Tensor { storage, first, shape, strides }
            }
            _ => return Err(self.malformed("a tensor has no storage, or no sizes")),
        };
        self.push(tensor)
    }

    /// A persistent object; the only ones are storages.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let storage = match self.value(id) {
            Value::Tuple(ids) => match ids[..] {
                [kind, global, key, _, n_elems, ..] => self.storage_of(kind, global, key, n_elems),
                _ => None,
            },
            _ => None,
        };
        let storage = storage.ok_or_else(|| self.malformed("a persistent object is not a storage"))?;
        self.push(storage)
    }

    fn storage_of(&self, kind: Id, global: Id, key: Id, n_elems: Id) -> Option<Value> {
        match (self.value(kind), self.value(global), self.value(key), self.value(n_elems)) {
            (
                Value::Text(kind),
                Value::Global(Global::Storage(element)),
                Value::Text(key),
                Value::Int(n_elems),
            ) if kind == "storage" && key.len() <= MAX_NAME_BYTES => {
                let n_elems = u64::try_from(*n_elems).ok()?;
                Some(Value::Storage { element: *element, key: key.clone(), n_elems })
            }
            _ => None,
        }
    }

    /// Gives an object its attributes. Those of dictionaries and tensors are nothing that is imported.
    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let object = self.top()?;
        match &mut self.values[object as usize] {
            Value::Object { state: attributes } => *attributes = Some(state),
            Value::Dict(_) | Value::Tensor { .. } => {}
            _ => return Err(self.malformed("attributes are given to what is not an object")),
        }
        Ok(())
    }
}
