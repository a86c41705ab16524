//! Walking over a dense output while operands move with strides of their own: broadcasts and permutations.

use std::ops::Range;

/// The order in which `N` operands are read for a dense output. Dims over which all of them move evenly are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk<const N: usize> {
    /// The outer dims, slowest first: the size, and how far each operand moves.
    outer: Vec<(usize, [usize; N])>,
    /// The elements of the innermost dim.
    row: usize,
    /// How far each operand moves along it.
    steps: [usize; N],
}

impl<const N: usize> Walk<N> {
    /// For an output of these sizes; operand `k` moves by `strides[k][d]` elements along dim `d`.
    pub fn new(sizes: &[usize], strides: [&[usize]; N]) -> Walk<N> {
        let mut dims: Vec<(usize, [usize; N])> = Vec::new();
        for (d, &size) in sizes.iter().enumerate() {
            let step = strides.map(|s| s[d]);
            if size == 1 {
                continue;
            }
            match dims.last_mut() {
                Some((outer, steps)) if (0..N).all(|k| steps[k] == step[k] * size) => {
                    (*outer, *steps) = (*outer * size, step);
                }
                _ => dims.push((size, step)),
            }
        }
        let (row, steps) = dims.pop().unwrap_or((1, [0; N]));
        Walk { outer: dims, row, steps }
    }

    /// How far each operand moves within a row.
    pub fn steps(&self) -> [usize; N] {
        self.steps
    }

    /// Calls `f(elements, starts)` for the part `first..` of the output, row by row: `elements` of `out` are computed
    /// from the operands' elements from `starts` on.
    pub fn for_rows<T>(&self, first: usize, out: &mut [T], mut f: impl FnMut(&mut [T], [usize; N])) {
        self.for_ranges(first, out.len(), |range, starts| f(&mut out[range], starts));
    }

    /// Calls `f(range, starts)` for the elements `first..first + n` of the output, row by row, where `range` counts from
    /// `first`.
    pub fn for_ranges(&self, first: usize, n: usize, mut f: impl FnMut(Range<usize>, [usize; N])) {
        let mut done = 0;
        while done < n {
            let at = first + done;
            let (mut row, column) = (at / self.row, at % self.row);
            let mut starts = self.steps.map(|step| step * column);
            for (size, strides) in self.outer.iter().rev() {
                for (start, stride) in starts.iter_mut().zip(strides) {
                    *start += row % size * stride;
                }
                row /= size;
            }
            let end = n.min(done + self.row - column);
            f(done..end, starts);
            done = end;
        }
    }
}
