//! The largest singular values of a matrix and their vectors, in f64.

use super::eigen;
use super::orthogonal::{dot, subtract_projection};
use crate::Cpu;
use crate::isa::multiversion;
use crate::random::{Stream, fill_normal};

/// Columns that a task multiplies with at a time, whose sums stay in the first cache.
const TILE: usize = 128;

/// Rows of a task.
const ROWS: usize = 64;

/// The least dim of the space in which vectors are sought at once.
const LEAST_BLOCK: usize = 8;

/// How far a vector may be from a singular one, relative to the largest eigenvalue.
const TOLERANCE: f64 = 1e-12;

/// The share of its length that a vector keeps at least where it has a direction of its own.
const INDEPENDENT: f64 = 1e-10;

/// How vectors are sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// In spaces of Krylov that grow until the vectors are those of the matrix (Golub and Van Loan 2013, section 10.3).
    Exact,
    /// By so many multiplications of as many random vectors as are sought with the matrix and its transpose (Halko,
    /// Martinsson and Tropp 2011, algorithm 4.4): `torch.svd_lowrank`.
    Iterations(usize),
}

/// Some singular values and vectors. Of the numbers of a left vector the one furthest from 0 is positive.
#[derive(Clone, Debug, PartialEq)]
pub struct Singular {
    /// The values, largest first.
    pub values: Vec<f64>,
    /// The left vectors, of a number for each row, behind one another.
    pub left: Vec<f64>,
    /// The right vectors, of a number for each column.
    pub right: Vec<f64>,
}

/// The `n` largest singular values of a matrix of this many rows and columns in row-major order; `n` is at most the smaller
/// of both. The bits depend neither on the number of threads nor on the instruction set. Of a matrix with numbers that are
/// not finite all results are NaN.
pub fn largest(cpu: &Cpu, matrix: &[f32], sizes: [usize; 2], n: usize, search: Search) -> Singular {
    let [rows, cols] = sizes;
    let n = n.min(rows).min(cols);
    if !matrix.iter().all(|x| x.is_finite()) {
        let nan = |len| vec![f64::NAN; len];
        return Singular { values: nan(n), left: nan(n * rows), right: nan(n * cols) };
    }
    let matrix = Matrix { cpu, x: matrix, rows, cols };
    let found = match search {
        _ if n == 0 => Pairs::default(),
        Search::Exact => exact(&matrix, n),
        Search::Iterations(iterations) => by_iterations(&matrix, n, iterations),
    };
    let Pairs { values, short: mut left, long: mut right } = found;
    if matrix.is_tall() {
        std::mem::swap(&mut left, &mut right);
    }
    for (left, right) in left.chunks_exact_mut(rows.max(1)).zip(right.chunks_exact_mut(cols.max(1))) {
        let furthest = left.iter().fold(0.0f64, |most, x| if x.abs() > most.abs() { *x } else { most });
        if furthest < 0.0 {
            left.iter_mut().chain(right).for_each(|x| *x = -*x);
        }
    }
    Singular { values, left, right }
}

/// Vectors as `short` as the smaller dim of a matrix and those as `long` as the larger one, behind one another.
#[derive(Default)]
struct Pairs {
    values: Vec<f64>,
    short: Vec<f64>,
    long: Vec<f64>,
}

struct Matrix<'a> {
    cpu: &'a Cpu,
    x: &'a [f32],
    rows: usize,
    cols: usize,
}

