//! The eigenvalues and eigenvectors of a symmetric matrix: Householder's reduction to three diagonals, then QL iterations
//! with implicit shifts (Golub and Van Loan 2013, sections 8.3.1 and 8.3.3).

/// More QL iterations for one eigenvalue than any matrix of numbers needs.
const MAX_ITERATIONS: usize = 100;

/// The eigenvalues of a symmetric matrix of `n` rows, and behind one another the eigenvectors of length 1, in the same
/// order, which is none. A matrix with numbers that are not finite has such eigenvalues, too.
pub(crate) fn symmetric(mut matrix: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut diagonal, mut beside) = (vec![0.0; n], vec![0.0; n]);
    if n > 0 {
        tridiagonal(&mut matrix, n, &mut diagonal, &mut beside);
        diagonalize(&mut matrix, n, &mut diagonal, &mut beside);
    }
    (diagonal, matrix)
}

/// Makes the matrix one of three diagonals, `beside` from its second number on, and puts the vectors of the change of basis
/// in its place. Row `j` of `v` holds column `j` of the textbooks' matrix, whose loops run down columns.
fn tridiagonal(v: &mut [f64], n: usize, diagonal: &mut [f64], beside: &mut [f64]) {
    let at = |row: usize, col: usize| col * n + row;
    (0..n).for_each(|j| diagonal[j] = v[at(n - 1, j)]);
    for i in (1..n).rev() {
        let scale: f64 = diagonal[..i].iter().map(|x| x.abs()).sum();
        let mut h = 0.0;
        if scale == 0.0 {
            beside[i] = diagonal[i - 1];
            for j in 0..i {
                diagonal[j] = v[at(i - 1, j)];
                (v[at(i, j)], v[at(j, i)]) = (0.0, 0.0);
            }
        } else {
            diagonal[..i].iter_mut().for_each(|x| *x /= scale);
            h = diagonal[..i].iter().map(|x| x * x).sum::<f64>();
            let last = diagonal[i - 1];
            let g = if last > 0.0 { -h.sqrt() } else { h.sqrt() };
            beside[i] = scale * g;
            h -= last * g;
            diagonal[i - 1] = last - g;
            reflect(v, n, i, h, diagonal, beside);
        }
        diagonal[i] = h;
    }
    for i in 0..n - 1 {
        v[at(n - 1, i)] = v[at(i, i)];
        v[at(i, i)] = 1.0;
        let h = diagonal[i + 1];
        let (done, next) = v.split_at_mut((i + 1) * n);
        let next = &mut next[..=i];
        if h != 0.0 {
            diagonal[..=i].iter_mut().zip(&*next).for_each(|(d, x)| *d = x / h);
            for column in done.chunks_exact_mut(n) {
                let along: f64 = next.iter().zip(&*column).map(|(x, y)| x * y).sum();
                column.iter_mut().zip(&diagonal[..=i]).for_each(|(x, d)| *x -= along * d);
            }
        }
        next.fill(0.0);
    }
    for j in 0..n {
        diagonal[j] = std::mem::take(&mut v[at(n - 1, j)]);
    }
    v[at(n - 1, n - 1)] = 1.0;
    beside[0] = 0.0;
}

/// Applies the reflection along the first `i` numbers of `diagonal` to the first `i` rows and columns.
fn reflect(v: &mut [f64], n: usize, i: usize, h: f64, diagonal: &mut [f64], beside: &mut [f64]) {
    beside[..i].fill(0.0);
    for j in 0..i {
        let f = diagonal[j];
        v[i * n + j] = f;
        let column = &v[j * n..j * n + i];
        let mut g = beside[j] + column[j] * f;
        for k in j + 1..i {
            g += column[k] * diagonal[k];
            beside[k] += column[k] * f;
        }
        beside[j] = g;
    }
    beside[..i].iter_mut().for_each(|x| *x /= h);
    let f: f64 = beside[..i].iter().zip(&diagonal[..i]).map(|(x, y)| x * y).sum();
    let half = f / (h + h);
    beside[..i].iter_mut().zip(&diagonal[..i]).for_each(|(x, d)| *x -= half * d);
    for j in 0..i {
        let (f, g) = (diagonal[j], beside[j]);
        let column = &mut v[j * n..(j + 1) * n];
        for k in j..i {
            column[k] -= f * beside[k] + g * diagonal[k];
        }
        diagonal[j] = column[i - 1];
        column[i] = 0.0;
    }
}

