//! Integers where a dim, an index or a size is asked for: of any common type, and negative where torch allows it.

use crate::shape::Shape;

/// A dim, an index or a size. A negative dim or index counts from the end: -1 is the last.
pub trait Int: Copy {
    /// The number; one that is too large for the type stays too large for any tensor.
    fn signed(self) -> isize;
}

macro_rules! int {
    ($($T:ty),*) => {
        $(
            impl Int for $T {
                #[allow(clippy::unnecessary_fallible_conversions, reason = "isize is one of the types")]
                #[allow(unused_comparisons, reason = "some of the types have no sign")]
                fn signed(self) -> isize {
                    isize::try_from(self).unwrap_or(if self < 0 { isize::MIN } else { isize::MAX })
                }
            }
        )*
    };
}
int!(usize, isize, i32, i64, u32);

/// Several of them: an array, a slice, a vector, a tuple of different types, or a shape.
pub trait Ints {
    /// The numbers.
    fn signed(self) -> Vec<isize>;
}

impl<T: Int, const N: usize> Ints for [T; N] {
    fn signed(self) -> Vec<isize> {
        self.as_slice().signed()
    }
}
impl<T: Int, const N: usize> Ints for &[T; N] {
    fn signed(self) -> Vec<isize> {
        self.as_slice().signed()
    }
}
impl<T: Int> Ints for &[T] {
    fn signed(self) -> Vec<isize> {
        self.iter().map(|x| x.signed()).collect()
    }
}
impl<T: Int> Ints for &Vec<T> {
    fn signed(self) -> Vec<isize> {
        self.as_slice().signed()
    }
}
impl<T: Int> Ints for Vec<T> {
    fn signed(self) -> Vec<isize> {
        self.as_slice().signed()
    }
}
impl Ints for Shape {
    fn signed(self) -> Vec<isize> {
        self.sizes().signed()
    }
}
impl Ints for &Shape {
    fn signed(self) -> Vec<isize> {
        self.sizes().signed()
    }
}
impl Ints for () {
    fn signed(self) -> Vec<isize> {
        Vec::new()
    }
}

/// Calls a macro for the tuples of up to six elements, with the type and the place of each.
macro_rules! for_tuples {
    ($call:ident) => {
        $call!(A 0);
        $call!(A 0, B 1);
        $call!(A 0, B 1, C 2);
        $call!(A 0, B 1, C 2, D 3);
        $call!(A 0, B 1, C 2, D 3, E 4);
        $call!(A 0, B 1, C 2, D 3, E 4, F 5);
    };
}
pub(crate) use for_tuples;

macro_rules! tuple {
    ($($T:ident $i:tt),+) => {
        impl<$($T: Int),+> Ints for ($($T,)+) {
            fn signed(self) -> Vec<isize> {
                vec![$(self.$i.signed()),+]
            }
        }
    };
}
for_tuples!(tuple);

/// The place that `index` names among `n`, counted from the end if it is negative.
pub(crate) fn place(index: isize, n: usize) -> Option<usize> {
    let from_end = || n.checked_sub(index.unsigned_abs());
    usize::try_from(index).ok().or_else(from_end).filter(|&place| place < n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_types_count_from_both_ends() {
        assert_eq!((2usize, -1, 3i64).signed(), [2, -1, 3]);
        assert_eq!([1, -2].signed(), (&[1i64, -2]).signed());
        assert_eq!((Shape::new(&[4, 5]).unwrap().signed(), ().signed()), (vec![4, 5], vec![]));
        assert_eq!(usize::MAX.signed(), isize::MAX);
        assert_eq!(
            [0, 2, 3, -1, -3, -4, isize::MIN].map(|i| place(i, 3)),
            [Some(0), Some(2), None, Some(2), Some(0), None, None]
        );
    }
}
