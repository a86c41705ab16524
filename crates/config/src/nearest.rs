//! The name that somebody meant who wrote another: the nearest one, by edits.

use crate::lookalikes::plain;

/// The nearest of some names, if one is near enough to be meant: a third of its letters may differ.
pub fn nearest_of<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = plain(name);
    let lower: Vec<char> = name.chars().take(64).flat_map(char::to_lowercase).collect();
    let most = |candidate: &str| (candidate.len() / 3).max(1);
    names
        // Each letter more or less is an edit. Most names end here, which matters where thousands are misspelled.
        .filter(|candidate| candidate.chars().count().abs_diff(lower.len()) <= most(candidate))
        .map(|candidate| {
            let letters: Vec<char> = candidate.chars().flat_map(char::to_lowercase).collect();
            // Who left letters out wrote those of the name in their order.
            (distance(&lower, &letters), !is_within(&lower, &letters), candidate)
        })
        .filter(|(distance, _, candidate)| *distance <= most(candidate))
        // A letter that was left out weighs half of one that is wrong, and a single slip less than two letters.
        .min_by_key(|(distance, lacks, _)| {
            let weight = match (*lacks, *distance) {
                (false, letters) => 2 * letters,
                (true, 1) => 3,
                (true, slips) => 4 * slips,
            };
            (weight, *lacks)
        })
        .map(|(_, _, candidate)| candidate)
}

/// Whether `b` has all letters of `a` in their order.
fn is_within(a: &[char], b: &[char]) -> bool {
    let mut rest = b.iter();
    a.iter().all(|letter| rest.any(|other| other == letter))
}

/// Edits (insert, delete, replace, swap of neighbors) that turn `a` into `b`.
pub fn edits(a: &str, b: &str) -> usize {
    let [a, b] = [a, b].map(|text| text.chars().collect::<Vec<_>>());
    distance(&a, &b)
}

fn distance(a: &[char], b: &[char]) -> usize {
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut row = before.clone();
    for i in 1..=a.len() {
        row[0] = i;
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row[j] = best;
        }
        std::mem::swap(&mut before, &mut last);
        std::mem::swap(&mut last, &mut row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", "abc"), 0);
        assert_eq!(edits("learning_rat", "learning_rate"), 1);
        assert_eq!(edits("laerning_rate", "learning_rate"), 1);
        assert_eq!(edits("kitten", "sitting"), 3);
    }

    #[test]
    fn who_left_letters_out_meant_the_longer_name() {
        let names = ["warmup_type", "warmup_num_steps"];
        assert_eq!(nearest_of("warmup_steps", names.into_iter()), Some("warmup_num_steps"));
        assert_eq!(nearest_of("warmup_tipe", names.into_iter()), Some("warmup_type"));
        assert_eq!(nearest_of("", names.into_iter()), None);
    }

    #[test]
    fn one_slip_is_nearer_than_two_letters_left_out() {
        let near = |name: &str, names: &[&'static str]| nearest_of(name, names.iter().copied());
        assert_eq!(near("chatlm", &["chatglm3", "chatml", "chatml_de"]), Some("chatml"));
        assert_eq!(near("chtml", &["chatglm3", "chatml"]), Some("chatml"));
        assert_eq!(near("lama3", &["llama2", "llama3", "llama4"]), Some("llama3"));
        assert_eq!(near("qwn3", &["qwen", "qwen3", "qwen3_nothink"]), Some("qwen3"));
        assert_eq!(near("ｓｔａｇｅ", &["stage", "state"]), Some("stage"));
        assert_eq!(near("“stage”", &["stage"]), Some("stage"));
    }
}