/// Turns three diagonals into one, and the vectors of the basis with them.
fn diagonalize(v: &mut [f64], n: usize, d: &mut [f64], e: &mut [f64]) {
    e.rotate_left(1);
    e[n - 1] = 0.0;
    let (mut shift, mut largest) = (0.0, 0.0f64);
    for l in 0..n {
        largest = largest.max(d[l].abs() + e[l].abs());
        let small = |x: f64| x.abs() <= f64::EPSILON * largest;
        let m = (l..n).find(|m| small(e[*m])).unwrap_or(n - 1);
        let mut iterations = 0;
        while m > l && iterations < MAX_ITERATIONS && (iterations == 0 || !small(e[l])) {
            iterations += 1;
            let g = d[l];
            let p = (d[l + 1] - g) / (2.0 * e[l]);
            let r = libm::hypot(p, 1.0).copysign(p);
            (d[l], d[l + 1]) = (e[l] / (p + r), e[l] * (p + r));
            let (next, h) = (d[l + 1], g - d[l]);
            d[l + 2..].iter_mut().for_each(|x| *x -= h);
            shift += h;
            let (mut p, after) = (d[m], e[l + 1]);
            let [mut c, mut c2, mut c3] = [1.0; 3];
            let [mut s, mut s2] = [0.0; 2];
            for i in (l..m).rev() {
                (c3, c2, s2) = (c2, c, s);
                let (g, h) = (c * e[i], c * p);
                let r = libm::hypot(p, e[i]);
                e[i + 1] = s * r;
                (s, c) = (e[i] / r, p / r);
                p = c * d[i] - s * g;
                d[i + 1] = h + s * (c * g + s * d[i]);
                let (left, right) = v.split_at_mut((i + 1) * n);
                for (x, y) in left[i * n..].iter_mut().zip(&mut right[..n]) {
                    (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
                }
            }
            p = -s * s2 * c3 * after * e[l] / next;
            (e[l], d[l]) = (s * p, c * p);
        }
        d[l] += shift;
        e[l] = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::symmetric;

    fn check(matrix: &[f64], n: usize) {
        let (values, vectors) = symmetric(matrix.to_vec(), n);
        let size = matrix.iter().fold(1.0f64, |size, x| size.max(x.abs()));
        for (i, (value, vector)) in values.iter().zip(vectors.chunks_exact(n.max(1))).enumerate() {
            for (row, x) in matrix.chunks_exact(n.max(1)).zip(vector) {
                let product: f64 = row.iter().zip(vector).map(|(a, b)| a * b).sum();
                assert!((product - value * x).abs() < 1e-12 * size * n as f64, "{n} {i}");
            }
            for (j, other) in vectors.chunks_exact(n.max(1)).enumerate() {
                let product: f64 = other.iter().zip(vector).map(|(a, b)| a * b).sum();
                assert!((product - f64::from(u8::from(i == j))).abs() < 1e-12 * n as f64, "{n} {i} {j}");
            }
        }
    }

    #[test]
    fn eigenvectors_are_orthonormal_and_only_stretched() {
        for n in [0, 1, 2, 3, 10, 33] {
            let number = |i: usize, j: usize| ((i * j + i + j) as f64 * 0.7).sin();
            check(&(0..n * n).map(|at| number(at / n, at % n)).collect::<Vec<_>>(), n);
            let spread = |i: usize, j: usize| number(i, j) * 10f64.powi(-((i + j) as i32) / 4);
            check(&(0..n * n).map(|at| spread(at / n, at % n)).collect::<Vec<_>>(), n);
            // Equal eigenvalues, and none but 0.
            check(&(0..n * n).map(|at| f64::from(u8::from(at / n == at % n))).collect::<Vec<_>>(), n);
            check(&vec![1.0; n * n], n);
            check(&vec![0.0; n * n], n);
        }
    }

    #[test]
    fn numbers_that_are_not_finite_end() {
        let (values, _) = symmetric(vec![f64::NAN; 16], 4);
        assert!(values.iter().any(|value| value.is_nan()));
    }
}
