//! Files and numbers that several tests share.

use oarlock_gguf::{Metadata, TensorPlan, TensorType, Writer};

/// Numbers between -2 and 2 that look random and are the same everywhere.
pub fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1_u32 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next() + next()).collect()
}

/// A small file with a key of every type and tensors of several.
pub fn small_file() -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama").unwrap();
    metadata.set("general.quantization_version", 2_u32).unwrap();
    metadata.set("a.u8", 1_u8).unwrap();
    metadata.set("a.i8", -1_i8).unwrap();
    metadata.set("a.u16", 2_u16).unwrap();
    metadata.set("a.i16", -2_i16).unwrap();
    metadata.set("a.i32", -3_i32).unwrap();
    metadata.set("a.f32", 0.5_f32).unwrap();
    metadata.set("a.bool", true).unwrap();
    metadata.set("a.u64", 4_u64).unwrap();
    metadata.set("a.i64", -4_i64).unwrap();
    metadata.set("a.f64", 0.25_f64).unwrap();
    metadata.set("a.tokens", ["<s>", "", "ab"].as_slice()).unwrap();
    metadata.set("a.scores", [0.0_f32, -1.5, -2.5].as_slice()).unwrap();
    metadata.set("a.flags", [true, false].as_slice()).unwrap();
    metadata.set("a.none", Vec::<i32>::new().as_slice()).unwrap();
    let plans = vec![
        TensorPlan::new("output_norm.weight", [5], TensorType::F32),
        TensorPlan::new("blk.0.ffn_down.weight", [64, 3], TensorType::Q8_0),
        TensorPlan::new("blk.0.attn_q.weight", [256, 2], TensorType::Q4_K),
        TensorPlan::new("blk.0.ffn_up_exps.weight", [2, 3, 2], TensorType::BF16),
    ];
    let mut writer = Writer::begin(Vec::new(), &metadata, plans).unwrap();
    for n in [5, 192, 512, 12] {
        writer.write_rows(&noise(n, n as u32), None).unwrap();
    }
    writer.finish().unwrap()
}
