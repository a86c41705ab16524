//! The loaders that run, one inside of another or side by side, and what they say of the batches that the loop has.

/// What a loader says of the batch that it gave last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastBatch {
    /// Whether it is its last.
    pub is_last: bool,
    /// Its samples on this rank.
    pub rows: Option<usize>,
    /// How many of them are real, where some are not.
    pub real: Option<usize>,
}

/// The iterations that have begun and not ended, in the order in which they began: Accelerate's stack of loaders.
#[derive(Debug, Default)]
pub(crate) struct Loaders {
    running: Vec<Running>,
    n_begun: u64,
}

#[derive(Debug)]
struct Running {
    id: u64,
    /// How many loops are around it. Loaders of one level run side by side.
    level: usize,
    seen: LastBatch,
    /// Batches that others of its level have given since.
    since: usize,
}

impl Loaders {
    /// An iteration begins, inside of those that run: its number.
    pub fn begin(&mut self) -> u64 {
        let level = self.running.last().map_or(0, |around| around.level + 1);
        self.n_begun += 1;
        self.running.push(Running { id: self.n_begun, level, seen: LastBatch::default(), since: 0 });
        self.n_begun
    }

    /// An iteration gives a batch. Those that began later are not inside of its loop, since they still run, but beside it.
    pub fn give(&mut self, id: u64, seen: LastBatch) {
        let Some(place) = self.running.iter().position(|running| running.id == id) else { return };
        let level = self.running[place].level;
        for running in &mut self.running[place..] {
            running.level = level;
        }
        for running in self.running.iter_mut().filter(|running| running.level == level) {
            running.since = running.since.saturating_add(1);
        }
        let giver = &mut self.running[place];
        (giver.seen, giver.since) = (seen, 0);
    }

    /// An iteration has ended, or was left.
    pub fn end(&mut self, id: u64) {
        self.running.retain(|running| running.id != id);
    }

    /// What the innermost loop knows: the samples of the batch that came last, and whether it is its last turn, which of
    /// loaders side by side the shortest decides.
    pub fn last_batch(&self) -> LastBatch {
        let Some(inner) = self.running.last() else { return LastBatch::default() };
        let beside = || self.running.iter().filter(|running| running.level == inner.level);
        let latest = beside().min_by_key(|running| running.since).map_or(inner.seen, |running| running.seen);
        let n = beside().count();
        LastBatch { is_last: beside().any(|running| running.seen.is_last && running.since < n), ..latest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(rows: usize, is_last: bool) -> LastBatch {
        LastBatch { is_last, rows: Some(rows), real: None }
    }

    #[test]
    fn inside_of_a_loop_the_inner_loader_counts_and_behind_it_the_outer_one() {
        let mut loaders = Loaders::default();
        let outer = loaders.begin();
        loaders.give(outer, batch(4, true));
        let inner = loaders.begin();
        assert_eq!(loaders.last_batch(), LastBatch::default(), "nothing was given yet");
        loaders.give(inner, batch(2, false));
        assert_eq!(loaders.last_batch(), batch(2, false));
        loaders.end(inner);
        assert_eq!(loaders.last_batch(), batch(4, true));
        loaders.end(outer);
        assert_eq!(loaders.last_batch(), LastBatch::default());
    }

    #[test]
    fn side_by_side_the_last_batch_of_the_shortest_is_the_last_turn() {
        for shortest in 0..2 {
            let mut loaders = Loaders::default();
            let around = loaders.begin();
            loaders.give(around, batch(9, false));
            let pair = [loaders.begin(), loaders.begin()];
            for turn in 0..3 {
                for (place, id) in pair.into_iter().enumerate() {
                    loaders.give(id, batch(place, turn == 2 && place == shortest));
                }
                assert_eq!(loaders.last_batch(), batch(1, turn == 2), "{shortest} {turn}");
            }
            // In whatever order they end.
            loaders.end(pair[shortest]);
            loaders.end(pair[1 - shortest]);
            assert_eq!(loaders.last_batch(), batch(9, false));
        }
    }

    #[test]
    fn a_loader_that_was_left_with_its_last_batch_ends_no_other() {
        let mut loaders = Loaders::default();
        let train = loaders.begin();
        loaders.give(train, batch(4, false));
        let held = loaders.begin();
        loaders.give(held, batch(2, true));
        loaders.give(train, batch(4, false));
        loaders.give(train, batch(4, false));
        assert_eq!(loaders.last_batch(), batch(4, false));
        loaders.end(held);
        assert_eq!(loaders.last_batch(), batch(4, false));
    }
}
