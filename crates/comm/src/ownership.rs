//! Who owns which elements of a region, as the collectives need it: checked once, the same on all ranks.

use std::ops::Range;
use std::sync::Arc;

use crate::digest::mix;
use crate::error::{Error, Result};

/// The element ranges that each rank owns: ordered, without overlap, inside the region. Collectives do not touch elements
/// that no rank owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    ranges: Arc<[Vec<Range<usize>>]>,
    end: usize,
    owned: usize,
    digest: u64,
}

impl Ownership {
    /// One list of ranges for each rank.
    ///
    /// # Errors
    /// When two ranges overlap or one ends before it begins.
    pub fn new(ranges: Vec<Vec<Range<usize>>>) -> Result<Ownership> {
        let mut all: Vec<(usize, usize, usize)> = ranges
            .iter()
            .enumerate()
            .flat_map(|(rank, list)| list.iter().map(move |r| (r.start, r.end, rank)))
            .collect();
        all.sort_unstable();
        let wrong = |expected: &str, got: String| Error::Argument {
            operation: "ownership",
            expected: expected.into(),
            got,
        };
        if let Some(r) = all.iter().find(|r| r.0 > r.1) {
            return Err(wrong(
                "ranges that begin before they end",
                format!("{}..{} for rank {}", r.0, r.1, r.2),
            ));
        }
        all.retain(|r| r.0 < r.1);
        if let Some(w) = all.windows(2).find(|w| w[0].1 > w[1].0) {
            let [a, b] = [w[0], w[1]];
            let got = format!("{}..{} for rank {} and {}..{} for rank {}", a.0, a.1, a.2, b.0, b.1, b.2);
            return Err(wrong("ranges without overlap", got));
        }
        let digest = all
            .iter()
            .fold(ranges.len() as u64, |d, r| [r.0, r.1, r.2].into_iter().fold(d, |d, x| mix(d, x as u64)));
        let owned = all.iter().map(|r| r.1 - r.0).sum();
        let end = all.last().map_or(0, |r| r.1);
        Ok(Ownership { ranges: ranges.into(), end, owned, digest })
    }

    /// `range` sharded evenly: one piece for each rank, cut at multiples of 16 elements (a cache line of f32).
    pub fn even(range: Range<usize>, world_size: usize) -> Ownership {
        const LINE: usize = 16;
        let length = range.end.saturating_sub(range.start);
        let cut = |rank: usize| {
            let at = (length as u128 * rank as u128 / world_size.max(1) as u128) as usize;
            if rank == world_size { range.start + length } else { range.start + at / LINE * LINE }
        };
        let piece = |rank: usize| cut(rank)..cut(rank + 1);
        let ranges = (0..world_size).map(|rank| vec![piece(rank)]).collect();
        let digest = [range.start, length, world_size].into_iter().fold(0, |d, x| mix(d, x as u64));
        Ownership { ranges, end: range.start + length, owned: length, digest }
    }

    /// The ranges of a rank.
    pub fn of(&self, rank: usize) -> &[Range<usize>] {
        self.ranges.get(rank).map_or(&[], Vec::as_slice)
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.ranges.len()
    }

    /// The end of the last range.
    pub fn end(&self) -> usize {
        self.end
    }

    /// The number of elements that any rank owns.
    pub fn elements(&self) -> usize {
        self.owned
    }

    /// A digest of all ranges and their owners.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_pieces_cover_without_overlap() {
        for world in 1..9 {
            for range in [0..0, 0..1, 3..1000, 5..4101] {
                let even = Ownership::even(range.clone(), world);
                let listed = Ownership::new((0..world).map(|r| even.of(r).to_vec()).collect()).unwrap();
                assert_eq!(
                    (listed.elements(), even.elements()),
                    (range.len(), range.len()),
                    "{range:?} over {world}"
                );
            }
        }
    }

    #[test]
    fn overlap_and_reversal_are_refused_and_order_does_not_matter() {
        assert!(Ownership::new(vec![vec![0..4], vec![3..5]]).is_err());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = vec![vec![4..2]];
        assert!(Ownership::new(reversed).is_err());
        let a = Ownership::new(vec![vec![0..4, 8..9], vec![4..8]]).unwrap();
        let b = Ownership::new(vec![vec![0..4, 8..9], vec![4..7]]).unwrap();
        assert_ne!(a.digest(), b.digest());
        assert_eq!((a.end(), a.elements()), (9, 9));
    }
}
