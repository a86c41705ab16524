//! From samples to a batch: numbers, vectors, arrays, tensors, tuples and maps of them are stacked into tensors.

use std::collections::BTreeMap;

use oarlock_tensor::{Device, Element, Tensor, ops};

use crate::{Error, Result};

/// How a loader makes a batch of samples: [`Stack`], or a function that you give.
pub trait Collator<I>: Send + Sync + 'static {
    /// The batch.
    type Batch: Send + 'static;

    /// Makes a batch on a device.
    ///
    /// # Errors
    /// Samples that do not go together, no memory.
    fn collate(&self, items: Vec<I>, device: &Device) -> Result<Self::Batch>;
}

impl<I, B, F> Collator<I> for F
where
    B: Send + 'static,
    F: Fn(Vec<I>, &Device) -> Result<B> + Send + Sync + 'static,
{
    type Batch = B;

    fn collate(&self, items: Vec<I>, device: &Device) -> Result<B> {
        self(items, device)
    }
}

/// The collator of loaders that are given none: every sample has the same form, and its numbers are stacked along a new
/// first dim.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stack;

impl<I: Collate> Collator<I> for Stack {
    type Batch = I::Batch;

    fn collate(&self, items: Vec<I>, device: &Device) -> Result<I::Batch> {
        I::collate(items, device)
    }
}

/// A sample that [`Stack`] can make batches of.
#[diagnostic::on_unimplemented(
    message = "samples of the type `{Self}` are not stacked by themselves",
    note = "numbers, `Vec`s and arrays of numbers, `Tensor`, `String`, tuples and `BTreeMap`s of them are; for others \
            give the loader a function: `.collate(|items, device| ..)`"
)]
pub trait Collate: Sized {
    /// A batch of such samples.
    type Batch: Send + 'static;

    /// Makes a batch.
    ///
    /// # Errors
    /// Samples of different forms, integers beyond 32 bits, no memory.
    fn collate(items: Vec<Self>, device: &Device) -> Result<Self::Batch>;
}

/// A number that goes into a tensor: floats as f32, integers as i32.
pub trait Number: Copy + Send + 'static {
    /// What the tensor holds.
    #[doc(hidden)]
    type Element: Element;

    #[doc(hidden)]
    fn element(self) -> Result<Self::Element>;
}

macro_rules! numbers {
    ($($type:ty => $element:ty, $convert:expr;)*) => {
        $(
            impl Number for $type {
                type Element = $element;

                fn element(self) -> Result<$element> {
                    let convert: fn($type) -> Result<$element> = $convert;
                    convert(self)
                }
            }

            impl Collate for $type {
                type Batch = Tensor;

                fn collate(items: Vec<$type>, device: &Device) -> Result<Tensor> {
                    stacked(&items, &[items.len()], device)
                }
            }
        )*
    };
}

fn narrow<T: Copy + TryInto<i32> + std::fmt::Display>(x: T) -> Result<i32> {
    x.try_into().map_err(|_| {
        Error::Usage(format!(
            "a batch holds integers of 32 bits, and a sample has {x}; give a collate function"
        ))
    })
}

numbers! {
    f32 => f32, Ok;
    f64 => f32, |x| Ok(x as f32);
    i32 => i32, Ok;
    i64 => i32, narrow;
    u8 => i32, |x| Ok(i32::from(x));
    u32 => i32, narrow;
    usize => i32, narrow;
}

fn stacked<T: Number>(flat: &[T], sizes: &[usize], device: &Device) -> Result<Tensor> {
    let elements = flat.iter().map(|x| x.element()).collect::<Result<Vec<_>>>()?;
    Ok(Tensor::from_slice(&elements, sizes, device)?)
}

impl<T: Number> Collate for Vec<T> {
    type Batch = Tensor;

    fn collate(items: Vec<Vec<T>>, device: &Device) -> Result<Tensor> {
        let len = items.first().map_or(0, Vec::len);
        if let Some(at) = items.iter().position(|item| item.len() != len) {
            return Err(Error::Usage(format!(
                "samples of a batch are stacked and need one length, but the first has {len} numbers and another {} \
                 (at place {at} of the batch); pad them, or give a collate function that does",
                items[at].len()
            )));
        }
        stacked(&items.concat(), &[items.len(), len], device)
    }
}

impl<T: Number, const N: usize> Collate for [T; N] {
    type Batch = Tensor;

    fn collate(items: Vec<[T; N]>, device: &Device) -> Result<Tensor> {
        stacked(&items.concat(), &[items.len(), N], device)
    }
}

impl Collate for Tensor {
    type Batch = Tensor;

    fn collate(items: Vec<Tensor>, _device: &Device) -> Result<Tensor> {
        Ok(ops::stack(&items.iter().collect::<Vec<_>>(), 0)?)
    }
}

impl Collate for String {
    type Batch = Vec<String>;

    fn collate(items: Vec<String>, _device: &Device) -> Result<Vec<String>> {
        Ok(items)
    }
}

impl<K: Ord + Send + std::fmt::Debug + 'static, V: Collate> Collate for BTreeMap<K, V> {
    type Batch = BTreeMap<K, V::Batch>;

    fn collate(items: Vec<BTreeMap<K, V>>, device: &Device) -> Result<Self::Batch> {
        let n = items.len();
        let mut columns: BTreeMap<K, Vec<V>> = BTreeMap::new();
        for (key, value) in items.into_iter().flatten() {
            columns.entry(key).or_default().push(value);
        }
        let stack = |(key, values): (K, Vec<V>)| {
            if values.len() != n {
                return Err(Error::Usage(format!(
                    "{} of {n} samples of a batch have the key {key:?}; all need the same keys",
                    values.len()
                )));
            }
            Ok((key, V::collate(values, device)?))
        };
        columns.into_iter().map(stack).collect()
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Collate),*> Collate for ($($name,)*) {
            type Batch = ($($name::Batch,)*);

            #[allow(non_snake_case)]
            fn collate(items: Vec<Self>, device: &Device) -> Result<Self::Batch> {
                struct Columns<$($name),*> { $($name: Vec<$name>),* }
                let mut columns = Columns { $($name: Vec::with_capacity(items.len())),* };
                for ($($name,)*) in items {
                    $(columns.$name.push($name);)*
                }
                Ok(($($name::collate(columns.$name, device)?,)*))
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
