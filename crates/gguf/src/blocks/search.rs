//! The searches for scales that ggml's quantisers are made of, with the same bits as theirs.
//!
//! All sums go from left to right in f32, and no product is fused with a sum. Each expression has the order of operations of
//! the reference, since another order rounds otherwise and sometimes chooses another code. The names there are `make_qkx2`
//! and `make_qkx3` ([`affine`]), `make_qx` ([`symmetric`]), `make_q3` ([`refined`]) and `make_qp` ([`positive`]).

/// Groups whose largest magnitude is below this are all zero.
pub(crate) const ZERO: f32 = 1e-15;

/// How often a search by single changes goes through a group.
const MAX_ROUNDS: usize = 5;

/// The codes of a group and their scale. An element is near `scale * code` plus what the search says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<const N: usize> {
    pub scale: f32,
    pub codes: [u8; N],
}

/// The scales that a search for a scale and a minimum tries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// The first change of the largest code.
    pub first: f32,
    /// What is added to it each time.
    pub step: f32,
    /// How often.
    pub n: u8,
    /// Whether errors are counted by magnitude, not by their square.
    pub is_absolute: bool,
}

/// The nearest whole number, the even one of two, as the low bits of a sum with 3 · 2^22.
///
/// Beyond 2^22 these bits are another number, which callers bring back into the range of codes as the reference does.
pub(crate) fn nearest(value: f32) -> i32 {
    let sum = value + 12_582_912.0;
    match sum.is_nan() {
        // Its bits are not the same on every CPU.
        true => 0,
        false => (sum.to_bits() & 0x7f_ffff).cast_signed() - 0x40_0000,
    }
}

/// The nearest code from 0 to the largest.
fn code_up_to(max_code: u8, value: f32) -> u8 {
    // In the range of the codes.
    nearest(value).clamp(0, max_code.into()) as u8
}

/// The nearest whole number of a signed range, `-max..max`.
fn signed_code(max: i32, value: f32) -> i32 {
    nearest(value).clamp(-max, max - 1)
}

/// The first element of the largest magnitude, with its sign.
pub(crate) fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0_f32, |most, value| if value.abs() > most.abs() { *value } else { most })
}

/// A scale and a minimum, with codes from 0 to `max_code`: an element is near `scale * code - minimum`.
///
/// The second part of the result is the minimum, which is not negative.
pub(crate) fn affine<const N: usize>(
    max_code: u8,
    values: &[f32; N],
    weights: &[f32; N],
    steps: Steps,
) -> (Found<N>, f32) {
    let top = f32::from(max_code);
    let (mut low, mut high) = (values[0], values[0]);
    let mut sum_w = weights[0];
    let mut sum_x = sum_w * values[0];
    for (x, w) in values.iter().zip(weights).skip(1) {
        low = if *x < low { *x } else { low };
        high = if *x > high { *x } else { high };
        sum_w += w;
        sum_x += w * x;
    }
    low = if low > 0.0 { 0.0 } else { low };
    if high <= low {
        return (Found { scale: 0.0, codes: [0; N] }, -low);
    }
    let error_of = |scale: f32, low: f32, codes: &[u8; N]| {
        let mut error = 0.0;
        for ((x, w), code) in values.iter().zip(weights).zip(codes) {
            let difference = scale * f32::from(*code) + low - x;
            error += w * if steps.is_absolute { difference.abs() } else { difference * difference };
        }
        error
    };
    let codes_of = |per_scale: f32, low: f32| values.map(|x| code_up_to(max_code, per_scale * (x - low)));
    let per_scale = top / (high - low);
    let mut best = Found { scale: 1.0 / per_scale, codes: codes_of(per_scale, low) };
    let mut least = error_of(best.scale, low, &best.codes);
    for number in 0..=steps.n {
        // The minimum is the best one so far, the maximum always that of the elements.
        let per_scale = (steps.first + steps.step * f32::from(number) + top) / (high - low);
        let codes = codes_of(per_scale, low);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0, 0.0, 0.0);
        for ((x, w), code) in values.iter().zip(weights).zip(&codes) {
            let l = f32::from(*code);
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x;
        }
        let determinant: f32 = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut offset = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if offset > 0.0 {
                offset = 0.0;
                scale = sum_xl / sum_l2;
            }
            let error = error_of(scale, offset, &codes);
            if error < least {
                (best, least, low) = (Found { scale, codes }, error, offset);
            }
        }
    }
    (best, -low)
}

