//! How the launches of Adafactor divide a parameter into tasks of blocks, and the memory through which they speak.

use crate::geometry::{NORM_BLOCK, WARP_ROW};
use crate::table::THREADS;

/// Rows of which the squares of columns are summed at a time.
const COLUMN_RUN: usize = 512;
/// Columns that a block takes of them.
const COLUMNS: usize = 32;
/// The length of a step and the sides of the parameter.
const HEAD_BYTES: usize = 16;

/// A parameter of matrices. A vector is one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    batch: usize,
    rows: usize,
    cols: usize,
    sides: [u32; 2],
}

impl Matrices {
    /// So many matrices; none where the kernels do not take their sides, or where there are no elements.
    pub fn new([batch, rows, cols]: [usize; 3]) -> Option<Matrices> {
        let sides = [u32::try_from(rows).ok()?, u32::try_from(cols).ok()?];
        (batch > 0 && rows > 0 && cols > 0).then_some(Matrices { batch, rows, cols, sides })
    }

    /// Elements of all of them.
    pub fn n_elems(&self) -> usize {
        self.batch * self.rows * self.cols
    }

    /// Rows and columns.
    pub fn sides(&self) -> [u32; 2] {
        self.sides
    }

    /// Tasks of the means of rows: a row, or eight short ones.
    pub fn row_tasks(&self) -> usize {
        let per_task = if self.cols <= WARP_ROW { THREADS as usize / 32 } else { 1 };
        (self.batch * self.rows).div_ceil(per_task)
    }

    fn runs(&self) -> usize {
        self.rows.div_ceil(COLUMN_RUN)
    }

    /// Tasks of the sums of columns.
    pub fn column_tasks(&self) -> usize {
        self.batch * self.runs() * self.cols.div_ceil(COLUMNS)
    }

    /// Tasks of the means of columns.
    pub fn moment_tasks(&self) -> usize {
        (self.batch * self.cols).div_ceil(THREADS as usize)
    }

    /// Tasks of the factors of rows.
    pub fn factor_tasks(&self) -> usize {
        self.batch
    }

    /// Bytes that the launches share: besides the head, squared norms, sums of columns and factors of rows.
    pub fn scratch_bytes(&self) -> usize {
        let sums = 2 * self.n_elems().div_ceil(NORM_BLOCK) + self.batch * self.runs() * self.cols;
        (HEAD_BYTES + 8 * sums + 4 * self.batch * self.rows).next_multiple_of(HEAD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_and_column_is_the_work_of_somebody() {
        let embedding = Matrices::new([1, 151_936, 896]).unwrap();
        assert_eq!([embedding.row_tasks(), embedding.moment_tasks()], [18_992, 4]);
        // 297 runs of rows, so that all multiprocessors have work, and a share of the memory of the parameter.
        assert_eq!(embedding.column_tasks(), 297 * 28);
        assert!(embedding.scratch_bytes() < 4 * embedding.n_elems() / 100);
        let wide = Matrices::new([2, 3, 1500]).unwrap();
        assert_eq!([wide.row_tasks(), wide.column_tasks(), wide.factor_tasks()], [6, 2 * 47, 2]);
        assert_eq!(Matrices::new([1, 0, 3]), None);
        assert_eq!(Matrices::new([1, 1 << 32, 3]), None);
    }
}
