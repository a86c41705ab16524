//! Values that hold tensors: batches, what a model returns, what is gathered. One walk serves them all.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

use oarlock_tensor::Tensor;
use oarlock_tensor::ops::HeadLoss;

use crate::error::Result;

pub use oarlock_derive::Nested;

/// A value that holds tensors, at any depth. Tuples, `Vec`, `Option`, maps and arrays of such values are such values;
/// `#[derive(Nested)]` makes a struct or an enum one. Strings and numbers hold none, and stay as they are.
///
/// ```
/// use oarlock::{Nested, Tensor};
///
/// #[derive(Nested)]
/// struct Batch {
///     input_ids: Tensor,
///     labels: Option<Tensor>,
///     texts: Vec<String>,
/// }
/// ```
pub trait Nested: Sized {
    /// The same value with each tensor replaced, in a fixed order.
    ///
    /// # Errors
    /// The first error of `f`.
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self>;

    /// Its tensors, in the order of [`Nested::map_tensors`].
    fn tensors(&self) -> Vec<Tensor> {
        let mut found = Vec::new();
        // It cannot fail: nothing that it calls does.
        let _ = self.map_tensors(&mut |tensor| {
            found.push(tensor.clone());
            Ok(tensor.clone())
        });
        found
    }
}

impl Nested for Tensor {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        f(self)
    }
}

impl Nested for HeadLoss {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<HeadLoss> {
        Ok(HeadLoss { loss: f(&self.loss)?, ..self.clone() })
    }
}

impl<T: Nested> Nested for Vec<T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Vec<T>> {
        self.iter().map(|value| value.map_tensors(f)).collect()
    }
}

impl<T: Nested> Nested for Option<T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Option<T>> {
        self.as_ref().map(|value| value.map_tensors(f)).transpose()
    }
}

impl<T: Nested, const N: usize> Nested for [T; N] {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<[T; N]> {
        let mapped: Vec<T> = self.iter().map(|value| value.map_tensors(f)).collect::<Result<_>>()?;
        // There are as many as there were.
        mapped.try_into().map_err(|_| crate::Error::Usage("an array changed its length".to_owned()))
    }
}

impl<K: Ord + Clone, T: Nested> Nested for BTreeMap<K, T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<BTreeMap<K, T>> {
        self.iter().map(|(key, value)| Ok((key.clone(), value.map_tensors(f)?))).collect()
    }
}

impl<K: Ord + Hash + Clone, T: Nested, S: BuildHasher + Default> Nested for HashMap<K, T, S> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<HashMap<K, T, S>> {
        // In the order of keys: every rank comes to the same tensors in the same order.
        let mut keys: Vec<&K> = self.keys().collect();
        keys.sort();
        keys.into_iter().map(|key| Ok((key.clone(), self[key].map_tensors(f)?))).collect()
    }
}

macro_rules! without_tensors {
    ($($type:ty),* $(,)?) => {
        $(impl Nested for $type {
            fn map_tensors(&self, _f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<$type> {
                Ok(self.clone())
            }
        })*
    };
}

without_tensors!((), bool, char, String, i8, i16, i32, i64, isize, u8, u16, u32, u64, usize, f32, f64);

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Nested),*> Nested for ($($name,)*) {
            #[allow(non_snake_case)]
            fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
                let ($($name,)*) = self;
                Ok(($($name.map_tensors(f)?,)*))
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
