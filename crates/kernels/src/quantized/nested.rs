//! The scales of a quantized weight, themselves quantized to 8 bits (double quantization).

use std::sync::LazyLock;

use super::quantize::largest;

/// Scales that share a scale.
pub const BLOCK: usize = 256;

/// The 256 values of the signed dynamic data type (Dettmers 2016), ascending: the nearer to 0, the more exponents and the
/// fewer fractions.
pub fn dynamic_map() -> &'static [f32; 256] {
    static MAP: LazyLock<[f32; 256]> = LazyLock::new(|| dynamic_values(true));
    &MAP
}

/// The 256 values of the unsigned dynamic data type, ascending: the sign's bit is one more for fractions.
pub fn unsigned_dynamic_map() -> &'static [f32; 256] {
    static MAP: LazyLock<[f32; 256]> = LazyLock::new(|| dynamic_values(false));
    &MAP
}

fn dynamic_values(is_signed: bool) -> [f32; 256] {
    let mut values = vec![0.0, 1.0];
    for exponent in 0..7 {
        let n = 1usize << (exponent + usize::from(!is_signed));
        let step = (1.0 - 0.1f32) / n as f32;
        // From both ends, each rounded once, as torch counts where the CPU has fused multiplication and addition.
        let bound = |i: usize| {
            let (from, steps) =
                if i < n.div_ceil(2) { (0.1f32, i as f64) } else { (1.0, i as f64 - n as f64) };
            (f64::from(from) + f64::from(step) * steps) as f32
        };
        let scale = 10f64.powi(exponent as i32 - 6) as f32;
        for i in 0..n {
            let mean = (bound(i) + bound(i + 1)) / 2.0;
            values.push(scale * mean);
            values.extend(is_signed.then_some(-scale * mean));
        }
    }
    values.sort_by(f32::total_cmp);
    std::array::from_fn(|i| values[i])
}

/// Quantizes scales into codes, with a scale for each block of them; what they lie around is returned.
pub(super) fn quantize(scales: &[f32], codes: &mut [u8], absmax: &mut [f32]) -> f32 {
    let mean = (scales.iter().map(|&x| f64::from(x)).sum::<f64>() / scales.len().max(1) as f64) as f32;
    let map = dynamic_map();
    for ((scales, codes), absmax) in scales.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)).zip(absmax) {
        let around: Vec<f32> = scales.iter().map(|x| x - mean).collect();
        *absmax = largest(&around);
        let inverse = 1.0 / absmax.max(1e-38);
        for (x, code) in around.iter().zip(codes) {
            *code = nearest(map, on_grid(x * inverse));
        }
    }
    mean
}

/// The nearest of 65,536 even steps from -1 to 1. bitsandbytes looks codes up by this step on a CPU, so a value near the
/// middle of two codes gets either of them; its bytes are ours.
fn on_grid(x: f32) -> f32 {
    let step = ((x.clamp(-1.0, 1.0) + 1.0) * 0.5 * 65535.0 + 0.5) as u32;
    2.0 * step as f32 / 65535.0 - 1.0
}

/// The index of the value nearest to `x`; of two that are equally near, the lower.
fn nearest(map: &[f32; 256], x: f32) -> u8 {
    let above = map.partition_point(|&value| value < x);
    match above {
        0 => 0,
        256 => 255,
        _ if x > (map[above - 1] + map[above]) / 2.0 => above as u8,
        _ => (above - 1) as u8,
    }
}
