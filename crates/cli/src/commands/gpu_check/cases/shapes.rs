//! The sizes of the cases.

/// Sizes: B sequences of S tokens (or as many as attention needs for more than one tile), H heads and G for keys, heads of
/// D elements, hidden size I, vocabulary V.
pub(super) struct Sizes {
    pub(super) b: usize,
    pub(super) s: usize,
    pub(super) tiles: usize,
    pub(super) h: usize,
    pub(super) g: usize,
    pub(super) heads: [usize; 2],
    pub(super) i: usize,
    pub(super) v: usize,
    /// Of cases at sizes of their own: rows of wide norms, the other sizes of heads, the vocabulary of Qwen2.5, the rows and the
    /// width that meet it.
    pub(super) wide_rows: usize,
    pub(super) other_heads: &'static [usize],
    pub(super) large: [usize; 3],
}
