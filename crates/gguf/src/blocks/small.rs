//! How blocks of 32 elements are made: one scale, sometimes with a minimum.

use crate::blocks::scales::{half_power, put_half};
use crate::blocks::scheme::Weights;
use crate::blocks::search::{Steps, affine, largest, symmetric};

/// The elements of a block.
const BLOCK: usize = 32;

/// The doubled values of 4-bit floats with 2 bits of exponent and 1 of mantissa.
pub(crate) const STEPS_OF_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The scales that are tried for blocks with a minimum and an importance.
const STEPS: Steps = Steps { first: -0.9, step: 0.05, n: 36, is_absolute: false };

/// `Q4_0`: the extreme element gets the code 0.
pub(crate) fn encode_q4_0(values: &[f32], weights: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    around_zero::<8>(values, weights, block, codes);
}

/// `Q5_0`: the extreme element gets the code 0.
pub(crate) fn encode_q5_0(values: &[f32], weights: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    around_zero::<16>(values, weights, block, codes);
}

/// `Q4_1`.
pub(crate) fn encode_q4_1(values: &[f32], weights: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    above_minimum::<15>(values, weights, block, codes);
}

/// `Q5_1`.
pub(crate) fn encode_q5_1(values: &[f32], weights: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    above_minimum::<31>(values, weights, block, codes);
}

/// `Q8_0`, which importance does not change.
pub(crate) fn encode_q8_0(values: &[f32], _: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    let scale = largest(values).abs() / 127.0;
    let per_scale = inverse(scale);
    put_half(block, 0, scale);
    for (x, code) in values.iter().zip(codes) {
        // Halves are rounded away from zero.
        *code = low_byte((x * per_scale).round());
    }
}

/// `MXFP4`, which importance does not change: the nearest step, of two the first.
pub(crate) fn encode_mxfp4(values: &[f32], _: Option<Weights<'_>>, block: &mut [u8], codes: &mut [u8]) {
    let most = largest(values).abs();
    // The logarithm in f64 is rounded once, to f32, as the reference's is: just below a power of two it becomes whole.
    let exponent = libm::log2(f64::from(most)) as f32;
    // Zero and values that are too small have the least exponent, where the reference wraps around.
    block[0] = if most > 0.0 { (exponent.floor() + 125.0) as u8 } else { 0 };
    let scale = half_power(block[0]);
    for (x, code) in values.iter().zip(codes) {
        let mut least = f32::INFINITY;
        for (index, step) in (0..).zip(STEPS_OF_E2M1) {
            let error = (f32::from(step) * scale - x).abs();
            if error < least {
                (*code, least) = (index, error);
            }
        }
    }
}

fn around_zero<const ZERO: u8>(
    values: &[f32],
    weights: Option<Weights<'_>>,
    block: &mut [u8],
    codes: &mut [u8],
) {
    if let Some(weights) = weights {
        let (values, weights) = weighted(values, weights);
        let found = symmetric(ZERO, &values, Some(&weights));
        put_half(block, 0, found.scale);
        codes.copy_from_slice(&found.codes);
        return;
    }
    let zero = f32::from(ZERO);
    let scale = largest(values) / -zero;
    let per_scale = inverse(scale);
    put_half(block, 0, scale);
    for (x, code) in values.iter().zip(codes) {
        *code = low_byte(x * per_scale + (zero + 0.5)).min(2 * ZERO - 1);
    }
}

fn above_minimum<const MAX_CODE: u8>(
    values: &[f32],
    weights: Option<Weights<'_>>,
    block: &mut [u8],
    codes: &mut [u8],
) {
    if let Some(weights) = weights {
        let (values, weights) = weighted(values, weights);
        let (found, minimum) = affine(MAX_CODE, &values, &weights, STEPS);
        put_half(block, 0, found.scale);
        put_half(block, 2, -minimum);
        codes.copy_from_slice(&found.codes);
        return;
    }
    let low = values.iter().fold(f32::MAX, |low, x| if *x < low { *x } else { low });
    let high = values.iter().fold(f32::MIN, |high, x| if *x > high { *x } else { high });
    let scale = (high - low) / f32::from(MAX_CODE);
    let per_scale = inverse(scale);
    put_half(block, 0, scale);
    put_half(block, 2, low);
    for (x, code) in values.iter().zip(codes) {
        *code = low_byte((x - low) * per_scale + 0.5).min(MAX_CODE);
    }
}

/// The elements of a block, and how much each of them matters.
fn weighted(values: &[f32], weights: Weights<'_>) -> ([f32; BLOCK], [f32; BLOCK]) {
    let (mut elements, mut importance) = ([0.0; BLOCK], [0.0; BLOCK]);
    elements.copy_from_slice(values);
    for ((weight, column), x) in importance.iter_mut().zip(weights.columns).zip(values) {
        *weight = column * (weights.mean_square + x * x).sqrt();
    }
    (elements, importance)
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The low byte of the whole part. What no i32 holds is 0, as on the CPUs of the reference: it arises where a scale is so
/// small that its inverse is infinite.
fn low_byte(value: f32) -> u8 {
    match value.abs() < 2_147_483_648.0 {
        true => (value as i32) as u8,
        false => 0,
    }
}