/// A scale with a sign, and codes around `max`: an element is near `scale * (code - max)`. The weights are the squares of the
/// elements if there are none.
pub(crate) fn symmetric<const N: usize>(max: u8, values: &[f32; N], weights: Option<&[f32; N]>) -> Found<N> {
    let extreme = largest(values);
    if extreme.abs() < ZERO {
        return Found { scale: 0.0, codes: [0; N] };
    }
    let weights = weights.copied().unwrap_or_else(|| values.map(|x| x * x));
    let (top, range) = (f32::from(max), i32::from(max));
    let sums_of = |per_scale: f32| {
        let (mut sum_xl, mut sum_l2) = (0.0, 0.0);
        for (x, w) in values.iter().zip(&weights) {
            let l = signed_code(range, per_scale * x) as f32;
            sum_xl += w * x * l;
            sum_l2 += w * l * l;
        }
        (sum_xl, sum_l2)
    };
    let mut chosen = -top / extreme;
    let (sum_xl, sum_l2): (f32, f32) = sums_of(chosen);
    let mut scale = if sum_l2 == 0.0 { 0.0 } else { sum_xl / sum_l2 };
    let mut best = scale * sum_xl;
    for number in (-9_i8..=9).filter(|number| *number != 0) {
        let per_scale = -(top + 0.1 * f32::from(number)) / extreme;
        let (sum_xl, sum_l2) = sums_of(per_scale);
        if sum_l2 > 0.0 && sum_xl * sum_xl > best * sum_l2 {
            chosen = per_scale;
            scale = sum_xl / sum_l2;
            best = scale * sum_xl;
        }
    }
    // From 0 to twice the range.
    Found { scale, codes: values.map(|x| (signed_code(range, chosen * x) + range) as u8) }
}

/// As [`symmetric`], weighted by the squares of the elements, but improved by changes of single codes.
pub(crate) fn refined<const N: usize>(max: u8, values: &[f32; N]) -> Found<N> {
    let extreme = largest(values);
    if extreme.abs() < ZERO {
        return Found { scale: 0.0, codes: [0; N] };
    }
    let range = i32::from(max);
    let per_scale = -f32::from(max) / extreme;
    let mut codes = values.map(|x| signed_code(range, per_scale * x));
    let weights = values.map(|x| x * x);
    let (mut sum_xl, mut sum_l2) = (0.0, 0.0);
    for ((x, w), code) in values.iter().zip(&weights).zip(&codes) {
        let l = *code as f32;
        sum_xl += w * x * l;
        sum_l2 += w * l * l;
    }
    for _ in 0..MAX_ROUNDS {
        let mut is_changed = false;
        for ((x, w), code) in values.iter().zip(&weights).zip(&mut codes) {
            let l = *code as f32;
            let mut new_xl: f32 = sum_xl - w * x * l;
            if new_xl <= 0.0 {
                continue;
            }
            let mut new_l2: f32 = sum_l2 - w * l * l;
            let new_code = signed_code(range, x * new_l2 / new_xl);
            if new_code == *code {
                continue;
            }
            let l = new_code as f32;
            new_xl += w * x * l;
            new_l2 += w * l * l;
            if new_l2 > 0.0 && new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2 {
                (*code, sum_xl, sum_l2) = (new_code, new_xl, new_l2);
                is_changed = true;
            }
        }
        if !is_changed {
            break;
        }
    }
    let scale = if sum_l2 > 0.0 { sum_xl / sum_l2 } else { 0.0 };
    // From 0 to twice the range.
    Found { scale, codes: codes.map(|code| (code + range) as u8) }
}

/// A scale for numbers that are not negative, such as scales and minima of groups, with codes from 0 to `max_code`.
pub(crate) fn positive<const N: usize>(max_code: u8, values: &[f32; N], weights: &[f32; N]) -> Found<N> {
    let high = values.iter().fold(0.0_f32, |high, x| if *x > high { *x } else { high });
    if high < ZERO {
        return Found { scale: 0.0, codes: [0; N] };
    }
    let top = f32::from(max_code);
    let codes_of = |per_scale: f32| values.map(|x| code_up_to(max_code, per_scale * x));
    let error_of = |per_scale: f32| {
        let scale = 1.0 / per_scale;
        let mut error = 0.0;
        for ((x, w), code) in values.iter().zip(weights).zip(codes_of(per_scale)) {
            let difference = x - scale * f32::from(code);
            error += w * difference * difference;
        }
        error
    };
    let mut chosen = top / high;
    let mut least: f32 = error_of(chosen);
    for number in (-4_i8..=4).filter(|number| *number != 0) {
        let per_scale = (0.1 * f32::from(number) + top) / high;
        let error = error_of(per_scale);
        if error < least {
            (chosen, least) = (per_scale, error);
        }
    }
    let mut codes = codes_of(chosen);
    let (mut sum_xl, mut sum_l2) = (0.0, 0.0);
    for ((x, w), code) in values.iter().zip(weights).zip(&codes) {
        let l = f32::from(*code);
        sum_xl += w * x * l;
        sum_l2 += w * l * l;
    }
    for _ in 0..MAX_ROUNDS {
        let mut is_changed = false;
        for ((x, w), code) in values.iter().zip(weights).zip(&mut codes) {
            let l = f32::from(*code);
            let mut new_xl: f32 = sum_xl - w * x * l;
            let mut new_l2: f32 = sum_l2 - w * l * l;
            if new_xl <= 0.0 || new_l2 <= 0.0 {
                continue;
            }
            let new_code = code_up_to(max_code, x * new_l2 / new_xl);
            if new_code == *code {
                continue;
            }
            let l = f32::from(new_code);
            new_xl += w * x * l;
            new_l2 += w * l * l;
            if new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2 {
                (*code, sum_xl, sum_l2) = (new_code, new_xl, new_l2);
                is_changed = true;
            }
        }
        if !is_changed {
            break;
        }
    }
    let scale = if sum_l2 > 0.0 { sum_xl / sum_l2 } else { 0.0 };
    Found { scale, codes }
}