impl Matrix<'_> {
    fn is_tall(&self) -> bool {
        self.rows >= self.cols
    }

    fn short(&self) -> usize {
        self.rows.min(self.cols)
    }

    fn long(&self) -> usize {
        self.rows.max(self.cols)
    }

    /// The products with vectors of the short side, which have the long one.
    fn to_long(&self, vectors: &[f64]) -> Vec<f64> {
        if self.is_tall() { self.times(vectors) } else { self.transposed_times(vectors) }
    }

    fn to_short(&self, vectors: &[f64]) -> Vec<f64> {
        if self.is_tall() { self.transposed_times(vectors) } else { self.times(vectors) }
    }

    /// The products with vectors of a number for each column.
    fn times(&self, vectors: &[f64]) -> Vec<f64> {
        let (cols, n) = (self.cols, vectors.len() / self.cols);
        let mut by_row = vec![0.0; self.rows * n];
        self.cpu.par.chunks_mut(&mut by_row, ROWS * n, |task, out| {
            for (row, out) in self.x[task * ROWS * cols..].chunks_exact(cols).zip(out.chunks_exact_mut(n)) {
                for (out, vector) in out.iter_mut().zip(vectors.chunks_exact(cols)) {
                    *out = row_dot(self.cpu.isa, row, vector);
                }
            }
        });
        (0..n * self.rows).map(|at| by_row[at % self.rows * n + at / self.rows]).collect()
    }

    /// The products of the transpose with vectors of a number for each row.
    fn transposed_times(&self, vectors: &[f64]) -> Vec<f64> {
        let (cols, n) = (self.cols, vectors.len() / self.rows);
        let mut by_tile = vec![0.0; cols.div_ceil(TILE) * TILE * n];
        self.cpu.par.chunks_mut(&mut by_tile, TILE * n, |tile, out| {
            let columns = tile * TILE..cols.min((tile + 1) * TILE);
            for (i, row) in self.x.chunks_exact(cols).enumerate() {
                let row = &row[columns.clone()];
                for (out, vector) in out.chunks_exact_mut(TILE).zip(vectors.chunks_exact(self.rows)) {
                    add_scaled(self.cpu.isa, vector[i], row, out);
                }
            }
        });
        let place = |vector: usize, col: usize| (col / TILE * n + vector) * TILE + col % TILE;
        (0..n * cols).map(|at| by_tile[place(at / cols, at % cols)]).collect()
    }
}

const LANES: usize = 8;

multiversion! {
    /// Lane by lane, so that each instruction set gives bitwise identical results.
    fn row_dot(row: &[f32], vector: &[f64]) -> f64 {
        let mut lanes = [0.0; LANES];
        let ((row, row_rest), (vector, vector_rest)) = (row.as_chunks::<LANES>(), vector.as_chunks::<LANES>());
        for (a, b) in row.iter().zip(vector) {
            for l in 0..LANES {
                lanes[l] += f64::from(a[l]) * b[l];
            }
        }
        let rest: f64 = row_rest.iter().zip(vector_rest).map(|(a, b)| f64::from(*a) * b).sum();
        lanes.iter().sum::<f64>() + rest
    }
}

multiversion! {
    fn add_scaled(by: f64, row: &[f32], out: &mut [f64]) {
        out.iter_mut().zip(row).for_each(|(out, x)| *out += by * f64::from(*x));
    }
}

/// Orthonormal vectors, to which others are appended.
struct Basis<'a> {
    cpu: &'a Cpu,
    /// Numbers of a vector.
    len: usize,
    vectors: Vec<f64>,
    /// Random vectors so far.
    drawn: u64,
}

