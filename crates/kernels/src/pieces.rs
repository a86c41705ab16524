//! Several output slices cut in step, so that each thread takes the same piece of all of them.

use std::marker::PhantomData;

use crate::par::Par;

/// About how many elements one task of an elementwise kernel works on: long enough to hide the cost of starting
/// it, short enough that its inputs and outputs stay in the cache of the core.
pub const TASK_ELEMS: usize = 16 * 1024;

/// How many rows of `dim` elements make a task.
pub fn task_rows(dim: usize) -> usize {
    (TASK_ELEMS / dim.max(1)).max(1)
}

/// Output that falls apart into disjoint pieces.
pub trait Cut: Sync {
    /// One of the pieces.
    type Piece;

    /// The piece with this index; empty beyond the end.
    ///
    /// # Safety
    /// No index may be taken twice.
    unsafe fn piece(&self, index: usize) -> Self::Piece;
}

/// A slice in pieces of `len` elements; the last may be shorter.
pub struct Pieces<'a, T> {
    start: *mut T,
    total: usize,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a shared `Pieces` gives out disjoint parts of a slice it holds exclusively, so sharing it between threads
// is no more than sending each of them its part.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

/// Cuts `slice` into pieces of `len` elements.
pub fn cut<T>(slice: &mut [T], len: usize) -> Pieces<'_, T> {
    Pieces { start: slice.as_mut_ptr(), total: slice.len(), len, slice: PhantomData }
}

impl<'a, T: Send> Cut for Pieces<'a, T> {
    type Piece = &'a mut [T];

    unsafe fn piece(&self, index: usize) -> &'a mut [T] {
        let from = self.total.min(index.saturating_mul(self.len));
        let len = self.len.min(self.total - from);
        // SAFETY: the range lies inside the slice, and no other piece overlaps it as no index is taken twice.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}

/// A matrix of which each task writes columns of its own.
pub(crate) struct Columns<T>(*mut T);

// SAFETY: tasks write disjoint columns, and `T: Send`.
unsafe impl<T: Send> Sync for Columns<T> {}

impl<T> Columns<T> {
    pub(crate) fn of(elements: &mut [T]) -> Columns<T> {
        Columns(elements.as_mut_ptr())
    }

    pub(crate) fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

impl<C: Cut> Cut for Option<C> {
    type Piece = Option<C::Piece>;

    unsafe fn piece(&self, index: usize) -> Self::Piece {
        // SAFETY: the caller's promise, passed on.
        self.as_ref().map(|c| unsafe { c.piece(index) })
    }
}

impl<C: Cut, const N: usize> Cut for [C; N] {
    type Piece = [C::Piece; N];

    unsafe fn piece(&self, index: usize) -> Self::Piece {
        // SAFETY: the caller's promise, passed on.
        self.each_ref().map(|c| unsafe { c.piece(index) })
    }
}

macro_rules! cut_tuple {
    ($($c:ident $i:tt),+) => {
        impl<$($c: Cut),+> Cut for ($($c,)+) {
            type Piece = ($($c::Piece,)+);

            unsafe fn piece(&self, index: usize) -> Self::Piece {
                // SAFETY: the caller's promise, passed on.
                unsafe { ($(self.$i.piece(index),)+) }
            }
        }
    };
}
cut_tuple!(A 0, B 1);
cut_tuple!(A 0, B 1, C 2);
cut_tuple!(A 0, B 1, C 2, D 3);

/// Runs `f(i, piece i)` for the pieces `0..n`, each once.
pub fn for_pieces<C: Cut>(par: &Par, n: usize, cut: C, f: impl Fn(usize, C::Piece) + Sync + Send) {
    // SAFETY: `for_each` runs every index once, and `cut` is ours alone.
    par.for_each(n, |i| f(i, unsafe { cut.piece(i) }));
}

/// A kernel that computes each element of its output from the elements of its inputs at the same place:
/// the body runs on tasks of all slices. Its settings come first.
macro_rules! elementwise {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $([$($g:ident : $b:ident),+ $(; $($types:tt)+)?])?
        ($($setting:ident : $ty:ty),*) ($($x:ident : &[$tx:ty]),*) -> ($y:ident : &mut [$tyy:ty]) $body:block
    ) => {
        $crate::instances::instances! {
            $(#[$meta])*
            #[allow(unused_variables, reason = "without inputs no task needs its index")]
            $vis fn $name $([$($g: $b),+ $(; $($types)+)?])? (
                cpu: &$crate::Cpu, $($setting: $ty,)* $($x: &[$tx],)* $y: &mut [$tyy],
            ) {
                use $crate::pieces::TASK_ELEMS;
                $crate::isa::multiversion! {
                    fn task $([$($g: $b),+])? ($($setting: $ty,)* $($x: &[$tx],)* $y: &mut [$tyy]) $body
                }
                $(assert_eq!($x.len(), $y.len(), concat!(stringify!($name), ": lengths"));)*
                cpu.par.chunks_mut($y, TASK_ELEMS, |i, $y| {
                    task(cpu.isa, $($setting,)* $(&$x[i * TASK_ELEMS..],)* $y);
                });
            }
        }
    };
}
pub(crate) use elementwise;
