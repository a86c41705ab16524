//! The parameters of a checkpoint, and the pieces of files in which they lie.

use std::collections::BTreeMap;

use super::container::Run;

/// The end of the name of a file with model states.
pub const MODEL_STATES: &str = "mp_rank_00_model_states.pt";

/// Elements of a rank's file.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Which of [`DeepSpeedCheckpoint::files`](super::deepspeed::DeepSpeedCheckpoint::files).
    pub file: usize,
    /// Where in it.
    pub run: Run,
}

/// A parameter and the pieces that make up its state, in the order of their elements.
#[derive(Debug)]
pub struct Parameter {
    /// Its sizes.
    pub shape: Vec<usize>,
    /// By kind of state; of a frozen parameter there is the weight alone.
    pub state: BTreeMap<&'static str, Vec<Piece>>,
}

/// Elements of a row of pieces; none where it ends before.
pub fn cut(row: &[Piece], mut first: u64, mut n_elems: u64) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    for piece in row {
        if n_elems == 0 {
            break;
        }
        let run = piece.run.part(first, n_elems);
        if run.n_elems > 0 {
            pieces.push(Piece { run, ..*piece });
        }
        first = first.saturating_sub(piece.run.n_elems);
        n_elems -= run.n_elems;
    }
    (n_elems == 0).then_some(pieces)
}

/// The elements of a shape.
pub fn n_elems_of(shape: &[usize]) -> u64 {
    shape.iter().fold(1u64, |n_elems, size| n_elems.saturating_mul(*size as u64))
}

/// The elements that a rank holds of a parameter in stage 3.
pub fn share_of(n_elems: u64, rank: u64, n_ranks: u64) -> u64 {
    let part = n_elems.div_ceil(n_ranks.max(1));
    part.min(n_elems.saturating_sub(part.saturating_mul(rank)))
}

/// Parameters by name.
pub type Parameters = BTreeMap<String, Parameter>;
