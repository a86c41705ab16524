//! Weights of safetensors files that a test changes in their place.

use std::path::Path;

use serde_json::Value;

/// Changes the f32 elements of a tensor of a file.
pub fn change(file: &Path, tensor: &str, change: impl FnOnce(&mut [f32])) {
    let mut bytes = std::fs::read(file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    assert_eq!(entries[tensor]["dtype"], "F32", "{tensor}");
    let at = |i: usize| header + entries[tensor]["data_offsets"][i].as_u64().unwrap() as usize;
    let place = &mut bytes[at(0)..at(1)];
    let mut values: Vec<f32> =
        place.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
    change(&mut values);
    for (word, value) in place.chunks_exact_mut(4).zip(values) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(file, bytes).unwrap();
}
