//! Slices as torch writes them in brackets: `x[:, 1:3, -1]` is `x.i((.., 1..3, -1))`.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use oarlock_kernels::{Error, Result};

use crate::ints::{Int, place};
use crate::ops::strided::{Part, take};
use crate::ops::{narrow, reshape, wrong_shape};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// What is asked of one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// One index; the dim goes away.
    At(isize),
    /// Every `step`-th index from `start` on, before `end`; by default from the first to the last. What lies outside of
    /// the dim is left out.
    Every {
        /// The first index.
        start: Option<isize>,
        /// The index that the range ends before.
        end: Option<isize>,
        /// The distance between indices, at least 1.
        step: usize,
    },
    /// A new dim of size 1.
    New,
    /// All the dims that the other items leave.
    Rest,
}

/// A new dim of size 1, torch's `None`.
#[derive(Clone, Copy, Debug)]
pub struct NewAxis;

/// All the dims that the other items leave, torch's `...`.
#[derive(Clone, Copy, Debug)]
pub struct Ellipsis;

/// Every so-manieth index of a range: `Step(1.., 2)` is torch's `1::2`.
#[derive(Clone, Copy, Debug)]
pub struct Step<R>(
    /// The range.
    pub R,
    /// The distance between indices, at least 1.
    pub usize,
);

/// What can be asked of one dim: an index, a range of indices, [`Step`], [`NewAxis`], [`Ellipsis`].
pub trait IntoItem {
    /// The item.
    fn item(self) -> Item;
}

fn range(start: Option<isize>, end: Option<isize>) -> Item {
    Item::Every { start, end, step: 1 }
}

/// The end of a range that includes `last`.
fn after(last: isize) -> Option<isize> {
    Some(last.saturating_add(1)).filter(|&end| end != 0)
}

impl IntoItem for Item {
    fn item(self) -> Item {
        self
    }
}
impl<T: Int> IntoItem for T {
    fn item(self) -> Item {
        Item::At(self.signed())
    }
}
impl IntoItem for RangeFull {
    fn item(self) -> Item {
        range(None, None)
    }
}
impl<T: Int> IntoItem for Range<T> {
    fn item(self) -> Item {
        range(Some(self.start.signed()), Some(self.end.signed()))
    }
}
impl<T: Int> IntoItem for RangeFrom<T> {
    fn item(self) -> Item {
        range(Some(self.start.signed()), None)
    }
}
impl<T: Int> IntoItem for RangeTo<T> {
    fn item(self) -> Item {
        range(None, Some(self.end.signed()))
    }
}
impl<T: Int> IntoItem for RangeInclusive<T> {
    fn item(self) -> Item {
        range(Some(self.start().signed()), after(self.end().signed()))
    }
}
impl<T: Int> IntoItem for RangeToInclusive<T> {
    fn item(self) -> Item {
        range(None, after(self.end.signed()))
    }
}
impl<R: IntoItem> IntoItem for Step<R> {
    fn item(self) -> Item {
        match self.0.item() {
            Item::Every { start, end, .. } => Item::Every { start, end, step: self.1 },
            other => other,
        }
    }
}
impl IntoItem for NewAxis {
    fn item(self) -> Item {
        Item::New
    }
}
impl IntoItem for Ellipsis {
    fn item(self) -> Item {
        Item::Rest
    }
}

/// What [`Tensor::i`] takes: one item or a tuple of them, the first for the first dim.
pub trait IntoItems {
    /// The items.
    fn items(self) -> Vec<Item>;
}

impl<T: IntoItem> IntoItems for T {
    fn items(self) -> Vec<Item> {
        vec![self.item()]
    }
}
impl IntoItems for &[Item] {
    fn items(self) -> Vec<Item> {
        self.to_vec()
    }
}

macro_rules! tuple {
    ($($T:ident $i:tt),+) => {
        impl<$($T: IntoItem),+> IntoItems for ($($T,)+) {
            fn items(self) -> Vec<Item> {
                vec![$(self.$i.item()),+]
            }
        }
    };
}
crate::ints::for_tuples!(tuple);

