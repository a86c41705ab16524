//! How several data sets become one: the orders of `datasets.interleave_datasets`, row by row the same.

use super::error::{Error, Result};
use super::numpy_random::{Cumulative, Pcg64};
pub use oarlock_config::config::{Mix, MixEnd};

/// The rows of data sets of these sizes in the order of a mix, counted through all of them; `None` where they stand one
/// after another.
///
/// # Errors
/// Probabilities that do not fit the data sets, and data sets without rows.
pub(super) fn order(sizes: &[u64], mix: &Mix, seed: u64) -> Result<Option<Vec<u64>>> {
    let Mix::Interleave { end, probabilities } = mix else { return Ok(None) };
    if sizes.len() < 2 {
        return Ok(None);
    }
    if let Some(empty) = sizes.iter().position(|size| *size == 0) {
        return Err(Error::TooLittle(format!(
            "data set {} of {} has no row to train on, and interleaved data sets have some each; remove it from dataset",
            empty + 1,
            sizes.len()
        )));
    }
    let mut reader = Reader::new(sizes, *end);
    match probabilities {
        None => {
            let mut data_sets = (0..sizes.len()).cycle();
            // A turn is never left half done where nobody draws.
            while !(reader.is_done() && reader.order.len() as u64 >= reader.whole_turns()) {
                reader.take(data_sets.next().unwrap_or(0));
            }
            reader.order.truncate(reader.whole_turns() as usize);
        }
        Some(probabilities) => {
            if probabilities.len() != sizes.len() {
                let cause = format!("{} probabilities for {} data sets", probabilities.len(), sizes.len());
                return Err(Error::Setting { key: "interleave_probs", cause });
            }
            let (mut random, sums) = (Pcg64::new(seed), Cumulative::new(probabilities));
            while !reader.is_done() {
                reader.take(random.choose(&sums));
            }
        }
    }
    Ok(Some(reader.order))
}

/// Takes rows of data sets, each in its order.
struct Reader<'a> {
    sizes: &'a [u64],
    end: MixEnd,
    /// Where each data set begins among all rows.
    begins: Vec<u64>,
    /// The turns that each had.
    turns: Vec<u64>,
    order: Vec<u64>,
}

impl<'a> Reader<'a> {
    fn new(sizes: &'a [u64], end: MixEnd) -> Reader<'a> {
        let begins = sizes.iter().scan(0, |begin, size| {
            *begin += size;
            Some(*begin - size)
        });
        Reader { sizes, end, begins: begins.collect(), turns: vec![0; sizes.len()], order: Vec::new() }
    }

    fn take(&mut self, data_set: usize) {
        let (size, turn) = (self.sizes[data_set], self.turns[data_set]);
        self.turns[data_set] += 1;
        // One that has ended begins again, or is left out.
        if turn < size || self.end != MixEnd::Once {
            self.order.push(self.begins[data_set] + turn % size);
        }
    }

    fn is_done(&self) -> bool {
        let mut ended = self.sizes.iter().zip(&self.turns).map(|(size, turns)| turns >= size);
        match self.end {
            MixEnd::FirstExhausted => ended.any(|ended| ended),
            MixEnd::AllExhausted | MixEnd::Once => ended.all(|ended| ended),
        }
    }

    /// The rows where the data sets take turns.
    fn whole_turns(&self) -> u64 {
        let n = self.sizes.len() as u64;
        match self.end {
            MixEnd::FirstExhausted => n * self.sizes.iter().min().unwrap_or(&0),
            MixEnd::AllExhausted => n * self.sizes.iter().max().unwrap_or(&0),
            MixEnd::Once => self.sizes.iter().sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(probabilities: Option<Vec<f64>>, end: MixEnd) -> Vec<u64> {
        // Row j of data set k as 10 k + j.
        let names: Vec<u64> = (0..3).chain(10..15).chain(20..24).collect();
        let mix = Mix::Interleave { end, probabilities };
        order(&[3, 5, 4], &mix, 42).unwrap().unwrap().into_iter().map(|row| names[row as usize]).collect()
    }

    /// What datasets 5.2 gives for the same sizes and seed 42.
    #[test]
    fn orders_are_those_of_interleave_datasets() {
        use MixEnd::{AllExhausted, FirstExhausted, Once};
        let turns = [0, 10, 20, 1, 11, 21, 2, 12, 22];
        assert_eq!(mixed(None, FirstExhausted), turns);
        assert_eq!(mixed(None, AllExhausted), [&turns[..], &[0, 13, 23, 1, 14, 20]].concat());
        assert_eq!(mixed(None, Once), [&turns[..], &[13, 23, 14]].concat());
        let drawn = || Some(vec![0.5, 0.3, 0.2]);
        let begin = [10, 0, 20, 11, 1, 21, 12, 13, 2];
        assert_eq!(mixed(drawn(), FirstExhausted), begin);
        assert_eq!(mixed(drawn(), AllExhausted), [&begin[..], &[0, 1, 22, 14, 23]].concat());
        assert_eq!(mixed(drawn(), Once), [&begin[..], &[22, 14, 23]].concat());
    }

    #[test]
    fn one_data_set_is_not_mixed_and_what_does_not_fit_is_refused() {
        let mix = |probabilities| Mix::Interleave { end: MixEnd::Once, probabilities };
        assert_eq!(order(&[7], &mix(None), 1).unwrap(), None);
        assert_eq!(order(&[7, 3], &Mix::Concat, 1).unwrap(), None);
        let error = order(&[7, 3], &mix(Some(vec![0.2, 0.3, 0.5])), 1).unwrap_err().to_string();
        assert!(error.contains("3 probabilities for 2 data sets"), "{error}");
        let error = order(&[7, 0], &mix(None), 1).unwrap_err().to_string();
        assert!(error.contains("data set 2 of 2 has no row"), "{error}");
    }
}
