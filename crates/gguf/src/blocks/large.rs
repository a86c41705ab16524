//! How blocks of 256 elements are made: a scale for each group, and a scale for the scales.

use crate::blocks::scales::{put_half, put_scales_of_q3_k, put_scales_of_q4_k};
use crate::blocks::scheme::{MAX_BLOCK, Weights};
use crate::blocks::search::{Steps, ZERO, affine, largest, nearest, positive, refined, symmetric};

/// The scales that are tried for groups with an importance.
const WEIGHTED_STEPS: Steps = Steps { first: -0.9, step: 0.05, n: 36, is_absolute: false };

/// How the groups of a type with minima are made.
struct Affine {
    max_code: u8,
    /// The largest code of a scale and of a minimum.
    max_scale_code: u8,
    /// The scales that are tried without an importance.
    steps: Steps,
    /// Whether elements weigh by their magnitude alone, not by the mean of their group as well.
    weighs_by_magnitude: bool,
    /// How often the mean of the squares counts beside an element where there is an importance.
    mean_factor: f32,
}

const Q2_K: Affine = Affine {
    max_code: 3,
    max_scale_code: 15,
    steps: Steps { first: -0.5, step: 0.1, n: 15, is_absolute: true },
    weighs_by_magnitude: true,
    mean_factor: 1.0,
};

const Q4_K: Affine = Affine {
    max_code: 15,
    max_scale_code: 63,
    steps: Steps { first: -1.0, step: 0.1, n: 20, is_absolute: false },
    weighs_by_magnitude: false,
    mean_factor: 2.0,
};

const Q5_K: Affine = Affine { max_code: 31, steps: Steps { first: -0.5, n: 15, ..Q4_K.steps }, ..Q4_K };

/// `Q2_K`: 16 groups of 16.
pub(crate) fn encode_q2_k(values: &[f32], weights: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    let (scales, minima) = Q2_K.encode::<16, 16>(values, weights, block, 80, codes);
    for ((byte, scale), minimum) in block.iter_mut().zip(scales).zip(minima) {
        *byte = scale | minimum << 4;
    }
}

/// `Q4_K`: 8 groups of 32.
pub(crate) fn encode_q4_k(values: &[f32], weights: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    let (scales, minima) = Q4_K.encode::<32, 8>(values, weights, block, 0, codes);
    put_scales_of_q4_k(&scales, &minima, block);
}

/// `Q5_K`: 8 groups of 32.
pub(crate) fn encode_q5_k(values: &[f32], weights: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    let (scales, minima) = Q5_K.encode::<32, 8>(values, weights, block, 0, codes);
    put_scales_of_q4_k(&scales, &minima, block);
}

/// `Q3_K`: 16 groups of 16 around zero, with scales of 6 bits.
pub(crate) fn encode_q3_k(values: &[f32], weights: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    let groups = groups_of::<16, 16>(values);
    let (mut scales, mut sums) = ([0.0; 16], [0.0; 16]);
    let importance = weights.map(|weights| importance::<16, 16>(&groups, weights.columns, 2.0));
    for (j, group) in groups.iter().enumerate() {
        let found = match &importance {
            None => refined(4, group),
            Some(importance) => {
                sums[j] = sum(&importance[j]);
                symmetric(4, group, Some(&importance[j]))
            }
        };
        scales[j] = found.scale;
        codes[16 * j..][..16].copy_from_slice(&found.codes);
    }
    if !are_finite(&scales) {
        put_half(block, 108, f32::NAN);
        return;
    }
    let (scale, scale_codes) = match importance {
        Some(_) => {
            let found = symmetric(32, &scales, Some(&sums));
            (found.scale, found.codes)
        }
        None => match largest(&scales) {
            0.0 => (0.0, [0; 16]),
            extreme => {
                let per_scale = -32.0 / extreme;
                // From 0 to 63.
                let code = |scale: f32| (nearest(per_scale * scale).clamp(-32, 31) + 32) as u8;
                (1.0 / per_scale, scales.map(code))
            }
        },
    };
    let scale = put_half(block, 108, scale);
    put_scales_of_q3_k(&scale_codes, block);
    for (j, group) in groups.iter().enumerate() {
        let scale = scale * (f32::from(scale_codes[j]) - 32.0);
        choose_again(group, scale, 0.0, -4, 3, &mut codes[16 * j..][..16]);
    }
}

/// `Q6_K`: 16 groups of 16 around zero, with scales of 8 bits.
pub(crate) fn encode_q6_k(values: &[f32], weights: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    let groups = groups_of::<16, 16>(values);
    let columns = weights.map(|weights| groups_of::<16, 16>(weights.columns));
    let mut scales = [0.0; 16];
    for (j, group) in groups.iter().enumerate() {
        let found = symmetric(32, group, columns.as_ref().map(|columns| &columns[j]));
        scales[j] = found.scale;
        codes[16 * j..][..16].copy_from_slice(&found.codes);
    }
    if !are_finite(&scales) {
        put_half(block, 208, f32::NAN);
        return;
    }
    let extreme = largest(&scales);
    if extreme.abs() < ZERO {
        block.fill(0);
        codes.fill(0);
        return;
    }
    let per_scale = -128.0 / extreme;
    let scale = put_half(block, 208, 1.0 / per_scale);
    for (j, group) in groups.iter().enumerate() {
        // No scale is larger than the extreme one, which becomes -128.
        let code = nearest(per_scale * scales[j]).min(127) as i8;
        block[192 + j] = code.cast_unsigned();
        choose_again(group, scale * f32::from(code), 0.0, -32, 31, &mut codes[16 * j..][..16]);
    }
}

