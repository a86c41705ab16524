//! Rotary position embedding: inverse frequencies with the scalings of transformers, and cos/sin tables.
//!
//! Roundings to f32 stand where transformers has f32 tensors: far positions multiply the error of a frequency, so a
//! more exact frequency would be a different one.

use std::ops::Range;
use std::sync::Arc;

use oarlock_kernels::{Error, Result};

/// How the frequencies of a longer context follow from those of the trained one.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// They stay.
    None,
    /// All are divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The base grows once the sequence is longer than the trained one ("NTK-aware").
    Dynamic {
        /// How fast it grows.
        factor: f64,
        /// The trained length: `max_position_embeddings` in transformers.
        original_max_positions: usize,
    },
    /// Llama 3.1: low frequencies are divided, high ones stay, between them a linear blend.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are high frequencies.
        high_freq_factor: f64,
        /// The trained length.
        original_max_positions: usize,
    },
    /// YaRN: a ramp over the dimensions, and a factor on cos and sin.
    Yarn(Yarn),
    /// LongRoPE: a divisor for each frequency, one set for short and one for long sequences, and a factor on cos and sin.
    LongRope(LongRope),
}

/// The parameters of [`RopeScaling::LongRope`], named as in transformers.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Divisors, one a pair, for sequences of up to `original_max_positions`.
    pub short_factor: Arc<[f64]>,
    /// Divisors, one a pair, for longer sequences.
    pub long_factor: Arc<[f64]>,
    /// The trained length.
    pub original_max_positions: usize,
    /// The ratio of the new length to the trained one.
    pub factor: f64,
    /// The factor on cos and sin; `None` derives it from `factor` and the trained length.
    pub attention_factor: Option<f64>,
}

/// The parameters of [`RopeScaling::Yarn`], named as in transformers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// The ratio of the new length to the trained one.
    pub factor: f64,
    /// The trained length.
    pub original_max_positions: usize,
    /// Dimensions that turn more often than this over the trained length stay; 32 where nothing is given.
    pub beta_fast: f64,
    /// Dimensions that turn less often than this are divided; 1 where nothing is given.
    pub beta_slow: f64,
    /// The factor on cos and sin; `None` derives it from the others.
    pub attention_factor: Option<f64>,
    /// With `mscale_all_dim`: the numerator's slope of the derived attention factor.
    pub mscale: Option<f64>,
    /// With `mscale`: the denominator's slope.
    pub mscale_all_dim: Option<f64>,
    /// Whether the ends of the ramp are rounded to whole dimensions; true where nothing is given.
    pub truncate: bool,
}

impl Yarn {
    /// The parameters where nothing but the ratio and the trained length is given.
    pub const fn new(factor: f64, original_max_positions: usize) -> Yarn {
        Yarn {
            factor,
            original_max_positions,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: true,
        }
    }
}

/// `cos` and `sin` of each position and pair, both `[positions, rot_dim / 2]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Cosines, times the attention factor.
    pub cos: Vec<f32>,
    /// Sines, times the attention factor.
    pub sin: Vec<f32>,
}

impl RopeTable {
    /// The table for positions `0..n_positions`. The sequence length that the scalings `Dynamic` and `LongRope` look at
    /// is `n_positions`.
    ///
    /// # Errors
    /// Parameters that give no finite frequencies, or more positions than memory has room for.
    pub fn new(theta: f64, rot_dim: usize, scaling: RopeScaling, n_positions: usize) -> Result<RopeTable> {
        RopeTable::of_positions(theta, rot_dim, scaling, n_positions, 0..n_positions)
    }

    /// As [`RopeTable::new`], of some positions of a sequence of `seq_len`, which the scalings look at.
    ///
    /// # Errors
    /// As [`RopeTable::new`].
    pub fn of_positions(
        theta: f64,
        rot_dim: usize,
        scaling: RopeScaling,
        seq_len: usize,
        positions: Range<usize>,
    ) -> Result<RopeTable> {
        let (inv_freq, attention_factor) = inverse_frequencies(theta, rot_dim, &scaling, seq_len)?;
        RopeTable::of_frequencies(&inv_freq, attention_factor, positions)
    }

