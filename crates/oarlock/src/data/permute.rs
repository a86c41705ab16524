//! A pseudo-random permutation of `0..n` that stores nothing: any element in O(1).

/// A permutation of `0..n` chosen by a key: a Feistel network over the next power of four, walked until the value
/// falls inside `0..n` (fewer than four rounds on average).
#[derive(Clone, Copy, Debug)]
pub(super) struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

const ROUNDS: usize = 6;

impl Permutation {
    /// The permutation of `0..n` that belongs to `seed` and `stream` (such as an epoch).
    pub(super) fn new(n: u64, seed: u64, stream: u64) -> Permutation {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let base = mix(seed ^ mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15)));
        let keys = std::array::from_fn(|round| mix(base.wrapping_add(round as u64 + 1)));
        Permutation { n, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// The element at `i`; `i` must be below `n`.
    pub(super) fn at(&self, i: u64) -> u64 {
        debug_assert!(i < self.n, "{i} is outside 0..{}", self.n);
        let mut value = i;
        loop {
            value = self.round_trip(value);
            // A cycle that starts inside comes back inside.
            if value < self.n || i >= self.n {
                return value;
            }
        }
    }

    fn round_trip(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits & mask, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finaliser of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_once() {
        for n in [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097] {
            let permutation = Permutation::new(n, 42, 3);
            let mut seen: Vec<u64> = (0..n).map(|i| permutation.at(i)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "{n}");
        }
    }

    #[test]
    fn seeds_and_epochs_differ_and_order_is_broken() {
        let order =
            |seed, epoch| (0..1000).map(|i| Permutation::new(1000, seed, epoch).at(i)).collect::<Vec<_>>();
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(0, 1), order(1, 0));
        // Of a random permutation one element stays in place and one follows its neighbour, on average.
        let order = order(7, 0);
        assert!((0..1000).filter(|&i| order[i] == i as u64).count() < 10);
        assert!(order.windows(2).filter(|w| w[1] == w[0] + 1).count() < 10);
        let first_half: u64 = order[..500].iter().sum();
        assert!((first_half as f64 / 499_500.0 - 0.5).abs() < 0.05);
    }

    #[test]
    fn the_largest_domains_do_not_overflow() {
        for n in [1 << 32, (1 << 62) + 1, u64::MAX] {
            assert!(Permutation::new(n, 1, 1).at(n - 1) < n);
        }
    }
}
