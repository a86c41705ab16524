//! An order of rows in which neighbors have similar lengths, as transformers' `group_by_length` draws it.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_tensor::cpu::random::{Permutation, Stream};

/// Steps whose rows are sorted together, at most.
const MOST_STEPS: u64 = 50;

/// The lengths of the rows of a data set. Two are equal if one is a copy of the other.
#[derive(Clone, Debug)]
pub struct Lengths(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lens: Vec<u32>,
    /// The order that was asked for last.
    last: Mutex<Option<(OrderKey, Arc<[u64]>)>>,
}

/// What decides an order: the random numbers and the samples of a step.
type OrderKey = (Stream, u64);

impl PartialEq for Lengths {
    fn eq(&self, other: &Lengths) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Lengths {}

impl Lengths {
    /// Of rows with so many tokens each.
    pub fn new(lens: Vec<u32>) -> Lengths {
        Lengths(Arc::new(Inner { lens, last: Mutex::default() }))
    }

    /// The rows of an epoch: in random order, then sorted by falling length within each stretch of up to 50 steps of
    /// `step` samples. The longest of all comes first, so that memory that is too small shows at once.
    pub(super) fn order(&self, stream: Stream, step: u64) -> Arc<[u64]> {
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((asked, order)) = &*last
            && *asked == (stream, step)
        {
            return order.clone();
        }
        let order: Arc<[u64]> = sorted(&self.0.lens, stream, step).into();
        *last = Some(((stream, step), order.clone()));
        order
    }
}

fn sorted(lens: &[u32], stream: Stream, step: u64) -> Vec<u64> {
    let n = lens.len() as u64;
    let random = Permutation::new(stream, n);
    let mut rows: Vec<u64> = (0..n).filter_map(|place| random.get(place)).collect();
    let stretch = (step * (n / (step * 4)).clamp(1, MOST_STEPS)) as usize;
    let len = |row: u64| lens[row as usize];
    rows.chunks_mut(stretch).for_each(|rows| rows.sort_by_key(|row| Reverse(len(*row))));
    let firsts = (0..rows.len()).step_by(stretch);
    // Of equals the first.
    if let Some(longest) = firsts.min_by_key(|&at| Reverse(len(rows[at]))) {
        rows.swap(0, longest);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Stream = Stream { seed: 3, stream: 1 };

    #[test]
    fn stretches_fall_in_length_and_the_longest_row_is_first() {
        let lens: Vec<u32> = (0..1003).map(|i| 1 + i * 7919 % 401).collect();
        let rows = Lengths::new(lens.clone()).order(STREAM, 4);
        let mut all = rows.to_vec();
        all.sort_unstable();
        assert_eq!(all, (0..1003).collect::<Vec<u64>>());
        assert_eq!(lens[rows[0] as usize], 401);
        // 1003 / 16 = 62 steps are more than 50 of 4 samples; what was first may stand where the longest was.
        for stretch in rows.chunks(200) {
            let lens: Vec<u32> = stretch.iter().map(|&row| lens[row as usize]).collect();
            assert!(lens[1..].is_sorted_by(|a, b| a >= b), "{lens:?}");
        }
        assert_ne!(rows, Lengths::new(lens.clone()).order(Stream { seed: 4, ..STREAM }, 4));
    }

    #[test]
    fn few_rows_are_one_stretch_for_each_step() {
        let lens = vec![5, 9, 1, 7, 3];
        let rows = sorted(&lens, STREAM, 2);
        assert_eq!(lens[rows[0] as usize], 9);
        assert_eq!(rows.len(), 5);
        assert!(sorted(&[], STREAM, 2).is_empty());
    }

    #[test]
    fn an_order_is_kept_until_another_is_asked_for() {
        let lengths = Lengths::new((0..100).collect());
        let first = lengths.order(STREAM, 4);
        assert!(Arc::ptr_eq(&first, &lengths.order(STREAM, 4)));
        assert_ne!(first, lengths.order(STREAM, 10));
        assert_eq!(lengths, lengths.clone());
        assert_ne!(lengths, Lengths::new((0..100).collect()));
    }
}
