//! How a weight lies in memory: panels of 16 rows, each with its scales and then its codes.

use super::form::{BlockType, Form, HALVES, LANES, RUN, UNIT, VECTOR};
use crate::dtype::f16;

/// Rows of a panel.
pub const ROWS: usize = LANES;

/// The size and type of a weight `[rows, cols]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockLayout {
    rows: usize,
    cols: usize,
    block_type: BlockType,
}

/// A block of a row: its elements are `scale * scales[group] * (code - zero) - minimum * minima[group]`, or without integer
/// scales `scale * (code - zero) + minimum`.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The codes, of signed types with 128 added; the first are used where a block has fewer.
    pub codes: [u8; UNIT],
    /// The scale.
    pub scale: f16,
    /// The minimum, where the type has one.
    pub minimum: f16,
    /// The integer scales of the groups, where the type has them.
    pub scales: [i8; 16],
    /// The integer minima of the groups.
    pub minima: [i8; 16],
}

impl BlockLayout {
    /// A weight of this size, if its rows are whole blocks and it is not too large for this machine.
    pub fn new(rows: usize, cols: usize, block_type: BlockType) -> Option<BlockLayout> {
        let layout = BlockLayout { rows, cols, block_type };
        let is_whole = rows > 0 && cols > 0 && cols.is_multiple_of(block_type.form().unit);
        // A panel takes less than 16 bytes for each column, and no more than two for an element of a whole one.
        let fits = rows.checked_next_multiple_of(LANES)?.checked_mul(cols)?.checked_mul(4)?;
        (is_whole && isize::try_from(fits).is_ok()).then_some(layout)
    }

    /// Rows of the weight.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the weight.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The type of its blocks.
    pub fn block_type(&self) -> BlockType {
        self.block_type
    }

    /// Elements of a block.
    pub fn unit(&self) -> usize {
        self.form().unit
    }

    /// 32-bit words of the whole.
    pub fn n_words(&self) -> usize {
        self.n_panels() * self.panel_bytes() / 4
    }

    /// 32-bit words of a panel of [`ROWS`] rows; those beyond the last row are zero.
    pub fn panel_words(&self) -> usize {
        self.panel_bytes() / 4
    }

    /// Writes a block of a row of a panel into the words of the panel, which were zero before.
    ///
    /// # Panics
    /// If there is no such block, or another number of words than [`BlockLayout::panel_words`].
    pub fn put(&self, lane: usize, block: usize, unit: &Unit, panel: &mut [i32]) {
        assert!(panel.len() == self.panel_words() && lane < ROWS && block < self.n_units(), "{self:?}");
        let form = self.form();
        let panel = bytemuck::cast_slice_mut::<i32, u8>(panel);
        let head = &mut panel[block * form.head_bytes()..][..form.head_bytes()];
        head[2 * lane..][..2].copy_from_slice(&unit.scale.to_le_bytes());
        let mut at = HALVES;
        if form.has_min {
            head[at + 2 * lane..][..2].copy_from_slice(&unit.minimum.to_le_bytes());
            at += HALVES;
        }
        if let Some(group) = form.group {
            let integers = |at: usize, values: &[i8], head: &mut [u8]| {
                for (group, value) in values.iter().enumerate().take(UNIT / group) {
                    head[at + LANES * group + lane] = value.cast_unsigned();
                }
            };
            integers(at, &unit.scales, head);
            if form.has_min {
                integers(at + UNIT / group * LANES, &unit.minima, head);
            }
        }
        let runs = &mut panel[self.heads_bytes() + block * self.unit_bytes()..][..self.unit_bytes()];
        for (run, codes) in runs.chunks_exact_mut(form.run_bytes()).zip(unit.codes.chunks_exact(RUN)) {
            for (k, &code) in codes.iter().enumerate() {
                let (quad, byte) = (k / 4, 4 * lane + k % 4);
                for part in Part::of(form, quad) {
                    run[part.first + byte] |= (code >> part.above & part.mask) << part.shift;
                }
            }
        }
    }

    /// The elements of a row, as ggml computes them.
    pub(super) fn row(&self, words: &[i32], row: usize, mut put: impl FnMut(usize, f32)) {
        let (form, lane) = (self.form(), row % LANES);
        let panel = &bytemuck::cast_slice::<i32, u8>(words)[row / LANES * self.panel_bytes()..];
        let half = |head: &[u8], at: usize| {
            f16::from_le_bytes([head[at + 2 * lane], head[at + 2 * lane + 1]]).to_f32()
        };
        for block in 0..self.n_units() {
            let head = &panel[block * form.head_bytes()..][..form.head_bytes()];
            let runs = &panel[self.heads_bytes() + block * self.unit_bytes()..][..self.unit_bytes()];
            let scale = half(head, 0);
            let minimum = if form.has_min { half(head, HALVES) } else { 0.0 };
            for k in 0..form.unit {
                let run = &runs[k / RUN * form.run_bytes()..][..form.run_bytes()];
                let (quad, byte) = (k % RUN / 4, 4 * lane + k % 4);
                let parts = Part::of(form, quad);
                let code = parts.fold(0, |code, part| {
                    code | (run[part.first + byte] >> part.shift & part.mask) << part.above
                });
                let level = (i32::from(code) - form.zero) as f32;
                let value = match form.group {
                    None if form.has_min => level * scale + minimum,
                    None => level * scale,
                    Some(group) => {
                        let first = if form.has_min { 2 * HALVES } else { HALVES };
                        let integer =
                            |at: usize| f32::from(head[at + k / group * LANES + lane].cast_signed());
                        let scaled = level * (scale * integer(first));
                        match form.has_min {
                            true => scaled - minimum * integer(first + UNIT / group * LANES),
                            false => scaled,
                        }
                    }
                };
                put(block * form.unit + k, value);
            }
        }
    }

    pub(super) fn form(&self) -> Form {
        self.block_type.form()
    }

    pub(super) fn n_panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    pub(super) fn n_units(&self) -> usize {
        self.cols / self.form().unit
    }

    /// Bytes of the scales of a panel, behind which its codes begin.
    pub(super) fn heads_bytes(&self) -> usize {
        (self.n_units() * self.form().head_bytes()).next_multiple_of(VECTOR)
    }

    /// Bytes of the codes of a unit of a panel.
    fn unit_bytes(&self) -> usize {
        self.form().unit / RUN * self.form().run_bytes()
    }

    pub(super) fn panel_bytes(&self) -> usize {
        self.heads_bytes() + self.n_units() * self.unit_bytes()
    }
}

/// Some bits of the codes of four elements of each row.
struct Part {
    /// The first byte of their vector in the run.
    first: usize,
    /// Where in a byte they lie.
    shift: usize,
    /// Where in a code they belong.
    above: usize,
    mask: u8,
}

impl Part {
    /// The parts of the codes of the elements `4 * quad..` of a run.
    fn of(form: Form, quad: usize) -> impl Iterator<Item = Part> {
        let part = |first, shift, above, mask| Some(Part { first, shift, above, mask });
        let low = part(quad % 4 * VECTOR, quad / 4 * 4, 0, 15);
        let parts = match form.bits {
            8 => [part(quad * VECTOR, 0, 0, 0xff), None],
            5 => [low, part(4 * VECTOR, quad, 4, 1)],
            6 => [low, part((4 + quad / 4) * VECTOR, 2 * (quad % 4), 4, 3)],
            _ => [low, None],
        };
        parts.into_iter().flatten()
    }
}
