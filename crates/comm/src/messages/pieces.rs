//! Elements in pieces of the size of a message, and their bytes in a region.

use std::ops::Range;

use super::library::ByteSpan;
use crate::ownership::Ownership;
use crate::region::Region;

/// Bytes of one message of a gather.
pub(super) const PIECE: usize = 4 << 20;

/// `length` bytes or elements in pieces of at most `piece`: where each begins, and how long it is.
pub(super) fn pieces(length: usize, piece: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(piece).map(move |at| (at, piece.min(length - at)))
}

/// The elements that a rank owns, in pieces of at most `piece` elements.
pub(super) fn parts(owners: &Ownership, rank: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
    owners.of(rank).iter().flat_map(move |range| pieces_of(range.clone(), piece))
}

/// A range in pieces of at most `piece` elements.
pub(super) fn pieces_of(range: Range<usize>, piece: usize) -> impl Iterator<Item = Range<usize>> {
    pieces(range.len(), piece).map(move |(at, n)| range.start + at..range.start + at + n)
}

/// The bytes of elements in this rank's buffer.
pub(super) fn span(region: &Region, part: &Range<usize>, size: usize) -> ByteSpan {
    // An address alone: whoever uses it promises that the elements are there.
    ByteSpan { at: region.as_ptr().wrapping_add(part.start * size), bytes: part.len() * size }
}