    /// The table of these inverse frequencies and this factor on cos and sin.
    pub(crate) fn of_frequencies(
        inv_freq: &[f32],
        attention_factor: f64,
        positions: Range<usize>,
    ) -> Result<RopeTable> {
        let n = positions.len().saturating_mul(inv_freq.len());
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for table in [&mut cos, &mut sin] {
            let bytes = n.saturating_mul(size_of::<f32>());
            let what = "a table of rotary angles";
            table.try_reserve_exact(n).map_err(|_| Error::OutOfMemory { bytes, what })?;
        }
        let attention_factor = attention_factor as f32;
        for position in positions {
            for frequency in inv_freq {
                let (s, c) = libm::sincos(f64::from(position as f32 * frequency));
                cos.push(c as f32 * attention_factor);
                sin.push(s as f32 * attention_factor);
            }
        }
        Ok(RopeTable { cos, sin })
    }
}

/// The inverse frequency of each pair, and the factor on cos and sin.
///
/// # Errors
/// Parameters that give no finite frequencies.
pub fn inverse_frequencies(
    theta: f64,
    rot_dim: usize,
    scaling: &RopeScaling,
    seq_len: usize,
) -> Result<(Vec<f32>, f64)> {
    check(theta, rot_dim, scaling)?;
    let plain = |theta: f64| pair_frequencies(theta, rot_dim).map(|frequency| 1.0 / frequency);
    Ok(match *scaling {
        RopeScaling::None => (plain(theta).collect(), 1.0),
        RopeScaling::Linear { factor } => (plain(theta).map(|f| f / factor as f32).collect(), 1.0),
        RopeScaling::Dynamic { factor, original_max_positions } => {
            // The length is a tensor in transformers, so the base is f32 at each step.
            let original = original_max_positions as f32;
            let ratio = (factor as f32 * (seq_len as f32).max(original)) / original;
            let stretch = f64::from(ratio - (factor - 1.0) as f32);
            let exponent = f64::from((rot_dim as f64 / (rot_dim as f64 - 2.0)) as f32);
            let base = theta as f32 * libm::pow(stretch, exponent) as f32;
            (plain(f64::from(base)).collect(), 1.0)
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            let original = original_max_positions as f64;
            let longest = (original / low_freq_factor) as f32;
            let shortest = (original / high_freq_factor) as f32;
            let span = (high_freq_factor - low_freq_factor) as f32;
            let scale = |f: f32| {
                let wavelength = std::f64::consts::TAU as f32 / f;
                let smooth = (original as f32 / wavelength - low_freq_factor as f32) / span;
                if wavelength > longest {
                    f / factor as f32
                } else if wavelength < shortest {
                    f
                } else {
                    (1.0 - smooth) * f / factor as f32 + smooth * f
                }
            };
            (plain(theta).map(scale).collect(), 1.0)
        }
        RopeScaling::Yarn(yarn) => yarn_frequencies(theta, rot_dim, yarn),
        RopeScaling::LongRope(ref long) => {
            let is_long = seq_len > long.original_max_positions;
            let divisors = if is_long { &long.long_factor } else { &long.short_factor };
            let stretched = pair_frequencies(theta, rot_dim).zip(divisors.iter());
            (stretched.map(|(f, divisor)| 1.0 / (*divisor as f32 * f)).collect(), long.attention_factor())
        }
    })
}

impl LongRope {
    fn attention_factor(&self) -> f64 {
        self.attention_factor.unwrap_or_else(|| match self.factor <= 1.0 {
            true => 1.0,
            false => (1.0 + libm::log(self.factor) / libm::log(self.original_max_positions as f64)).sqrt(),
        })
    }
}

/// `theta^(2 j / rot_dim)` for each pair `j`.
fn pair_frequencies(theta: f64, rot_dim: usize) -> impl Iterator<Item = f32> {
    let theta = f64::from(theta as f32);
    (0..rot_dim / 2).map(move |j| libm::pow(theta, f64::from((2 * j) as f32 / rot_dim as f32)) as f32)
}

