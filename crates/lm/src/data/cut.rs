//! Turns as one sequence of at most `cutoff_len` tokens, with what is learned of it: LLaMA-Factory's division of the room
//! between questions and answers.

use std::ops::Range;

use super::encoded::{Encoded, Labels};
use super::layout::Turn;

/// What decides how turns are joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joining {
    /// The most tokens.
    pub(super) cutoff_len: usize,
    /// Learn the questions, too.
    pub(super) train_on_prompt: bool,
    /// Compute the loss on the last answer only, and keep the last turns where not all fit.
    pub(super) mask_history: bool,
    /// The end token of layouts whose answers have none: the beginning of the next turn learns it, and it stands once at
    /// the end.
    pub(super) late_end: Option<u32>,
}

/// What was cut off a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cuts {
    /// Questions without their end, which holds the header of the answer.
    pub(super) questions: u64,
    /// Answers without their end.
    pub(super) answers: u64,
    /// Turns that are not there at all.
    pub(super) turns: u64,
    /// Tokens of a prompt and of its answer that are still there, and that rows leave out.
    pub(super) left_out: [u64; 2],
}

impl Cuts {
    pub(super) fn any(&self) -> bool {
        *self != Cuts::default()
    }
}

/// How many tokens of a question of `source` and an answer of `target` tokens are kept in the room of `room`.
pub(super) fn divide(source: usize, target: usize, room: usize) -> (usize, usize) {
    let most = match (target * 2 < room, source * 2 < room) {
        (true, _) => room,
        (false, true) => room - source,
        (false, false) => (room as f64 * (target as f64 / (source + target) as f64)) as usize,
    };
    let target = most.min(target);
    (room.saturating_sub(target).min(source), target)
}

/// Joins turns. An empty run of the labels says that the token there learns the end token instead of itself.
pub(super) fn join(turns: &[Turn], joining: &Joining) -> (Encoded, Cuts) {
    let Joining { cutoff_len, train_on_prompt, mask_history, late_end } = *joining;
    let n = turns.len();
    // Which turns there is room for, from the one that matters most on.
    let order: Vec<usize> = if mask_history { (0..n).rev().collect() } else { (0..n).collect() };
    let mut kept: Vec<Option<(usize, usize)>> = vec![None; n];
    let mut total = usize::from(late_end.is_some());
    let mut cuts = Cuts::default();
    for &i in &order {
        if total >= cutoff_len {
            cuts.turns += 1;
            continue;
        }
        let (source, target) = (turns[i].source.len(), turns[i].target.len());
        let (s, t) = divide(source, target, cutoff_len - total);
        cuts.questions += u64::from(s < source);
        cuts.answers += u64::from(t < target);
        total += s + t;
        kept[i] = Some((s, t));
    }
    let mut ids: Vec<u32> = Vec::with_capacity(total);
    let mut spans: Vec<Range<u32>> = Vec::new();
    let mut learn = |range: Range<usize>| {
        // Nothing predicts the first token.
        let range = (range.start.max(1) as u32)..(range.end as u32);
        match spans.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start && last.start < last.end => last.end = range.end,
            _ => spans.push(range),
        }
    };
    let mut ends = Vec::new();
    for (i, turn) in turns.iter().enumerate() {
        let Some((s, t)) = kept[i] else { continue };
        let begin = ids.len();
        ids.extend_from_slice(&turn.source[..s]);
        ids.extend_from_slice(&turn.target[..t]);
        if train_on_prompt {
            learn(begin..begin + s);
        } else if late_end.is_some() && begin > 0 && s > 0 && !mask_history {
            ends.push(begin as u32);
        }
        if !mask_history || i + 1 == n {
            learn(begin + s..begin + s + t);
        }
    }
    if let Some(end) = late_end {
        learn(ids.len()..ids.len() + 1);
        ids.push(end);
    }
    if !ends.is_empty() {
        spans.extend(ends.into_iter().map(|at| at..at));
        spans.sort_by_key(|span| (span.start, span.end));
    }
    (Encoded { ids, labels: Labels::Spans(spans), segments: Vec::new() }, cuts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the original's own test.
    #[test]
    fn the_room_is_divided_as_in_the_original() {
        for (given, expected) in [
            ((3000, 2000, 1000), (600, 400)),
            ((2000, 3000, 1000), (400, 600)),
            ((1000, 100, 1000), (900, 100)),
            ((100, 1000, 1000), (100, 900)),
            ((100, 500, 1000), (100, 500)),
            ((500, 100, 1000), (500, 100)),
            ((10, 10, 1000), (10, 10)),
        ] {
            assert_eq!(divide(given.0, given.1, given.2), expected, "{given:?}");
        }
        for source in 0..12 {
            for target in 0..12 {
                for room in 1..20 {
                    let (s, t) = divide(source, target, room);
                    assert!(s <= source && t <= target && s + t <= room, "{source} {target} {room}");
                    assert!(s + t == room.min(source + target), "{source} {target} {room}: {s} {t}");
                }
            }
        }
    }

    fn turn(first: u32, source: u32, target: u32) -> Turn {
        let ids = |first: u32, n: u32| (first..first + n).collect();
        Turn { source: ids(first, source), target: ids(first + source, target) }
    }

    const ALL: Joining =
        Joining { cutoff_len: 100, train_on_prompt: false, mask_history: false, late_end: None };

    fn spans(encoded: &Encoded) -> Vec<(u32, u32)> {
        let Labels::Spans(spans) = &encoded.labels else { panic!("turns have spans") };
        spans.iter().map(|span| (span.start, span.end)).collect()
    }

    #[test]
    fn the_loss_mask_of_turns_that_fit() {
        let turns = [turn(0, 3, 2), turn(5, 1, 4)];
        let joined = |joining: &Joining| join(&turns, joining);
        let (encoded, cuts) = joined(&ALL);
        assert_eq!(encoded.ids, (0..10).collect::<Vec<u32>>());
        assert_eq!((spans(&encoded), cuts.any()), (vec![(3, 5), (6, 10)], false));
        assert_eq!(spans(&joined(&Joining { train_on_prompt: true, ..ALL }).0), [(1, 10)]);
        assert_eq!(spans(&joined(&Joining { mask_history: true, ..ALL }).0), [(6, 10)]);
        let late = Joining { late_end: Some(99), ..ALL };
        let (encoded, _) = joined(&late);
        assert_eq!(encoded.ids.last(), Some(&99));
        assert_eq!(spans(&encoded), [(3, 5), (5, 5), (6, 11)]);
        // With the history masked its ends are masked as well.
        assert_eq!(spans(&joined(&Joining { mask_history: true, ..late }).0), [(6, 11)]);
    }

    #[test]
    fn long_turns_are_cut_and_counted() {
        let turns = [turn(0, 30, 20), turn(50, 5, 5)];
        let (encoded, cuts) = join(&turns, &Joining { cutoff_len: 10, ..ALL });
        assert_eq!(encoded.ids, [0, 1, 2, 3, 4, 5, 30, 31, 32, 33]);
        assert_eq!(cuts, Cuts { questions: 1, answers: 1, turns: 1, ..Cuts::default() });
        // The last turns matter most where only the last answer is learned.
        let (encoded, cuts) = join(&turns, &Joining { cutoff_len: 12, mask_history: true, ..ALL });
        assert_eq!(encoded.ids, [0, 1, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59]);
        assert_eq!((spans(&encoded), cuts.turns), (vec![(7, 12)], 0));
    }
}
