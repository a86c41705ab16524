//! The random choices of Python's `random` module, which DeepSpeed's layouts draw with: the Mersenne Twister (Matsumoto and
//! Nishimura 1998) and `random.sample`.

use rand_mt::Mt;

/// `random.Random`.
pub(super) struct PythonRandom(Mt);

impl PythonRandom {
    /// In the state after `random.seed(seed)`.
    pub(super) fn new(seed: u64) -> PythonRandom {
        let (low, high) = (seed as u32, (seed >> 32) as u32);
        let words = if high == 0 { vec![low] } else { vec![low, high] };
        PythonRandom(Mt::new_with_key(words))
    }

    fn bits(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// A number below `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        let bits = usize::BITS - n.leading_zeros();
        loop {
            let number = (self.bits() >> (32 - bits)) as usize;
            if number < n {
                return number;
            }
        }
    }

    /// `random.sample(range(n), k)`: `k` different numbers below `n`, which is at least `k` and fits 32 bits.
    pub(super) fn sample(&mut self, n: usize, k: usize) -> Vec<usize> {
        let set_size = match k {
            0..=5 => 21,
            _ => 21 + 4usize.pow((libm::log((3 * k) as f64) / libm::log(4.0)).ceil() as u32),
        };
        let mut chosen = Vec::with_capacity(k);
        if n <= set_size {
            let mut pool: Vec<usize> = (0..n).collect();
            for i in 0..k {
                let j = self.below(n - i);
                chosen.push(pool[j]);
                pool[j] = pool[n - i - 1];
            }
        } else {
            while chosen.len() < k {
                let j = self.below(n);
                if !chosen.contains(&j) {
                    chosen.push(j);
                }
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Python 3.11: `random.getrandbits(32)`, twice, behind a seed.
    const BITS: [(u64, [u32; 2]); 4] = [
        (0, [3_626_764_237, 1_654_615_998]),
        (1, [577_090_037, 2_444_712_010]),
        (42, [2_746_317_213, 478_163_327]),
        ((1 << 32) + 5, [675_479_763, 2_085_189_291]),
    ];

    /// `random.sample(range(n), k)` behind `random.seed(42)`.
    const SAMPLES: [(usize, usize, &[usize]); 5] = [
        (10, 3, &[1, 0, 4]),
        (21, 5, &[20, 3, 0, 8, 7]),
        (22, 5, &[20, 3, 0, 8, 7]),
        (100, 7, &[81, 14, 3, 94, 35, 31, 28]),
        (300, 6, &[57, 12, 140, 125, 114, 71]),
    ];

    #[test]
    fn numbers_are_those_of_python() {
        for (seed, first) in BITS {
            let mut random = PythonRandom::new(seed);
            assert_eq!([random.bits(), random.bits()], first, "{seed}");
        }
        for (n, k, expected) in SAMPLES {
            assert_eq!(PythonRandom::new(42).sample(n, k), expected, "{n} {k}");
        }
    }
}
