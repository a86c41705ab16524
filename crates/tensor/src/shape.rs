//! Shapes of dense, contiguous tensors (row-major, last dim fastest).

use oarlock_kernels::{Error, Result};

/// The most dims a tensor can have.
pub const MAX_DIMS: usize = 6;

/// The sizes of a tensor's dims; a scalar has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    sizes: [usize; MAX_DIMS],
    n_dims: usize,
}

impl Shape {
    /// A shape with these sizes.
    ///
    /// # Errors
    /// More than [`MAX_DIMS`] dims, or more elements than memory can address.
    pub fn new(sizes: &[usize]) -> Result<Shape> {
        let wrong = |expected: &str| Error::Shape {
            op: "shape",
            expected: expected.to_string(),
            got: format!("{sizes:?}"),
        };
        if sizes.len() > MAX_DIMS {
            return Err(wrong("at most 6 dims"));
        }
        let n_elems = sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
        if n_elems.is_none_or(|n| n > isize::MAX as usize / 8) {
            return Err(wrong("a number of elements that memory can address"));
        }
        let mut all = [0; MAX_DIMS];
        all[..sizes.len()].copy_from_slice(sizes);
        Ok(Shape { sizes: all, n_dims: sizes.len() })
    }

    /// The sizes.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes[..self.n_dims]
    }

    /// The product of the sizes.
    pub fn n_elems(&self) -> usize {
        self.sizes().iter().product()
    }

    /// The size of the last dim (1 for a scalar).
    pub fn last(&self) -> usize {
        self.sizes().last().copied().unwrap_or(1)
    }

    /// The number of rows when the tensor is seen as a matrix of its last dim.
    pub fn n_rows(&self) -> usize {
        self.sizes().split_last().map_or(1, |(_, rest)| rest.iter().product())
    }

    /// The same shape with another last dim.
    ///
    /// # Errors
    /// As [`Shape::new`]; a scalar has no last dim.
    pub fn with_last(&self, size: usize) -> Result<Shape> {
        let mut sizes = self.sizes().to_vec();
        match sizes.last_mut() {
            Some(last) => *last = size,
            None => {
                return Err(Error::Shape {
                    op: "shape",
                    expected: "at least one dim".to_string(),
                    got: "a scalar".to_string(),
                });
            }
        }
        Shape::new(&sizes)
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.sizes())
    }
}

/// What can be given where a shape is asked for.
pub trait IntoShape {
    /// The shape.
    ///
    /// # Errors
    /// As [`Shape::new`].
    fn into_shape(self) -> Result<Shape>;
}

impl IntoShape for Shape {
    fn into_shape(self) -> Result<Shape> {
        Ok(self)
    }
}
impl IntoShape for &[usize] {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(self)
    }
}
impl<const N: usize> IntoShape for [usize; N] {
    fn into_shape(self) -> Result<Shape> {
        Shape::new(&self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_limits() {
        let s = Shape::new(&[2, 3, 5]).unwrap();
        assert_eq!((s.n_elems(), s.last(), s.n_rows()), (30, 5, 6));
        assert_eq!(s.with_last(7).unwrap().sizes(), [2, 3, 7]);
        let scalar = Shape::new(&[]).unwrap();
        assert_eq!((scalar.n_elems(), scalar.last(), scalar.n_rows()), (1, 1, 1));
        assert!(scalar.with_last(1).is_err());
        assert!(Shape::new(&[1; 7]).is_err());
        assert!(Shape::new(&[usize::MAX, 2]).is_err());
    }
}
