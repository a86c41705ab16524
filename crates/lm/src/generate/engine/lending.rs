//! How pages of keys and values are lent to answers so that all of them can be completed: as by Dijkstra's banker. An
//! answer gets a page if afterwards the oldest answer can still get all that it needs, then the next oldest with what that
//! gives back, and so on. Nobody is ever thrown out, and nobody reserves what it may not need.

use crate::model::LayerCache;

/// Pages that hold so many positions.
pub(in crate::generate) fn pages(n_positions: usize) -> usize {
    n_positions.div_ceil(LayerCache::PAGE)
}

/// The pages of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::generate) struct Loan {
    /// Those that it has.
    pub(in crate::generate) held: usize,
    /// Those that it has when it is as long as it can become.
    pub(in crate::generate) most: usize,
}

/// Whether the loan at `index` may grow by `extra` pages, with `total` pages in all; the oldest loan comes first.
pub(in crate::generate) fn may_grow(loans: &[Loan], index: usize, extra: usize, total: usize) -> bool {
    let held: usize = loans.iter().map(|loan| loan.held).sum();
    let Some(mut free) = total.checked_sub(held + extra) else { return false };
    for (other, loan) in loans.iter().enumerate() {
        let held = loan.held + if other == index { extra } else { 0 };
        if loan.most.saturating_sub(held) > free {
            return false;
        }
        free += held;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loan(held: usize, most: usize) -> Loan {
        Loan { held, most }
    }

    #[test]
    fn the_oldest_can_always_be_completed() {
        // Two pages are free: the oldest needs both.
        let loans = [loan(3, 5), loan(4, 9), loan(1, 1)];
        assert!(may_grow(&loans, 0, 1, 10) && may_grow(&loans, 0, 2, 10));
        assert!(!may_grow(&loans, 1, 1, 10));
        // With one more free page the second may take it, since it is completed with what the oldest gives back.
        assert!(may_grow(&loans, 1, 1, 11) && !may_grow(&loans, 1, 2, 11));
        // A loan that all pages together do not cover is never begun.
        assert!(!may_grow(&[loan(0, 12)], 0, 1, 11));
    }

    /// Whatever grows first, all are completed in the end.
    #[test]
    fn no_order_of_growing_gets_stuck() {
        for seed in 0..200usize {
            let total = 6 + seed % 7;
            let mut loans: Vec<Loan> = (0..5).map(|i| loan(0, 1 + (seed * 31 + i * 17) % total)).collect();
            let mut turn = seed;
            while !loans.is_empty() {
                let able: Vec<usize> = (0..loans.len()).filter(|&i| may_grow(&loans, i, 1, total)).collect();
                assert!(!able.is_empty(), "{loans:?} of {total}");
                turn = turn * 1_103_515_245 % 65_537 + 12_345;
                let grown = able[turn % able.len()];
                loans[grown].held += 1;
                loans.retain(|loan| loan.held < loan.most);
            }
        }
    }

    #[test]
    fn a_page_holds_64_positions() {
        assert_eq!([0, 1, 64, 65].map(pages), [0, 1, 1, 2]);
    }
}