impl Tensor {
    /// The part of the tensor that torch writes in brackets, for the first dims; the others stay whole.
    ///
    /// An index drops its dim. A range keeps the dim and may reach beyond its end, as in torch. Negative indices and
    /// bounds count from the end.
    ///
    /// ```
    /// use oarlock_tensor::ops::{Ellipsis, NewAxis, Step};
    /// # use oarlock_tensor::{Device, Par, Tensor, cpu::Isa};
    /// # let device = Device::cpu(Isa::detect(), Par::solo());
    /// # let x = Tensor::from_slice(&[0f32; 60], [3, 4, 5], &device)?;
    /// assert_eq!(x.i((.., 1..3, -1))?.sizes(), [3, 2]);
    /// assert_eq!(x.i(0)?.sizes(), [4, 5]);
    /// assert_eq!(x.i((Ellipsis, NewAxis, Step(.., 2)))?.sizes(), [3, 4, 1, 3]);
    /// # Ok::<(), oarlock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// More items than dims, an index outside of its dim, a step of 0.
    pub fn i(&self, items: impl IntoItems) -> Result<Tensor> {
        let mut slice = Slice::default();
        for item in spelled_out(self, items.items())? {
            slice.add(self, item)?;
        }
        slice.of(self)
    }
}

/// The items with one for each dim of x.
fn spelled_out(x: &Tensor, mut items: Vec<Item>) -> Result<Vec<Item>> {
    let count = |wanted: fn(&Item) -> bool| items.iter().filter(|item| wanted(item)).count();
    let n_taken = count(|item| matches!(item, Item::At(_) | Item::Every { .. }));
    let n_rests = count(|item| *item == Item::Rest);
    let left = x.sizes().len().checked_sub(n_taken);
    let Some(left) = left.filter(|_| n_rests <= 1) else {
        let expected =
            format!("at least {n_taken} dims for the indices, which may leave out dims at one place");
        return Err(wrong_shape("i", expected, x));
    };
    let rest = items.iter().position(|item| *item == Item::Rest);
    let (from, to) = rest.map_or((items.len(), items.len()), |rest| (rest, rest + 1));
    items.splice(from..to, vec![range(None, None); left]);
    Ok(items)
}

/// What the items so far ask for.
#[derive(Default)]
struct Slice {
    /// Dims of x.
    n_dims: usize,
    first: usize,
    sizes: Vec<usize>,
    strides: Vec<usize>,
    /// The dims of x that are not taken whole, with the first and the number of the indices and the step.
    cut: Vec<(usize, usize, usize, usize)>,
}

impl Slice {
    fn add(&mut self, x: &Tensor, item: Item) -> Result<()> {
        if item == Item::New {
            self.sizes.push(1);
            self.strides.push(0);
            return Ok(());
        }
        let dim = self.n_dims;
        let (size, stride) = (x.sizes()[dim], x.sizes()[dim + 1..].iter().product::<usize>());
        self.n_dims += 1;
        let (start, n, step) = match item {
            Item::At(index) => {
                let outside = || wrong_shape("i", format!("an index inside dim {dim} instead of {index}"), x);
                (place(index, size).ok_or_else(outside)?, 1, 1)
            }
            Item::Every { step: 0, .. } => return Err(Error::Usage("i: a step is at least 1".to_string())),
            Item::Every { start, end, step } => {
                let bound = |at: isize| match usize::try_from(at) {
                    Ok(at) => at.min(size),
                    Err(_) => size.saturating_sub(at.unsigned_abs()),
                };
                let (start, end) = (start.map_or(0, bound), end.map_or(size, bound));
                (start, end.saturating_sub(start).div_ceil(step), step)
            }
            Item::New | Item::Rest => (0, size, 1),
        };
        self.first += start * stride;
        if (n, step) != (size, 1) {
            self.cut.push((dim, start, n, step));
        }
        if !matches!(item, Item::At(_)) {
            self.sizes.push(n);
            self.strides.push(step.saturating_mul(stride));
        }
        Ok(())
    }

    fn of(self, x: &Tensor) -> Result<Tensor> {
        match self.cut[..] {
            [] => reshape(x, self.sizes),
            [(dim, start, n, 1)] => reshape(&narrow(x, dim, start..start + n)?, self.sizes),
            _ => {
                let shape = Shape::new(&self.sizes)?;
                take(x, Part { whole: *x.shape(), shape, first: self.first, strides: self.strides })
            }
        }
    }
}
