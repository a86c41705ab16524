//! Guesses of what a text goes on with, from what followed where it read alike before (prompt lookup decoding, Saxena
//! 2023), and how many of them are worth their rows in a pass.
//!
//! A guess that is right saves a pass, one that is wrong costs a row. Neither changes a token: the sampler of the answer
//! chooses each one by the logits that it would have had.

/// The longest match that is looked for.
const LONGEST_MATCH: usize = 16;
/// A single token that occurred before says too little.
const SHORTEST_MATCH: usize = 2;
/// The shortest match of each class, with how often its guesses are right as far as nothing is known.
const CLASSES: [(usize, f32); 5] =
    [(SHORTEST_MATCH, 0.25), (3, 0.4), (4, 0.6), (8, 0.8), (LONGEST_MATCH, 0.9)];
/// How much one more guess changes what is known.
const RATE: f32 = 1.0 / 5.0;
/// How much of what is known is forgotten where nothing is guessed, so that it is tried again later.
const FORGETTING: f32 = 1.0 / 256.0;

/// What is guessed for one answer, and how often guesses were right.
#[derive(Debug)]
pub(super) struct Speculation {
    /// How often a guess is right, for each class of matches.
    odds: [f32; CLASSES.len()],
    /// The class of the match that the guesses follow from.
    class: usize,
    guesses: Vec<u32>,
}

impl Speculation {
    /// For a new answer.
    pub(super) fn new() -> Speculation {
        Speculation { odds: CLASSES.map(|(_, odds)| odds), class: 0, guesses: Vec::new() }
    }

    /// Guesses up to `most` tokens that follow a text.
    pub(super) fn guess(&mut self, text: &[u32], most: usize) {
        self.guesses.clear();
        if most == 0 {
            return;
        }
        let Some((end, length)) = earlier_match(text) else { return };
        self.class = CLASSES.iter().rposition(|(shortest, _)| *shortest <= length).unwrap_or(0);
        for at in end..end + most {
            // A text that repeats itself goes on with its guesses.
            let next = text.get(at).or_else(|| self.guesses.get(at - text.len()));
            self.guesses.extend(next.copied());
        }
    }

    /// What is guessed.
    pub(super) fn guesses(&self) -> &[u32] {
        &self.guesses
    }

    /// How likely each guess is right if those before it are.
    fn odds(&self) -> f32 {
        self.odds[self.class]
    }

    /// Keeps the first guesses only.
    pub(super) fn keep(&mut self, n: usize) {
        if n == 0 && !self.guesses.is_empty() {
            let (odds, at_first) = (&mut self.odds[self.class], CLASSES[self.class].1);
            *odds += (at_first - *odds) * FORGETTING;
        }
        self.guesses.truncate(n);
    }

    /// Learns how many of the guesses were right, and forgets them. The one behind those was wrong, if there is one.
    pub(super) fn learn(&mut self, n_right: usize) {
        let odds = &mut self.odds[self.class];
        for _ in 0..n_right {
            *odds += (1.0 - *odds) * RATE;
        }
        if n_right < self.guesses.len() {
            *odds -= *odds * RATE;
        }
        self.guesses.clear();
    }
}

/// Where the last tokens of a text occurred before: the end of the latest of the longest matches, and its length.
fn earlier_match(text: &[u32]) -> Option<(usize, usize)> {
    let (&last, before) = text.split_last()?;
    let mut best = None;
    for (at, &id) in before.iter().enumerate().rev() {
        if id != last {
            continue;
        }
        let pairs = before[..at].iter().rev().zip(before.iter().rev());
        let length = 1 + pairs.take(LONGEST_MATCH - 1).take_while(|(a, b)| a == b).count();
        if length >= SHORTEST_MATCH && best.is_none_or(|(_, other)| length > other) {
            best = Some((at + 1, length));
            if length == LONGEST_MATCH {
                break;
            }
        }
    }
    best
}

/// What rows of a pass cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RowCost {
    /// So many rows cost what one does.
    pub(super) n_free: usize,
    /// What each of the others adds, as a part of a pass of one row.
    pub(super) each: f32,
    /// The most rows of a pass.
    pub(super) most: usize,
}

impl RowCost {
    fn of(&self, n_rows: usize) -> f32 {
        1.0 + n_rows.saturating_sub(self.n_free) as f32 * self.each
    }
}

