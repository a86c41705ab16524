//! The random choices of NumPy's `default_rng(seed)`, `choice(n, size, p)` and `permutation(n)`: PCG64 (O'Neill 2014) behind a
//! seed sequence, for orders that other programs draw with it.

/// NumPy's generator PCG64: 128 bits of state, XSL-RR output.
pub(super) struct Pcg64 {
    state: u128,
    increment: u128,
}

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

impl Pcg64 {
    /// `numpy.random.default_rng(seed)`.
    pub(super) fn new(seed: u64) -> Pcg64 {
        let [a, b, c, d] = seed_sequence(seed);
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let mut random = Pcg64 { state: 0, increment: wide(c, d) << 1 | 1 };
        random.step();
        random.state = random.state.wrapping_add(wide(a, b));
        random.step();
        random
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        let mixed = (self.state >> 64) as u64 ^ self.state as u64;
        mixed.rotate_right((self.state >> 122) as u32)
    }

    /// A number from 0 up to, but without, 1.
    fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `permutation(n)`.
    pub(super) fn permutation(mut self, n: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n).collect();
        // Each number gives its lower half first.
        let mut upper = None;
        for last in (1..n).rev() {
            let mask = u32::MAX >> last.leading_zeros();
            let other = loop {
                let half = upper.take().unwrap_or_else(|| {
                    let both = self.next_u64();
                    upper = Some((both >> 32) as u32);
                    both as u32
                });
                if half & mask <= last {
                    break half & mask;
                }
            };
            order.swap(last as usize, other as usize);
        }
        order
    }

    /// `choice(len(p), p=p)`: an index, each with its probability; these add up to 1.
    pub(super) fn choose(&mut self, cumulative: &Cumulative) -> usize {
        let u = self.uniform();
        cumulative.0.partition_point(|sum| *sum <= u).min(cumulative.0.len() - 1)
    }
}

/// Probabilities, added up.
pub(super) struct Cumulative(Vec<f64>);

impl Cumulative {
    /// Of at least one probability.
    pub(super) fn new(probabilities: &[f64]) -> Cumulative {
        let mut sum = 0.0;
        let mut sums: Vec<f64> = probabilities
            .iter()
            .map(|p| {
                sum += p;
                sum
            })
            .collect();
        sums.iter_mut().for_each(|part| *part /= sum);
        Cumulative(sums)
    }
}

const POOL: usize = 4;

/// `SeedSequence(seed).generate_state(4, uint64)`.
fn seed_sequence(seed: u64) -> [u64; 4] {
    let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];
    let mut constant = 0x43b0_d7e5u32;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mut pool = entropy.map(&mut hash);
    for source in 0..POOL {
        for to in (0..POOL).filter(|to| *to != source) {
            let mixed =
                pool[to].wrapping_mul(0xca01_f9dd).wrapping_sub(hash(pool[source]).wrapping_mul(0x4973_f715));
            pool[to] = mixed ^ mixed >> 16;
        }
    }
    let mut constant = 0x8b51_f9ddu32;
    let mut words = pool.into_iter().cycle().map(|word| {
        let word = word ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        let word = word.wrapping_mul(constant);
        u64::from(word ^ word >> 16)
    });
    std::array::from_fn(|_| {
        let low = words.next().unwrap_or_default();
        low | words.next().unwrap_or_default() << 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_choices_are_those_of_numpy() {
        // numpy.random.default_rng(seed).random(3), and .choice(3, size=16, p=[.5, .3, .2]), NumPy 2.
        let small = ([0.7739560485559633, 0.4388784397520523, 0.8585979199113825], "1021021100021200");
        let large = ([0.829812891829413, 0.25530515834910417, 0.15379071585298754], "2001100002000000");
        for (seed, (numbers, choices)) in [(42, small), ((1 << 40) + 7, large)] {
            let mut random = Pcg64::new(seed);
            assert_eq!([(); 3].map(|()| random.uniform()), numbers, "{seed}");
            let (mut random, sums) = (Pcg64::new(seed), Cumulative::new(&[0.5, 0.3, 0.2]));
            let chosen: String = (0..16).map(|_| random.choose(&sums).to_string()).collect();
            assert_eq!(chosen, choices, "{seed}");
        }
    }

    #[test]
    fn permutations_are_those_of_numpy() {
        // numpy.random.default_rng(42).permutation(20), and the sum of i * p[i] of default_rng(5).permutation(100_000).
        let order = Pcg64::new(42).permutation(20);
        assert_eq!(order, [15, 9, 14, 7, 12, 10, 6, 19, 3, 0, 16, 5, 11, 18, 2, 4, 17, 1, 13, 8]);
        let order = Pcg64::new(5).permutation(100_000);
        let sum: u64 = (0..).zip(&order).map(|(i, p): (u64, _)| i * u64::from(*p)).sum();
        assert_eq!(sum, 249_813_457_963_938);
        assert_eq!((Pcg64::new(1).permutation(0), Pcg64::new(1).permutation(1)), (vec![], vec![0]));
    }
}