impl Affine {
    /// Finds the codes of a block and of its `G` scales and minima. Writes their scales, two halves, from a byte on.
    fn encode<const N: usize, const G: usize>(
        &self,
        values: &[f32],
        weights: Option<Weights<'_>>,
        block: &mut [u8],
        first_byte: usize,
        codes: &mut [u8],
    ) -> ([u8; G], [u8; G]) {
        let groups = groups_of::<N, G>(values);
        let importance = weights.map(|weights| importance(&groups, weights.columns, self.mean_factor));
        let (mut scales, mut minima, mut sums) = ([0.0; G], [0.0; G], [0.0; G]);
        for (j, group) in groups.iter().enumerate() {
            let (found, minimum) = match &importance {
                None => affine(self.max_code, group, &self.weights_of(group), self.steps),
                Some(importance) => {
                    sums[j] = sum(&importance[j]);
                    affine(self.max_code, group, &importance[j], WEIGHTED_STEPS)
                }
            };
            (scales[j], minima[j]) = (found.scale, minimum);
            codes[N * j..][..N].copy_from_slice(&found.codes);
        }
        if !are_finite(&scales) || !are_finite(&minima) {
            put_half(block, first_byte, f32::NAN);
            return ([1; G], [0; G]);
        }
        let codes_of = |numbers: &[f32; G]| match importance {
            None => self.codes_by_largest(numbers),
            Some(_) => {
                let found = positive(self.max_scale_code, numbers, &sums);
                (found.scale, found.codes)
            }
        };
        let (scale, scale_codes) = codes_of(&scales);
        let (minimum, minimum_codes) = codes_of(&minima);
        let scale = put_half(block, first_byte, scale);
        let minimum = put_half(block, first_byte + 2, minimum);
        for (j, group) in groups.iter().enumerate() {
            let scale = scale * f32::from(scale_codes[j]);
            let minimum = minimum * f32::from(minimum_codes[j]);
            choose_again(group, scale, minimum, 0, self.max_code.into(), &mut codes[N * j..][..N]);
        }
        (scale_codes, minimum_codes)
    }

    /// How much elements matter without an importance.
    fn weights_of<const N: usize>(&self, group: &[f32; N]) -> [f32; N] {
        if self.weighs_by_magnitude {
            return group.map(f32::abs);
        }
        let mean = (sum_of_squares(group) / N as f32).sqrt();
        group.map(|x| mean + x.abs())
    }

    /// The codes of numbers that are not negative, the largest of which gets the largest code, and their scale.
    fn codes_by_largest<const G: usize>(&self, numbers: &[f32; G]) -> (f32, [u8; G]) {
        let top = f32::from(self.max_scale_code);
        let high = numbers.iter().fold(0.0_f32, |high, x| if *x > high { *x } else { high });
        let per_scale = if high > 0.0 { top / high } else { 0.0 };
        // The low byte, as the reference takes it.
        let code = |number: f32| (nearest(per_scale * number) as u8).min(self.max_scale_code);
        (high / top, numbers.map(code))
    }
}

/// Chooses the codes of a group again, now that its scale is rounded: those of `(x + minimum) / scale`. A group whose scale
/// has become zero keeps what it has.
fn choose_again<const N: usize>(
    group: &[f32; N],
    scale: f32,
    minimum: f32,
    least: i32,
    most: i32,
    codes: &mut [u8],
) {
    if scale != 0.0 {
        for (x, code) in group.iter().zip(codes) {
            // From 0 to the largest code.
            *code = (nearest((x + minimum) / scale).clamp(least, most) - least) as u8;
        }
    }
}

/// The groups of a block.
fn groups_of<const N: usize, const G: usize>(values: &[f32]) -> [[f32; N]; G] {
    let mut groups = [[0.0; N]; G];
    for (group, values) in groups.iter_mut().zip(values.chunks_exact(N)) {
        group.copy_from_slice(values);
    }
    groups
}

/// How much the elements of each group matter, from the importance of their columns and the squares of the block.
fn importance<const N: usize, const G: usize>(
    groups: &[[f32; N]; G],
    columns: &[f32],
    mean_factor: f32,
) -> [[f32; N]; G] {
    let squares = sum_of_squares(groups.as_flattened());
    let mean_square = mean_factor * squares / MAX_BLOCK as f32;
    let mut importance = groups_of(columns);
    for (weight, x) in importance.as_flattened_mut().iter_mut().zip(groups.as_flattened()) {
        *weight *= (mean_square + x * x).sqrt();
    }
    importance
}

/// Whether a search found numbers. Where squares are too large, it does not, and the block must not look like a good one.
fn are_finite(scales: &[f32]) -> bool {
    scales.iter().all(|scale| scale.is_finite())
}

fn sum(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, value| sum + value)
}

fn sum_of_squares(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, value| sum + value * value)
}
