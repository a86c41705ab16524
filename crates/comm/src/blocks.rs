//! Where the blocks of an all-to-all lie: one for each pair of ranks, the same table on all ranks.

use std::ops::Range;
use std::sync::Arc;

use crate::digest::mix;

/// The blocks that ranks send to each other. The block of rank `i` for rank `j` lies in what `i` sends behind its blocks for the
/// ranks before `j`, and in what `j` receives behind the blocks of the ranks before `i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Blocks of one size, from `start` on.
    Even { start: usize, block: usize },
    /// Blocks of any sizes, from 0 on. Both tables have a row of `n + 1` offsets for each of `n` ranks: of what it sends, and of
    /// what it receives.
    Uneven { n: usize, sent: Arc<[usize]>, received: Arc<[usize]> },
}

impl Blocks {
    /// `range` in one block for each rank, all of the same size; what does not fill a block for each is left out.
    pub(crate) fn even(range: &Range<usize>, n_ranks: usize) -> Blocks {
        Blocks(Kind::Even { start: range.start, block: range.len() / n_ranks.max(1) })
    }

    /// `counts[i][j]` elements go from rank `i` to rank `j`. `None` if these are not a square, or more than can be
    /// counted.
    pub(crate) fn uneven(counts: &[Vec<usize>]) -> Option<Blocks> {
        let n = counts.len();
        if counts.iter().any(|row| row.len() != n) {
            return None;
        }
        let offsets = |count: &dyn Fn(usize, usize) -> usize| {
            let mut offsets = Vec::with_capacity(n * (n + 1));
            for rank in 0..n {
                let mut end = 0_usize;
                offsets.push(end);
                for peer in 0..n {
                    end = end.checked_add(count(rank, peer))?;
                    offsets.push(end);
                }
            }
            Some(Arc::from(offsets))
        };
        let (sent, received) = (offsets(&|i, j| counts[i][j])?, offsets(&|i, j| counts[j][i])?);
        Some(Blocks(Kind::Uneven { n, sent, received }))
    }

    /// The elements of `rank`'s buffer that it sends to `peer`.
    pub fn sent(&self, rank: usize, peer: usize) -> Range<usize> {
        self.block(rank, peer, |sent, _| sent)
    }

    /// The elements of `rank`'s buffer in which it receives those of `peer`.
    pub fn received(&self, rank: usize, peer: usize) -> Range<usize> {
        self.block(rank, peer, |_, received| received)
    }

    fn block(
        &self,
        rank: usize,
        peer: usize,
        table: impl for<'a> FnOnce(&'a [usize], &'a [usize]) -> &'a [usize],
    ) -> Range<usize> {
        match &self.0 {
            Kind::Even { start, block } => start + peer * block..start + (peer + 1) * block,
            Kind::Uneven { n, sent, received } => {
                let at = rank * (n + 1) + peer;
                let table = table(sent, received);
                table[at]..table[at + 1]
            }
        }
    }

    /// The most elements that a rank sends, and that a rank receives; `None` where they are even.
    pub(crate) fn largest(&self) -> Option<[usize; 2]> {
        let Kind::Uneven { n, sent, received } = &self.0 else { return None };
        let largest =
            |table: &[usize]| table.chunks(n + 1).filter_map(<[usize]>::last).copied().max().unwrap_or(0);
        Some([largest(sent), largest(received)])
    }

    /// A digest of all sizes.
    pub(crate) fn digest(&self) -> u64 {
        match &self.0 {
            Kind::Even { start, block } => mix(*start as u64, *block as u64),
            Kind::Uneven { n, sent, .. } => sent.iter().fold(*n as u64, |digest, &at| mix(digest, at as u64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_blocks_lie_behind_each_other_on_both_sides() {
        let blocks = Blocks::uneven(&[vec![1, 2, 0], vec![0, 0, 0], vec![5, 1, 3]]).unwrap();
        assert_eq!([blocks.sent(0, 0), blocks.sent(0, 1), blocks.sent(0, 2)], [0..1, 1..3, 3..3]);
        assert_eq!([blocks.sent(2, 0), blocks.sent(2, 1), blocks.sent(2, 2)], [0..5, 5..6, 6..9]);
        assert_eq!([blocks.received(0, 0), blocks.received(0, 1), blocks.received(0, 2)], [0..1, 1..1, 1..6]);
        assert_eq!([blocks.received(1, 0), blocks.received(1, 2)], [0..2, 2..3]);
        assert_eq!(blocks.largest(), Some([9, 6]));
        for (rank, peer) in (0..3).flat_map(|rank| (0..3).map(move |peer| (rank, peer))) {
            assert_eq!(blocks.sent(rank, peer).len(), blocks.received(peer, rank).len());
        }
        let other = Blocks::uneven(&[vec![1, 2, 0], vec![0, 0, 0], vec![5, 2, 2]]).unwrap();
        assert_ne!(blocks.digest(), other.digest());
    }

    #[test]
    fn even_blocks_are_those_of_equal_counts() {
        let (even, uneven) = (Blocks::even(&(0..12), 3), Blocks::uneven(&vec![vec![4; 3]; 3]).unwrap());
        for (rank, peer) in (0..3).flat_map(|rank| (0..3).map(move |peer| (rank, peer))) {
            assert_eq!(even.sent(rank, peer), uneven.sent(rank, peer));
            assert_eq!(even.received(rank, peer), uneven.received(rank, peer));
        }
        assert_eq!(Blocks::even(&(5..12), 3).sent(1, 2), 9..11);
    }

    #[test]
    fn what_is_no_table_of_counts_is_refused() {
        assert_eq!(Blocks::uneven(&[vec![1, 2], vec![3]]), None);
        assert_eq!(Blocks::uneven(&[vec![usize::MAX, 1], vec![0, 0]]), None);
    }
}
