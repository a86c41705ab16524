//! A pickle as data: what it describes is read, nothing is run, and no class exists but those on a list.
//!
//! [`Pickle::read`] runs the few instructions that `torch.save` writes ([`unpickler`]); a value is a place in a list, so
//! that neither sharing nor cycles nor depth cost anything. Instructions may copy what others made (the sizes of a tensor),
//! so what they take in memory is counted, and more than a multiple of the program's own bytes is refused.

mod globals;
mod unpickler;
mod value;

use super::error::PickleProblem;

pub use globals::Element;
use value::Id;
pub use value::Value;

/// What a pickle describes.
#[derive(Debug)]
pub struct Pickle {
    values: Vec<Value>,
    root: Id,
}

impl Pickle {
    /// Reads a pickle.
    pub fn read(bytes: &[u8]) -> Result<Pickle, PickleProblem> {
        unpickler::run(bytes).map(|(values, root)| Pickle { values, root })
    }

    /// The whole.
    pub fn root(&self) -> View<'_> {
        self.view(self.root)
    }

    fn view(&self, id: Id) -> View<'_> {
        View { pickle: self, value: &self.values[id as usize] }
    }
}

/// A value with what it refers to.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pickle: &'a Pickle,
    /// The value itself.
    pub value: &'a Value,
}

impl<'a> View<'a> {
    /// What a dictionary or an object's attributes hold under a name.
    pub fn get(self, name: &str) -> Option<View<'a>> {
        self.find(|key| matches!(key, Value::Text(text) if text == name))
    }

    /// What a dictionary holds under a number.
    pub fn at(self, number: usize) -> Option<View<'a>> {
        self.find(|key| matches!(key, Value::Int(n) if usize::try_from(*n) == Ok(number)))
    }

    fn find(self, is_it: impl Fn(&Value) -> bool) -> Option<View<'a>> {
        let holder = match self.value {
            Value::Object { state: Some(state) } => self.pickle.view(*state),
            _ => self,
        };
        // Of a key that was set twice the last counts.
        let found = holder.items()?.rev().find(|(key, _)| is_it(key.value));
        found.map(|(_, value)| value)
    }

    /// The entries of a dictionary.
    pub fn items(self) -> Option<impl DoubleEndedIterator<Item = (View<'a>, View<'a>)>> {
        let Value::Dict(items) = self.value else { return None };
        Some(items.iter().map(move |(key, value)| (self.pickle.view(*key), self.pickle.view(*value))))
    }

    /// The elements of a list or a tuple.
    pub fn elements(self) -> Option<impl ExactSizeIterator<Item = View<'a>>> {
        let (Value::List(ids) | Value::Tuple(ids)) = self.value else { return None };
        Some(ids.iter().map(move |id| self.pickle.view(*id)))
    }

    /// A text.
    pub fn text(self) -> Option<&'a str> {
        let Value::Text(text) = self.value else { return None };
        Some(text)
    }

    /// A whole number from 0.
    pub fn count(self) -> Option<u64> {
        let Value::Int(number) = self.value else { return None };
        u64::try_from(*number).ok()
    }

    /// A number.
    pub fn number(self) -> Option<f64> {
        match self.value {
            Value::Int(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// The storage of a tensor.
    pub fn storage(self) -> Option<&'a Value> {
        let Value::Tensor { storage, .. } = self.value else { return None };
        Some(self.pickle.view(*storage).value)
    }
}

#[cfg(test)]
mod tests;
