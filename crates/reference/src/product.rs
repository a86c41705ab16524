//! Products of matrices that lie in memory with gaps, in batches, and what is added to them.

use crate::compare::assert_close;
use crate::number::{Number, f64s, values};

/// How the matrices of a batch lie.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Layout {
    pub row_stride: usize,
    pub batch_stride: usize,
    /// Whether the columns of what is multiplied are the rows in memory.
    pub transposed: bool,
}

impl Layout {
    /// Matrices `[rows, cols]` with this many elements between rows and between matrices, in memory the other way round where
    /// they are transposed.
    pub fn new(sizes: [usize; 2], transposed: bool, gap: usize, between: usize) -> Layout {
        let [rows, cols] = if transposed { [sizes[1], sizes[0]] } else { sizes };
        Layout { row_stride: cols + gap, batch_stride: rows * (cols + gap) + between, transposed }
    }

    /// Where an element of a matrix is.
    fn place(&self, i: usize, row: usize, col: usize) -> usize {
        let [row, col] = if self.transposed { [col, row] } else { [row, col] };
        i * self.batch_stride + row * self.row_stride + col
    }
}

/// `d = alpha · a b + beta · c + bias`, where `c` may be `d` itself.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Product {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Layout,
    pub b: Layout,
    pub d: Layout,
    pub alpha: f32,
    pub beta: f32,
    pub with_c: bool,
    pub with_bias: bool,
}

/// The numbers of a product; `before` is in the place of the result.
#[allow(missing_docs)]
pub struct Operands<T, O> {
    pub a: Vec<T>,
    pub b: Vec<T>,
    pub c: Vec<O>,
    pub before: Vec<O>,
    pub bias: Vec<O>,
}

impl Product {
    /// Random numbers, none of them behind the last row of the last matrix.
    pub fn operands<T: Number, O: Number>(&self) -> Operands<T, O> {
        let len = |layout: &Layout, [rows, cols]: [usize; 2]| {
            (self.batch - 1) * layout.batch_stride
                + layout.row_stride * if layout.transposed { cols } else { rows }
        };
        let (a, b) = (len(&self.a, [self.m, self.k]), len(&self.b, [self.k, self.n]));
        let d = len(&self.d, [self.m, self.n]);
        Operands {
            a: values(1, a),
            b: values(2, b),
            c: values(3, d),
            before: values(4, d),
            bias: values(5, self.n),
        }
    }

    /// Compares a result. What is between rows and matrices stays.
    #[track_caller]
    pub fn check<T: Number, O: Number>(&self, what: &str, x: &Operands<T, O>, got: &[O], tolerance: f64) {
        let (a, b, bias) = (f64s(&x.a), f64s(&x.b), f64s(&x.bias));
        let added = f64s(if self.with_c { &x.c } else { &x.before });
        let mut want = f64s(&x.before);
        for at in 0..self.batch * self.m * self.n {
            let (i, row, col) = (at / self.n / self.m, at / self.n % self.m, at % self.n);
            let term = |k: usize| a[self.a.place(i, row, k)] * b[self.b.place(i, k, col)];
            let place = self.d.place(i, row, col);
            let kept = if self.beta == 0.0 { 0.0 } else { f64::from(self.beta) * added[place] };
            want[place] = f64::from(self.alpha) * (0..self.k).map(term).sum::<f64>() + kept;
            want[place] += if self.with_bias { bias[col] } else { 0.0 };
        }
        assert_close(what, got, &want, tolerance);
    }
}
