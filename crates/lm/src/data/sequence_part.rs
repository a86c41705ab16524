//! The part of a micro-batch that a rank computes.

use oarlock_tensor::ops::IGNORE_INDEX;

use super::batch::Batch;

impl Batch {
    /// Leaves one of `n` parts of the sequences: of each row the tokens and the labels, which stay shifted as they are, and of
    /// [`Batch::doc_start`] all, for attention. A row that the ranks do not divide is filled up behind with tokens that
    /// nothing sees and that have no targets.
    pub fn keep_part(&mut self, rank: usize, n: usize) {
        let (rows, len) = (self.rows, self.len);
        let own = len.div_ceil(n);
        let whole = own * n;
        if let Some(starts) = &mut self.doc_start
            && whole > len
        {
            // Each token that fills up is a document of its own.
            let row = |row: &[i32]| row.iter().copied().chain(len as i32..whole as i32).collect::<Vec<i32>>();
            *starts = starts.chunks(len.max(1)).flat_map(row).collect();
        }
        keep(&mut self.input_ids, (rows, len), rank * own..(rank + 1) * own, 0);
        keep(&mut self.labels, (rows, len), rank * own..(rank + 1) * own, IGNORE_INDEX);
        self.len = own;
        self.n_targets = self.labels.iter().filter(|label| **label != IGNORE_INDEX).count();
        // Where examples stand among the tokens is no longer known.
        self.samples.clear();
    }
}

/// Keeps some columns of `rows` rows of `len`; those that are not there are `fill`. In place.
fn keep(values: &mut Vec<i32>, (rows, len): (usize, usize), columns: std::ops::Range<usize>, fill: i32) {
    let own = columns.len();
    values.resize(values.len().max(rows * own), fill);
    // A row is written where rows before it were read, or behind its own beginning.
    for row in 0..rows {
        for (i, column) in columns.clone().enumerate() {
            values[row * own + i] = if column < len { values[row * len + column] } else { fill };
        }
    }
    values.truncate(rows * own);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        Batch {
            input_ids: (0..10).collect(),
            labels: vec![1, 2, 3, 4, -100, 6, 7, -100, 9, -100],
            doc_start: Some(vec![0, 0, 2, 2, 2, 0, 0, 0, 3, 3]),
            rows: 2,
            len: 5,
            n_targets: 7,
            ..Batch::default()
        }
    }

    fn parts(n: usize) -> Vec<Batch> {
        let part = |rank| {
            let mut batch = batch();
            batch.keep_part(rank, n);
            batch
        };
        (0..n).map(part).collect()
    }

    #[test]
    fn parts_are_the_rows_one_after_another() {
        for n in 1..=7 {
            let parts = parts(n);
            let own = 5usize.div_ceil(n);
            assert_eq!(parts.iter().map(|part| part.n_targets).sum::<usize>(), 7, "{n}");
            for row in 0..2 {
                let joined = |of: fn(&Batch) -> &Vec<i32>| -> Vec<i32> {
                    parts.iter().flat_map(|part| of(part)[row * own..][..own].to_vec()).collect()
                };
                let (ids, labels) = (joined(|part| &part.input_ids), joined(|part| &part.labels));
                assert_eq!(ids[..5], batch().input_ids[row * 5..][..5], "{n}");
                assert_eq!(labels[..5], batch().labels[row * 5..][..5], "{n}");
                assert!(labels[5..].iter().all(|label| *label == -100) && ids.len() == own * n);
                let starts = parts[0].doc_start.as_ref().unwrap();
                let starts = &starts[row * own * n..][..own * n];
                assert_eq!(starts[..5], batch().doc_start.unwrap()[row * 5..][..5]);
                assert!(starts[5..].iter().enumerate().all(|(i, start)| *start == 5 + i as i32));
            }
            assert!(parts.iter().all(|part| (part.rows, part.len) == (2, own)));
        }
    }
}
