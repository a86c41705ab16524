//! Values that hold tensors: batches, what a model returns, what is gathered. One walk serves them all.

mod parcel;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

use oarlock_tensor::Tensor;
use oarlock_tensor::ops::{HeadLoss, Labels};

use crate::{Error, Result};

pub use self::parcel::Parcel;
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

    /// Writes the value for another rank. The derive does so field by field.
    ///
    /// # Errors
    /// A value of a type that says nothing about it.
    fn pack(&self, _parcel: &mut Parcel) -> Result<()> {
        Err(stays::<Self>())
    }

    /// Reads what [`Nested::pack`] wrote.
    ///
    /// # Errors
    /// What was written is no such value.
    fn unpack(_parcel: &mut Parcel) -> Result<Self> {
        Err(stays::<Self>())
    }
}

fn stays<T>() -> Error {
    Error::Usage(format!(
        "values of the type {} are not sent to other ranks; derive Nested for it, or write its `pack` and `unpack` (where \
         a loader sends them: or set dispatch_batches to false)",
        std::any::type_name::<T>()
    ))
}

impl Nested for Tensor {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        f(self)
    }

    fn pack(&self, parcel: &mut Parcel) -> Result<()> {
        parcel.put_tensor(self)
    }

    fn unpack(parcel: &mut Parcel) -> Result<Tensor> {
        parcel.take_tensor()
    }
}

impl Nested for HeadLoss {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<HeadLoss> {
        Ok(self.with_loss(f(&self.loss)?))
    }
}

/// Labels live on the host, wherever the tokens are.
impl Nested for Labels {
    fn map_tensors(&self, _: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Labels> {
        Ok(self.clone())
    }
}

impl<T: Nested> Nested for Vec<T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Vec<T>> {
        self.iter().map(|value| value.map_tensors(f)).collect()
    }

    fn pack(&self, parcel: &mut Parcel) -> Result<()> {
        parcel.put_len(self.len());
        self.iter().try_for_each(|value| value.pack(parcel))
    }

    fn unpack(parcel: &mut Parcel) -> Result<Vec<T>> {
        (0..parcel.take_len()?).map(|_| T::unpack(parcel)).collect()
    }
}

impl<T: Nested> Nested for Option<T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Option<T>> {
        self.as_ref().map(|value| value.map_tensors(f)).transpose()
    }

    fn pack(&self, parcel: &mut Parcel) -> Result<()> {
        self.is_some().pack(parcel)?;
        self.as_ref().map_or(Ok(()), |value| value.pack(parcel))
    }

    fn unpack(parcel: &mut Parcel) -> Result<Option<T>> {
        bool::unpack(parcel)?.then(|| T::unpack(parcel)).transpose()
    }
}

impl<T: Nested, const N: usize> Nested for [T; N] {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<[T; N]> {
        let mapped: Vec<T> = self.iter().map(|value| value.map_tensors(f)).collect::<Result<_>>()?;
        // There are as many as there were.
        mapped.try_into().map_err(|_| Error::Usage("an array changed its length".to_owned()))
    }

    fn pack(&self, parcel: &mut Parcel) -> Result<()> {
        self.iter().try_for_each(|value| value.pack(parcel))
    }

    fn unpack(parcel: &mut Parcel) -> Result<[T; N]> {
        let values = (0..N).map(|_| T::unpack(parcel)).collect::<Result<Vec<T>>>()?;
        values.try_into().map_err(|_| parcel::broken())
    }
}

impl<K: Ord + Clone + Nested, T: Nested> Nested for BTreeMap<K, T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<BTreeMap<K, T>> {
        self.iter().map(|(key, value)| Ok((key.clone(), value.map_tensors(f)?))).collect()
    }

    fn pack(&self, parcel: &mut Parcel) -> Result<()> {
        parcel.put_len(self.len());
        self.iter().try_for_each(|(key, value)| {
            key.pack(parcel)?;
            value.pack(parcel)
        })
    }

    fn unpack(parcel: &mut Parcel) -> Result<BTreeMap<K, T>> {
        (0..parcel.take_len()?).map(|_| Ok((K::unpack(parcel)?, T::unpack(parcel)?))).collect()
    }
}

impl<K: Ord + Hash + Clone + Nested, T: Nested, S: BuildHasher + Default> Nested for HashMap<K, T, S> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<HashMap<K, T, S>> {
        // In the order of keys: every rank comes to the same tensors in the same order.
        let mut keys: Vec<&K> = self.keys().collect();
        keys.sort();
        keys.into_iter().map(|key| Ok((key.clone(), self[key].map_tensors(f)?))).collect()
    }

    fn pack(&self, parcel: &mut Parcel) -> Result<()> {
        parcel.put_len(self.len());
        self.iter().try_for_each(|(key, value)| {
            key.pack(parcel)?;
            value.pack(parcel)
        })
    }

    fn unpack(parcel: &mut Parcel) -> Result<HashMap<K, T, S>> {
        (0..parcel.take_len()?).map(|_| Ok((K::unpack(parcel)?, T::unpack(parcel)?))).collect()
    }
}

macro_rules! numbers {
    ($($type:ty),* $(,)?) => {
        $(impl Nested for $type {
            fn map_tensors(&self, _f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<$type> {
                Ok(*self)
            }

            fn pack(&self, parcel: &mut Parcel) -> Result<()> {
                parcel.put(&self.to_le_bytes());
                Ok(())
            }

            fn unpack(parcel: &mut Parcel) -> Result<$type> {
                let bytes = parcel.take(size_of::<$type>())?;
                Ok(<$type>::from_le_bytes(bytes.try_into().map_err(|_| parcel::broken())?))
            }
        })*
    };
}

numbers!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize, f32, f64);

/// Values that hold no tensor, by what they are sent as.
macro_rules! without_tensors {
    ($($type:ty, |$value:ident| $sent:expr, |$got:ident: $as:ty| $back:expr;)*) => {
        $(impl Nested for $type {
            fn map_tensors(&self, _f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<$type> {
                Ok(self.clone())
            }

            fn pack(&self, parcel: &mut Parcel) -> Result<()> {
                let $value = self;
                $sent.pack(parcel)
            }

            fn unpack(parcel: &mut Parcel) -> Result<$type> {
                let $got = <$as>::unpack(parcel)?;
                $back.ok_or_else(parcel::broken)
            }
        })*
    };
}

without_tensors! {
    bool, |value| u8::from(*value), |got: u8| (got < 2).then_some(got == 1);
    char, |value| u32::from(*value), |got: u32| char::from_u32(got);
    String, |value| value.clone().into_bytes(), |got: Vec<u8>| String::from_utf8(got).ok();
}

impl Nested for () {
    fn map_tensors(&self, _f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<()> {
        Ok(())
    }

    fn pack(&self, _parcel: &mut Parcel) -> Result<()> {
        Ok(())
    }

    fn unpack(_parcel: &mut Parcel) -> Result<()> {
        Ok(())
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Nested),*> Nested for ($($name,)*) {
            #[allow(non_snake_case)]
            fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
                let ($($name,)*) = self;
                Ok(($($name.map_tensors(f)?,)*))
            }

            #[allow(non_snake_case)]
            fn pack(&self, parcel: &mut Parcel) -> Result<()> {
                let ($($name,)*) = self;
                $($name.pack(parcel)?;)*
                Ok(())
            }

            fn unpack(parcel: &mut Parcel) -> Result<Self> {
                Ok(($($name::unpack(parcel)?,)*))
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