impl<'a> Basis<'a> {
    fn new(cpu: &'a Cpu, len: usize) -> Basis<'a> {
        Basis { cpu, len, vectors: Vec::new(), drawn: 0 }
    }

    fn n_vectors(&self) -> usize {
        self.vectors.len() / self.len
    }

    /// What of a vector no other has; a random direction where that is nothing.
    fn append(&mut self, mut vector: Vec<f64>) {
        let isa = self.cpu.isa;
        let length = |vector: &[f64]| dot(isa, vector, vector).sqrt();
        let mut before = length(&vector);
        loop {
            // A second time where much of it went, and rounding with it.
            self.vectors.chunks_exact(self.len).for_each(|unit| subtract_projection(isa, unit, &mut vector));
            let after = length(&vector);
            if after <= INDEPENDENT * before {
                vector = self.random();
                before = length(&vector);
                continue;
            }
            vector.iter_mut().for_each(|x| *x /= after);
            if after > 0.5 * before {
                break;
            }
            before = 1.0;
        }
        self.vectors.extend(vector);
    }

    fn append_all(&mut self, vectors: &[f64]) {
        vectors.chunks_exact(self.len).for_each(|vector| self.append(vector.to_vec()));
    }

    fn random(&mut self) -> Vec<f64> {
        let mut numbers = vec![0.0f32; self.len];
        let stream = Stream { seed: 0, stream: self.drawn };
        self.drawn += 1;
        fill_normal(self.cpu, stream, 0, 0.0, 1.0, &mut numbers);
        numbers.into_iter().map(f64::from).collect()
    }

    fn random_block(&mut self, n: usize) -> Vec<f64> {
        (0..n).flat_map(|_| self.random()).collect()
    }
}

/// The vectors in the space of an orthonormal basis and of the products with it that come closest to singular ones. The
/// basis is of one side of the matrix, the products are of the other.
fn in_space(cpu: &Cpu, basis: &[f64], len: usize, products: &[f64], other: usize, n: usize) -> [Vec<f64>; 3] {
    let dim = basis.len() / len;
    let mut gram = vec![0.0; dim * dim];
    cpu.par.chunks_mut(&mut gram, dim, |i, row| {
        let own = &products[i * other..][..other];
        for (out, product) in row.iter_mut().zip(products.chunks_exact(other)) {
            *out = dot(cpu.isa, own, product);
        }
    });
    let (squares, vectors) = eigen::symmetric(gram, dim);
    let mut order: Vec<usize> = (0..dim).collect();
    order.sort_by(|a, b| squares[*b].total_cmp(&squares[*a]));
    order.truncate(n);
    let combined = |of: &[f64], len: usize| -> Vec<f64> {
        let mut out = vec![0.0; n * len];
        cpu.par.chunks_mut(&mut out, len, |i, out| {
            for (weight, vector) in vectors[order[i] * dim..][..dim].iter().zip(of.chunks_exact(len)) {
                out.iter_mut().zip(vector).for_each(|(out, x)| *out += weight * x);
            }
        });
        out
    };
    let images = combined(products, other);
    // Of small values the squares have lost more digits than the vectors.
    let values = images.chunks_exact(other).map(|image| dot(cpu.isa, image, image).sqrt()).collect();
    [values, combined(basis, len), images]
}

/// Vectors of length 1 along products of singular vectors with the matrix; of a value of 0 any that are orthogonal.
fn units(cpu: &Cpu, values: &[f64], products: &[f64], len: usize) -> Vec<f64> {
    let mut basis = Basis::new(cpu, len);
    let least = INDEPENDENT * values[0];
    for (value, product) in values.iter().zip(products.chunks_exact(len)) {
        basis.append(if *value > least { product.to_vec() } else { vec![0.0; len] });
    }
    basis.vectors
}

fn exact(matrix: &Matrix<'_>, n: usize) -> Pairs {
    let (cpu, short, long) = (matrix.cpu, matrix.short(), matrix.long());
    let block = n.max(LEAST_BLOCK).min(short);
    let mut basis = Basis::new(cpu, short);
    let mut products: Vec<f64> = Vec::new();
    let mut next = basis.random_block(block);
    let mut check_at = 3 * block;
    loop {
        next.truncate((short - basis.n_vectors()) * short);
        let from = basis.vectors.len();
        basis.append_all(&next);
        let new = matrix.to_long(&basis.vectors[from..]);
        let dim = basis.n_vectors();
        if dim >= check_at.min(short) {
            products.extend(&new);
            let [values, vectors, images] = in_space(cpu, &basis.vectors, short, &products, long, n);
            if dim == short || are_singular(matrix, &values, &vectors, &images) {
                let long = units(cpu, &values, &images, long);
                return Pairs { values, short: vectors, long };
            }
            check_at = dim + dim / 2;
        } else {
            products.extend(&new);
        }
        next = matrix.to_short(&new);
    }
}

/// Whether the transpose takes the images of vectors back to multiples of them.
fn are_singular(matrix: &Matrix<'_>, values: &[f64], vectors: &[f64], images: &[f64]) -> bool {
    let bound = TOLERANCE * values[0] * values[0];
    let back = matrix.to_short(images);
    let pairs = back.chunks_exact(matrix.short()).zip(vectors.chunks_exact(matrix.short()));
    values.iter().zip(pairs).all(|(value, (back, vector))| {
        let rest = back.iter().zip(vector).map(|(b, v)| b - value * value * v);
        rest.map(|x| x * x).sum::<f64>().sqrt() <= bound
    })
}

fn by_iterations(matrix: &Matrix<'_>, n: usize, iterations: usize) -> Pairs {
    let (cpu, short, long) = (matrix.cpu, matrix.short(), matrix.long());
    let orthonormal = |vectors: &[f64], len: usize| {
        let mut basis = Basis::new(cpu, len);
        basis.append_all(vectors);
        basis.vectors
    };
    let mut basis = orthonormal(&matrix.to_long(&Basis::new(cpu, short).random_block(n)), long);
    for _ in 0..iterations {
        let back = orthonormal(&matrix.to_short(&basis), short);
        basis = orthonormal(&matrix.to_long(&back), long);
    }
    let products = matrix.to_short(&basis);
    let [values, vectors, images] = in_space(cpu, &basis, long, &products, short, n);
    Pairs { short: units(cpu, &values, &images, short), values, long: vectors }
}
