//! Whole records in rows of a limited length, as many in each as fit: LLaMA-Factory's greedy knapsack.

use std::collections::BTreeMap;

/// Which records stand in each row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bins {
    members: Vec<u64>,
    /// Where each row begins in `members`, and where the last ends.
    begins: Vec<usize>,
}

impl Bins {
    /// Fills rows of `capacity` tokens: each takes the longest record that still fits, until none does. Of records of one
    /// length the last comes first.
    pub(super) fn pack(lens: impl Iterator<Item = usize>, capacity: usize) -> Bins {
        let mut waiting: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (record, len) in lens.enumerate() {
            waiting.entry(len.min(capacity)).or_default().push(record as u64);
        }
        let mut bins = Bins { members: Vec::new(), begins: vec![0] };
        while !waiting.is_empty() {
            let mut room = capacity;
            while let Some((&len, records)) = waiting.range_mut(..=room).next_back() {
                bins.members.extend(records.pop());
                if records.is_empty() {
                    waiting.remove(&len);
                }
                room -= len;
            }
            bins.begins.push(bins.members.len());
        }
        bins
    }

    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        self.begins.len() - 1
    }

    /// The records of a row.
    pub(super) fn of(&self, row: u64) -> &[u64] {
        let row = row as usize;
        &self.members[self.begins[row]..self.begins[row + 1]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(lens: &[usize], capacity: usize) -> Vec<Vec<usize>> {
        let bins = Bins::pack(lens.iter().copied(), capacity);
        (0..bins.len() as u64).map(|row| bins.of(row).iter().map(|&k| lens[k as usize]).collect()).collect()
    }

    #[test]
    fn rows_are_filled_as_in_the_original() {
        assert_eq!(packed(&[5, 3, 4, 2, 6], 8), [vec![6, 2], vec![5, 3], vec![4]]);
        assert_eq!(packed(&[], 8), Vec::<Vec<usize>>::new());
        assert_eq!(Bins::pack([3, 3, 3].into_iter(), 6).members, [2, 1, 0]);
    }

    #[test]
    fn every_record_stands_in_one_row() {
        let lens: Vec<usize> = (0..500).map(|i| 1 + i * 7919 % 97).collect();
        let bins = Bins::pack(lens.iter().copied(), 100);
        let mut seen = bins.members.clone();
        seen.sort_unstable();
        assert_eq!(seen, (0..500).collect::<Vec<u64>>());
        assert!(packed(&lens, 100).iter().all(|row| !row.is_empty() && row.iter().sum::<usize>() <= 100));
    }
}
