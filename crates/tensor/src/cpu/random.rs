//! temp
/// temp
pub fn fill_normal(seed: u64, stream: u64, first: u64, mean: f32, std: f32, out: &mut [f32]) {
    for (i, o) in out.iter_mut().enumerate() {
        let h = |salt: u64| { let mut z = seed ^ stream ^ (first + i as u64).wrapping_mul(0x9E3779B97F4A7C15) ^ salt; z = (z ^ (z >> 30)).wrapping_mul(0xBF58476D1CE4E5B9); z = (z ^ (z >> 27)).wrapping_mul(0x94D049BB133111EB); ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32 };
        *o = mean + std * (-2.0 * (h(1) + 1e-7).ln()).sqrt() * (std::f32::consts::TAU * h(77)).cos();
    }
}
/// temp
pub fn fill_uniform(_seed: u64, _stream: u64, _first: u64, a: f32, _b: f32, out: &mut [f32]) { out.fill(a) }