fn yarn_frequencies(theta: f64, rot_dim: usize, yarn: Yarn) -> (Vec<f32>, f64) {
    let slope =
        |mscale: f64| if yarn.factor <= 1.0 { 1.0 } else { 0.1 * mscale * libm::log(yarn.factor) + 1.0 };
    let attention_factor =
        yarn.attention_factor.unwrap_or_else(|| match (yarn.mscale, yarn.mscale_all_dim) {
            (Some(m), Some(all)) if m != 0.0 && all != 0.0 => slope(m) / slope(all),
            _ => slope(1.0),
        });
    let dim = rot_dim as f64;
    // The dimension that turns this often over the trained length.
    let dimension = |turns: f64| {
        let wavelength = yarn.original_max_positions as f64 / (turns * std::f64::consts::TAU);
        dim * libm::log(wavelength) / (2.0 * libm::log(theta))
    };
    let (mut low, mut high) = (dimension(yarn.beta_fast), dimension(yarn.beta_slow));
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dim - 1.0));
    if low == high {
        high += 0.001;
    }
    let blend = |(j, f): (usize, f32)| {
        let ramp = ((j as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        let kept = 1.0 - ramp;
        1.0 / (yarn.factor as f32 * f) * (1.0 - kept) + 1.0 / f * kept
    };
    (pair_frequencies(theta, rot_dim).enumerate().map(blend).collect(), attention_factor)
}

fn check(theta: f64, rot_dim: usize, scaling: &RopeScaling) -> Result<()> {
    let refuse = |what: &str| {
        Err(Error::Usage(format!(
            "rope: {what}, got theta {theta}, {rot_dim} rotated dimensions, {scaling:?}"
        )))
    };
    let positive = |x: f64| x.is_finite() && x > 0.0;
    if !(theta.is_finite() && theta > 1.0 && rot_dim.is_multiple_of(2)) {
        return refuse("expected theta above 1 and an even number of dimensions");
    }
    let good = match *scaling {
        RopeScaling::None => true,
        RopeScaling::Linear { factor } => positive(factor),
        RopeScaling::Dynamic { factor, original_max_positions } => {
            positive(factor) && original_max_positions > 0 && rot_dim > 2
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            positive(factor)
                && positive(low_freq_factor)
                && high_freq_factor > low_freq_factor
                && high_freq_factor.is_finite()
                && original_max_positions > 0
        }
        RopeScaling::Yarn(y) => {
            let optional = [y.attention_factor, y.mscale, y.mscale_all_dim];
            [y.factor, y.beta_fast, y.beta_slow].into_iter().all(positive)
                && optional.into_iter().flatten().all(f64::is_finite)
                && y.original_max_positions > 0
        }
        RopeScaling::LongRope(ref long) => {
            let sets = [&long.short_factor, &long.long_factor];
            if sets.iter().any(|set| set.len() != rot_dim / 2) {
                return refuse("expected one short_factor and one long_factor for each pair of dimensions");
            }
            sets.iter().all(|set| set.iter().all(|&x| positive(x)))
                && long.attention_factor.is_none_or(f64::is_finite)
                && positive(long.factor)
                && long.original_max_positions > 1
        }
    };
    if good {
        Ok(())
    } else {
        refuse("expected positive factors and lengths (dynamic: more than 2 dimensions)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DYNAMIC: RopeScaling = RopeScaling::Dynamic { factor: 2.0, original_max_positions: 2048 };
    const LLAMA3: RopeScaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    const YARN: Yarn = Yarn::new(16.0, 2048);
    const SHORT: Yarn = Yarn::new(4.0, 1024);
    const YARN_MSCALE: Yarn =
        Yarn { beta_fast: 16.0, beta_slow: 2.0, mscale: Some(0.707), mscale_all_dim: Some(1.0), ..SHORT };
    const YARN_PLAIN_RAMP: Yarn = Yarn { attention_factor: Some(1.25), truncate: false, ..SHORT };

    /// Scaling, theta, rotated dimensions, positions; then the attention factor, bits of some frequencies, and some
    /// (position, pair, cos, sin).
    type Golden = (RopeScaling, f64, usize, usize, f64, [(usize, u32); 5], [(usize, usize, f32, f32); 3]);

    /// Short divisors that grow from 1 to 1.45, long ones from 1 to 25.75.
    fn long_rope(factor: f64, attention_factor: Option<f64>) -> RopeScaling {
        let pairs = || (0..16).map(f64::from);
        RopeScaling::LongRope(LongRope {
            short_factor: pairs().map(|i| 1.0 + 0.03 * i).collect(),
            long_factor: pairs().map(|i| 1.0 + 0.9 * i + 0.05 * i * i).collect(),
            original_max_positions: 1024,
            factor,
            attention_factor,
        })
    }

    /// Produced by `LlamaRotaryEmbedding`, and `Phi3RotaryEmbedding` on half of each head, of transformers 5.23 with
    /// torch 2.13 on a CPU.
    #[rustfmt::skip]
    fn golden() -> [Golden; 12] {
        [
            (RopeScaling::None, 10000.0, 64, 2048, 1.0,
                [(1, 0x3f3f_f911), (7, 0x3e08_8d77), (12, 0x3d01_86e3), (20, 0x3b4f_3e38), (31, 0x390b_d472)],
                [(1024, 9, 0.1788902, 0.9838691), (2047, 12, -0.3232647, 0.9463086), (2047, 1, -0.35735652, 0.93396807)]),
            (RopeScaling::None, 1000000.0, 96, 4096, 1.0,
                [(1, 0x3f3f_f911), (7, 0x3e08_8d78), (12, 0x3d01_86e3), (20, 0x3b4f_3e39), (31, 0x390b_d474)],
                [(2048, 9, -0.9359966, 0.35200906), (4095, 12, -0.7712548, -0.6365266), (4095, 1, -0.09004636, -0.9959376)]),
            (RopeScaling::Linear { factor: 4.0 }, 10000.0, 64, 2048, 1.0,
                [(1, 0x3e3f_f911), (7, 0x3d08_8d77), (12, 0x3c01_86e3), (20, 0x3a4f_3e38), (31, 0x380b_d472)],
                [(1024, 9, 0.94014716, 0.34076878), (2047, 12, -0.8892957, -0.4573326), (2047, 1, 0.8851137, 0.46537486)]),
            (DYNAMIC, 10000.0, 64, 2048, 1.0,
                [(1, 0x3f3f_f911), (7, 0x3e08_8d77), (12, 0x3d01_86e3), (20, 0x3b4f_3e38), (31, 0x390b_d472)],
                [(1024, 9, 0.1788902, 0.9838691), (2047, 12, -0.3232647, 0.9463086), (2047, 1, -0.35735652, 0.93396807)]),
            (DYNAMIC, 10000.0, 64, 5000, 1.0,
                [(1, 0x3f37_c0db), (7, 0x3dc9_0bf3), (12, 0x3c99_39ee), (20, 0x3aac_bfbd), (31, 0x3810_0cd2)],
                [(2500, 9, 0.71085155, 0.7033421), (4999, 12, 0.73537064, -0.6776651), (4999, 1, 0.86990374, 0.49322155)]),
            (LLAMA3, 500000.0, 128, 16384, 1.0,
                [(1, 0x3f50_8ac1), (7, 0x3e73_c461), (12, 0x3dae_e4ad), (20, 0x3c87_a9c3), (31, 0x3a60_979e)],
                [(8192, 9, 0.9752622, -0.22105104), (16383, 12, -0.49588898, -0.8683859), (16383, 1, 0.92550445, 0.37873676)]),
            (RopeScaling::Yarn(YARN), 1000000.0, 64, 4096, 1.2772588722239782,
                [(1, 0x3f26_3de0), (7, 0x3d1d_e848), (12, 0x3ac7_9fa9), (20, 0x373a_7753), (31, 0x33ce_af79)],
                [(2048, 9, 1.0541964, -0.72115207), (4095, 12, 1.2758801, -0.059331022), (4095, 1, 0.17874847, 1.2646893)]),
            (RopeScaling::Yarn(YARN_MSCALE), 10000.0, 64, 4096, 0.964326914892074,
                [(1, 0x3f3f_f911), (7, 0x3e08_8d77), (12, 0x3ca1_e89c), (20, 0x3a4f_3e38), (31, 0x380b_d472)],
                [(2048, 9, 0.5607233, 0.7845481), (4095, 12, 0.7076468, -0.65510494), (4095, 1, -0.08683413, -0.9604094)]),
            (RopeScaling::Yarn(YARN_PLAIN_RAMP), 10000.0, 64, 4096, 1.25,
                [(1, 0x3f3f_f911), (7, 0x3dfa_3d21), (12, 0x3c9c_afc2), (20, 0x3a4f_3e38), (31, 0x380b_d472)],
                [(2048, 9, -0.7431465, 1.0051037), (4095, 12, -1.2210426, 0.26749787), (4095, 1, -0.11255795, -1.2449219)]),
            (long_rope(8.0, None), 10000.0, 32, 1024, 1.140175425099138,
                [(1, 0x3f0b_c432), (3, 0x3e27_0f75), (7, 0x3c70_c9b1), (10, 0x3b1f_6af0), (15, 0x3900_98ea)],
                [(512, 3, -0.31288442, 1.0964048), (1023, 7, -0.89126873, 0.71108377), (1023, 1, 0.88376653, -0.72038656)]),
            (long_rope(8.0, Some(1.19)), 10000.0, 32, 3000, 1.19,
                [(1, 0x3e93_a690), (3, 0x3d2f_8398), (7, 0x3aef_0f23), (10, 0x395d_0f2a), (15, 0x36e7_b992)],
                [(1500, 3, 0.1512997, 1.1803426), (2999, 7, 0.8175852, -0.8646702), (2999, 1, -0.7265266, -0.9424751)]),
            (long_rope(4.0, None), 10000.0, 32, 3000, 1.0954451150103321,
                [(1, 0x3e93_a690), (3, 0x3d2f_8398), (7, 0x3aef_0f23), (10, 0x395d_0f2a), (15, 0x36e7_b992)],
                [(1500, 3, 0.13927774, 1.086555), (2999, 7, 0.7526216, -0.7959653), (2999, 1, -0.6687984, -0.867588)]),
        ]
    }

    #[test]
    fn frequencies_and_tables_are_those_of_transformers() {
        for (scaling, theta, rot_dim, n, attention_factor, frequencies, entries) in golden() {
            let (inv_freq, factor) = inverse_frequencies(theta, rot_dim, &scaling, n).unwrap();
            assert!((factor - attention_factor).abs() < 1e-15);
            for (pair, bits) in frequencies {
                let ulps = inv_freq[pair].to_bits().abs_diff(bits);
                assert!(ulps == 0, "{scaling:?}, pair {pair}: {ulps} ulps");
            }
            let table = RopeTable::new(theta, rot_dim, scaling.clone(), n).unwrap();
            for (position, pair, cos, sin) in entries {
                let at = position * rot_dim / 2 + pair;
                assert!((table.cos[at] - cos).abs() < 1e-6, "{scaling:?}, cos of {position}, {pair}");
                assert!((table.sin[at] - sin).abs() < 1e-6, "{scaling:?}, sin of {position}, {pair}");
            }
        }
    }

    #[test]
    fn a_table_that_no_memory_holds_is_refused() {
        for n_positions in [usize::MAX, 1 << 58] {
            let error = RopeTable::new(1e4, 64, RopeScaling::None, n_positions).unwrap_err().to_string();
            assert!(error.ends_with("bytes for a table of rotary angles"), "{error}");
        }
    }

    #[test]
    fn parameters_without_frequencies_are_refused() {
        let refused = |theta, dim, scaling| RopeTable::new(theta, dim, scaling, 4).is_err();
        assert!(refused(0.0, 64, RopeScaling::None) && refused(1e4, 63, RopeScaling::None));
        assert!(refused(1e4, 64, RopeScaling::Linear { factor: 0.0 }) && refused(1e4, 2, DYNAMIC));
        assert!(refused(1e4, 64, RopeScaling::Yarn(Yarn { factor: f64::NAN, ..YARN })));
        let flat = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 4.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192,
        };
        assert!(refused(1e4, 64, flat));
        assert!(refused(1e4, 64, long_rope(8.0, None)) && refused(1e4, 32, long_rope(0.0, None)));
    }
}
