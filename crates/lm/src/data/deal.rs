//! Samples of many lengths dealt to the ranks, so that none waits long for another.

/// The share of a rank, by index and ascending: samples of these lengths go one by one, the longest first, to the rank
/// with the fewest tokens so far that has fewer than `most` samples (the greedy rule of Graham 1969). Every rank computes
/// the same shares.
pub(super) fn share(lens: &[usize], world: usize, most: usize, rank: usize) -> Vec<usize> {
    let mut own = shares(lens, world, most).swap_remove(rank);
    own.sort_unstable();
    own
}

/// The shares of all ranks, by index.
pub(super) fn shares(lens: &[usize], world: usize, most: usize) -> Vec<Vec<usize>> {
    let mut by_len: Vec<usize> = (0..lens.len()).collect();
    by_len.sort_by_key(|&index| std::cmp::Reverse(lens[index]));
    let mut ranks = vec![(0, Vec::new()); world];
    for index in by_len {
        let open = ranks.iter_mut().filter(|(_, share)| share.len() < most);
        let Some((tokens, share)) = open.min_by_key(|(tokens, _)| *tokens) else { break };
        *tokens += lens[index];
        share.push(index);
    }
    ranks.into_iter().map(|(_, share)| share).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(lens: &[usize], world: usize, most: usize) -> Vec<Vec<usize>> {
        (0..world).map(|rank| share(lens, world, most, rank)).collect()
    }

    #[test]
    fn tokens_are_divided_evenly() {
        let lens = [900, 10, 20, 30, 400, 300, 15, 225];
        let shares = all(&lens, 2, 4);
        assert_eq!(shares, [[0, 1, 3, 6], [2, 4, 5, 7]]);
        let tokens = |share: &Vec<usize>| share.iter().map(|&index| lens[index]).sum::<usize>();
        assert_eq!(shares.iter().map(tokens).collect::<Vec<_>>(), [955, 945]);
    }

    proptest! {
        #[test]
        fn every_sample_is_dealt_once_and_no_rank_has_too_many(
            lens in prop::collection::vec(0usize..2048, 0..24),
            world in 1usize..6,
        ) {
            let most = lens.len().div_ceil(world);
            let shares = all(&lens, world, most);
            let mut dealt = shares.concat();
            dealt.sort_unstable();
            prop_assert_eq!(dealt, (0..lens.len()).collect::<Vec<_>>());
            prop_assert!(shares.iter().all(|share| share.len() <= most));
        }
    }
}
