//! Rotary position embedding: rotates pairs inside the heads of each row, in place.

use crate::Cpu;
use crate::dtype::Float;
use crate::error::{Error, Result};
use crate::instances::instances;
use crate::isa::multiversion;
use crate::pieces::task_rows;

/// Which elements of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// `j` and `j + rot_dim / 2`: Llama in transformers.
    Half,
    /// `2 j` and `2 j + 1`: complex numbers, as in Meta's code.
    Interleaved,
}

/// Which way to rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rotation {
    /// By the angle of the position.
    Forward,
    /// Back by it: the gradient of the forward rotation.
    Inverse,
}

/// The position of each row.
#[derive(Clone, Copy, Debug)]
pub enum Positions<'a> {
    /// Row `r` stands at `r % seq + offset`.
    Counted {
        /// Rows per sequence.
        seq: usize,
        /// The position of the first row of each.
        offset: usize,
    },
    /// One position per row.
    Explicit(&'a [i32]),
}

/// The shape of rotated rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeShape {
    /// Heads per row.
    pub heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// The first elements of a head that rotate; even, at most `head_dim`.
    pub rot_dim: usize,
    /// How they pair.
    pub style: RopeStyle,
}

instances! {
    /// Rotates `x [rows, heads, head_dim]` in place with the tables `cos` and `sin`, each `[positions, rot_dim / 2]`.
    ///
    /// # Errors
    /// A position outside the tables.
    pub fn rope[T: Float](
        cpu: &Cpu,
        shape: RopeShape,
        rotation: Rotation,
        positions: Positions<'_>,
        tables: (&[f32], &[f32]),
        x: &mut [T],
    ) -> Result<()> {
        let (cos, sin) = tables;
        let RopeShape { heads, head_dim, rot_dim, style } = shape;
        let (width, half) = (heads * head_dim, rot_dim / 2);
        assert!(rot_dim.is_multiple_of(2) && rot_dim <= head_dim, "rope: rot_dim {rot_dim} of {head_dim}");
        assert!(cos.len() == sin.len(), "rope: tables");
        if half == 0 || x.is_empty() {
            return Ok(());
        }
        assert!(x.len().is_multiple_of(width) && cos.len().is_multiple_of(half), "rope: rows of {width}");
        let rows = x.len() / width;
        check_positions(positions, rows, cos.len() / half)?;
        let task = task_rows(width);
        cpu.par.chunks_mut(x, task * width, |i, x| {
            for (j, x) in x.chunks_exact_mut(width).enumerate() {
                let row = i * task + j;
                let position = match positions {
                    Positions::Counted { seq, offset } => row % seq + offset,
                    Positions::Explicit(positions) => positions[row] as usize,
                };
                let angles = position * half..(position + 1) * half;
                let (cos, sin) = (&cos[angles.clone()], &sin[angles]);
                match style {
                    RopeStyle::Half => rotate_half(cpu.isa, x, head_dim, cos, sin, rotation),
                    RopeStyle::Interleaved => rotate_pairs(cpu.isa, x, head_dim, cos, sin, rotation),
                }
            }
        });
        Ok(())
    }
}

fn check_positions(positions: Positions<'_>, rows: usize, bound: usize) -> Result<()> {
    let out_of_range = |index: i64, position| Error::Index { op: "rope", index, position, bound };
    match positions {
        Positions::Counted { seq, offset } => {
            assert!(seq > 0, "rope: sequences of no rows");
            let row = rows.min(seq) - 1;
            let last = offset.saturating_add(row);
            if last >= bound { Err(out_of_range(last as i64, row)) } else { Ok(()) }
        }
        Positions::Explicit(positions) => {
            assert_eq!(positions.len(), rows, "rope: one position per row");
            match positions.iter().position(|&p| p < 0 || p as usize >= bound) {
                Some(row) => Err(out_of_range(i64::from(positions[row]), row)),
                None => Ok(()),
            }
        }
    }
}

#[inline(always)]
fn sign(rotation: Rotation) -> f32 {
    match rotation {
        Rotation::Forward => 1.0,
        Rotation::Inverse => -1.0,
    }
}

multiversion! {
    fn rotate_half[T: Float](x: &mut [T], head_dim: usize, cos: &[f32], sin: &[f32], rotation: Rotation) {
        let sign = sign(rotation);
        for head in x.chunks_exact_mut(head_dim) {
            let (low, high) = head[..2 * cos.len()].split_at_mut(cos.len());
            for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                let (x, y, s) = (a.to_f32(), b.to_f32(), s * sign);
                *a = T::from_f32(x * c - y * s);
                *b = T::from_f32(y * c + x * s);
            }
        }
    }
}

multiversion! {
    fn rotate_pairs[T: Float](x: &mut [T], head_dim: usize, cos: &[f32], sin: &[f32], rotation: Rotation) {
        let sign = sign(rotation);
        for head in x.chunks_exact_mut(head_dim) {
            let (pairs, _) = head[..2 * cos.len()].as_chunks_mut::<2>();
            for ((pair, c), s) in pairs.iter_mut().zip(cos).zip(sin) {
                let (x, y, s) = (pair[0].to_f32(), pair[1].to_f32(), s * sign);
                *pair = [T::from_f32(x * c - y * s), T::from_f32(y * c + x * s)];
            }
        }
    }
}
