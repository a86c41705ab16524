//! A small seeded generator (SplitMix64), so that the corpus is the same on every machine.

/// The state is a counter; each draw is a hash of it.
pub struct Rng(u64);

impl Rng {
    /// A generator whose draws depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number in `0..bound`; `bound` must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * bound as u128) >> 64) as usize
    }

    /// Puts `items` in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
