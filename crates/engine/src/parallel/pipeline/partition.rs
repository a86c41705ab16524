//! Which units are in which part of a model: DeepSpeed's partition methods. Pure.

use std::ops::Range;

use fancy_regex::RegexBuilder;
use oarlock_config::config::PartitionMethod;

use crate::{Error, Result};

/// What a partition method knows of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitWeight {
    /// The type of its module.
    pub kind: &'static str,
    /// Its trained parameters; shared ones count in each unit that uses them.
    pub n_trained: usize,
}

/// Divides units into `n_parts` neighboring parts, none of them empty.
///
/// # Errors
/// Fewer units than parts, a pattern that is not a regular expression, or one that no type matches.
pub fn partition(
    method: &PartitionMethod,
    units: &[UnitWeight],
    n_parts: usize,
) -> Result<Vec<Range<usize>>> {
    if units.len() < n_parts.max(1) {
        return Err(Error::Usage(format!(
            "a model of {} units cannot be divided into {n_parts} parts (stages times virtual stages), since a unit is never \
             divided; use fewer stages",
            units.len()
        )));
    }
    let ends = match method {
        PartitionMethod::Uniform => uniform(units.len(), n_parts),
        PartitionMethod::Parameters => {
            balanced(&units.iter().map(|unit| unit.n_trained as u64).collect::<Vec<_>>(), n_parts)
        }
        PartitionMethod::Type(pattern) => {
            let regex = RegexBuilder::new(pattern).case_insensitive(true).build();
            let regex = regex.map_err(|error| {
                Error::Usage(format!("partition_method type:{pattern}: not a regular expression: {error}"))
            })?;
            // A pattern that gives up on a name does not match it.
            let matches = |unit: &UnitWeight| u64::from(regex.is_match(unit.kind).unwrap_or(false));
            let weights: Vec<u64> = units.iter().map(matches).collect();
            if weights.iter().all(|&weight| weight == 0) {
                let mut kinds: Vec<&str> = units.iter().map(|unit| unit.kind).collect();
                kinds.dedup();
                return Err(Error::Usage(format!(
                    "partition_method type:{pattern}: no unit has such a type; those of this model are {}",
                    kinds.join(", ")
                )));
            }
            balanced(&weights, n_parts)
        }
    };
    Ok(ends.windows(2).map(|ends| ends[0]..ends[1]).collect())
}

/// Where parts of as many items begin and end; the first ones have one more where it does not divide evenly.
fn uniform(n_items: usize, n_parts: usize) -> Vec<usize> {
    let (size, rest) = (n_items / n_parts, n_items % n_parts);
    (0..=n_parts).map(|part| part * size + part.min(rest)).collect()
}