/// Keeps as many guesses of the answers of a pass as make tokens come faster: the likeliest first, as long as one more
/// adds a larger part to the tokens that are expected than to the cost.
pub(super) fn share<'a>(answers: impl Iterator<Item = &'a mut Speculation>, cost: RowCost) {
    let mut answers: Vec<&mut Speculation> = answers.collect();
    let mut n_kept = vec![0; answers.len()];
    // How likely the next guess of each is right, with all before it.
    let mut next: Vec<f32> = answers.iter().map(|answer| answer.odds()).collect();
    let (mut n_rows, mut expected) = (answers.len(), answers.len() as f32);
    while n_rows < cost.most {
        let open = (0..answers.len()).filter(|&at| n_kept[at] < answers[at].guesses.len());
        // Of equals the first.
        let Some(at) = open.reduce(|best, at| if next[at] > next[best] { at } else { best }) else { break };
        if (expected + next[at]) * cost.of(n_rows) < expected * cost.of(n_rows + 1) {
            break;
        }
        expected += next[at];
        next[at] *= answers[at].odds();
        n_kept[at] += 1;
        n_rows += 1;
    }
    answers.iter_mut().zip(n_kept).for_each(|(answer, n)| answer.keep(n));
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: RowCost = RowCost { n_free: 1, each: 0.2, most: 8 };

    fn guessed(text: &[u32], most: usize) -> Vec<u32> {
        let mut speculation = Speculation::new();
        speculation.guess(text, most);
        speculation.guesses
    }

    #[test]
    fn what_followed_the_longest_match_is_guessed() {
        assert_eq!(guessed(&[1, 2, 3, 4, 9, 2, 3], 2), [4, 9]);
        // The longest match, and of two the later one.
        assert_eq!(guessed(&[1, 2, 3, 4, 8, 2, 3, 5, 1, 2, 3], 1), [4]);
        assert_eq!(guessed(&[2, 3, 4, 2, 3, 5, 2, 3], 1), [5]);
        // A text that repeats itself goes on and on.
        assert_eq!(guessed(&[7, 5, 6, 5, 6], 5), [5, 6, 5, 6, 5]);
        assert_eq!(guessed(&[5; 40], 3), [5, 5, 5]);
        // One token that occurred before is no match.
        for text in [&[][..], &[1], &[1, 1], &[1, 2, 3, 9, 3], &[1, 2, 3, 4]] {
            assert!(guessed(text, 4).is_empty(), "{text:?}");
        }
        assert!(guessed(&[5; 40], 0).is_empty());
    }

    /// Against the definition, on texts of few tokens.
    #[test]
    fn no_longer_match_is_missed() {
        let mut state = 7u64;
        for n in 2..200usize {
            let text: Vec<u32> = (0..n)
                .map(|_| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 60) as u32 % 3
                })
                .collect();
            let plain = (1..n).rev().filter_map(|end| {
                let length =
                    (1..=LONGEST_MATCH.min(end)).take_while(|l| text[..end].ends_with(&text[n - l..]));
                length.last().filter(|length| *length >= SHORTEST_MATCH).map(|length| (end, length))
            });
            let plain = plain.reduce(|best, other| if other.1 > best.1 { other } else { best });
            assert_eq!(earlier_match(&text), plain, "{text:?}");
        }
    }

    /// How many guesses a text that repeats itself gets after so many that were right or wrong.
    fn n_kept(n_right: usize, n_wrong: usize, cost: RowCost) -> usize {
        let mut speculation = Speculation::new();
        let text = [5u32; 40];
        for at in 0..n_right + n_wrong {
            speculation.guess(&text, 1);
            speculation.learn(usize::from(at < n_right));
        }
        speculation.guess(&text, 16);
        share(std::iter::once(&mut speculation), cost);
        speculation.guesses.len()
    }

    #[test]
    fn the_number_of_guesses_grows_with_success_and_shrinks_to_none() {
        assert_eq!(n_kept(30, 0, COST), 7);
        let by_failures: Vec<usize> = (0..20).map(|n| n_kept(0, n, COST)).collect();
        assert!(by_failures.is_sorted_by(|a, b| a >= b) && by_failures[0] > 3, "{by_failures:?}");
        assert_eq!(by_failures[19], 0);
        // Dear rows are bought for good odds only, and free ones always.
        assert!(n_kept(0, 4, RowCost { each: 0.5, ..COST }) < n_kept(0, 4, COST));
        assert_eq!(n_kept(0, 19, RowCost { n_free: 9, ..COST }), 7);
    }

    /// Where every guess is wrong, few rows are wasted, but some are, so that better times are noticed.
    #[test]
    fn failures_cost_little_and_are_tried_again() {
        let (mut speculation, text) = (Speculation::new(), [5u32; 40]);
        let mut n_guesses = [0; 2];
        for pass in 0..2000 {
            speculation.guess(&text, 7);
            share(std::iter::once(&mut speculation), COST);
            n_guesses[usize::from(pass >= 1000)] += speculation.guesses.len();
            if !speculation.guesses.is_empty() {
                speculation.learn(0);
            }
        }
        assert!(n_guesses[0] < 120 && (10..100).contains(&n_guesses[1]), "{n_guesses:?}");
    }

    #[test]
    fn rows_go_to_the_likeliest_guesses_and_are_fewer_beside_many_answers() {
        let (mut good, mut bad) = (Speculation::new(), Speculation::new());
        good.guess(&[5; 40], 7);
        bad.guess(&[1, 2, 3, 4, 9, 1, 2], 7);
        share([&mut bad, &mut good].into_iter(), COST);
        assert!(good.guesses.len() > 2 && bad.guesses.is_empty(), "{good:?} {bad:?}");
        for n in [4, 8, 12] {
            let mut many: Vec<Speculation> = (0..n).map(|_| Speculation::new()).collect();
            many.iter_mut().for_each(|one| one.guess(&[5; 40], 7));
            share(many.iter_mut(), COST);
            let n_rows: usize = many.iter().map(|one| 1 + one.guesses.len()).sum();
            assert_eq!(n_rows, n.max(8));
        }
        share(std::iter::empty(), COST);
    }
}