/// Where parts begin and end between whose largest and smallest sum there is the least difference (the linear partition
/// problem, solved over prefix sums as in DeepSpeed's `partition_balanced`; of equal solutions the one with the latest
/// boundaries).
fn balanced(weights: &[u64], n_parts: usize) -> Vec<usize> {
    /// Of the best division of the first items into so many parts.
    #[derive(Clone, Copy)]
    struct Best {
        most: u64,
        least: u64,
        /// Where its last part begins.
        begin: usize,
    }
    let n = weights.len();
    if n <= n_parts {
        return uniform(n, n_parts);
    }
    let mut sums = vec![0u64; n + 1];
    for (i, weight) in weights.iter().enumerate() {
        sums[i + 1] = sums[i] + weight;
    }
    let mut best: Vec<Vec<Option<Best>>> = vec![vec![None; n_parts + 1]; n + 1];
    best[0][0] = Some(Best { most: 0, least: u64::MAX, begin: 0 });
    for i in 1..=n {
        for parts in 1..=i.min(n_parts) {
            for begin in 0..i {
                let Some(before) = best[begin][parts - 1] else { continue };
                let sum = sums[i] - sums[begin];
                let (most, least) = (before.most.max(sum), before.least.min(sum));
                if best[i][parts].is_none_or(|best| best.most - best.least >= most - least) {
                    best[i][parts] = Some(Best { most, least, begin });
                }
            }
        }
    }
    let mut ends = vec![n];
    for parts in (1..=n_parts).rev() {
        let end = ends.last().copied().unwrap_or(0);
        ends.push(best[end][parts].map_or(0, |best| best.begin));
    }
    ends.reverse();
    ends
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_those_of_deepspeed() {
        // Printed by partition_balanced and partition_uniform of DeepSpeed 0.19.8.
        for (weights, parts, expected) in GOLDEN {
            assert_eq!(balanced(weights, *parts), *expected, "{weights:?} in {parts}");
        }
        assert_eq!(uniform(10, 4), [0, 3, 6, 8, 10]);
        assert_eq!(uniform(8, 4), [0, 2, 4, 6, 8]);
    }

    /// Weights, the number of parts, and where these begin and end.
    type Case = (&'static [u64], usize, &'static [usize]);

    const GOLDEN: &[Case] = &[
        (&[1, 1, 1, 1, 1, 1, 1, 1], 4, &[0, 2, 4, 6, 8]),
        (&[50, 12, 12, 12, 12, 12, 12, 12, 12, 50], 4, &[0, 1, 5, 9, 10]),
        (&[6400, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 7000], 4, &[0, 2, 5, 8, 10]),
        (&[6400, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 7000], 2, &[0, 5, 10]),
        (&[5, 1, 1, 1, 1, 5], 3, &[0, 1, 5, 6]),
        (&[0, 1, 1, 1, 1, 0], 2, &[0, 3, 6]),
        (&[1, 2, 3, 4, 5, 6, 7, 8, 9], 3, &[0, 5, 7, 9]),
        (&[9, 1, 1, 1, 1, 1, 1, 1, 9], 4, &[0, 1, 5, 8, 9]),
        (&[22, 33, 1, 29, 15, 3, 10, 7, 23], 3, &[0, 2, 5, 9]),
        (&[24, 34, 6, 36, 15, 0, 13, 26], 3, &[0, 2, 4, 8]),
        (&[24, 10, 4, 8, 39, 39, 28], 2, &[0, 5, 7]),
        (&[0, 0, 13, 13, 10, 10, 18], 3, &[0, 4, 6, 7]),
        (&[34, 40, 13, 11, 12, 24, 19, 1], 3, &[0, 1, 4, 8]),
        (&[10, 9, 16, 4, 21, 19, 38, 37, 0, 38, 21], 2, &[0, 7, 11]),
    ];

    fn units(kinds: &[&'static str]) -> Vec<UnitWeight> {
        kinds.iter().map(|kind| UnitWeight { kind, n_trained: 1 }).collect()
    }

    #[test]
    fn types_are_matched_whatever_the_case_of_letters() {
        let units = units(&["Embedding", "Block", "Block", "Block", "Block", "Head"]);
        let parts = partition(&PartitionMethod::Type("block".into()), &units, 2).unwrap();
        let blocks = |part: &Range<usize>| units[part.clone()].iter().filter(|u| u.kind == "Block").count();
        assert_eq!(parts.iter().map(blocks).collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn what_cannot_be_divided_is_told() {
        let few = units(&["Embedding", "Block", "Head"]);
        let message = |method: &str, parts: usize| {
            partition(&method.parse().unwrap(), &few, parts).unwrap_err().to_string()
        };
        assert!(message("uniform", 4).contains("a model of 3 units cannot be divided into 4 parts"));
        let told_types = message("type:Transformer", 2);
        assert!(told_types.contains("those of this model are Embedding, Block, Head"), "{told_types}");
        assert!(message("type:(", 2).contains("not a regular expression"));
        assert!("profile".parse::<PartitionMethod>().unwrap_err().contains("type:REGEX"));
    }

    proptest! {
        /// Every division covers all units once, in order, and no part is empty.
        #[test]
        fn parts_cover_all_units(weights in prop::collection::vec(0u64..1000, 1..24), parts in 1usize..8) {
            prop_assume!(weights.len() >= parts);
            let weights_of: Vec<UnitWeight> =
                weights.iter().map(|&n| UnitWeight { kind: "Block", n_trained: n as usize }).collect();
            for method in [PartitionMethod::Parameters, PartitionMethod::Uniform, PartitionMethod::Type("b".into())] {
                let found = partition(&method, &weights_of, parts).unwrap();
                prop_assert_eq!(found.len(), parts);
                prop_assert!(found.iter().all(|part| !part.is_empty()));
                prop_assert_eq!(found.into_iter().flatten().collect::<Vec<_>>(), (0..weights.len()).collect::<Vec<_>>());
            }
        }
    }
}
