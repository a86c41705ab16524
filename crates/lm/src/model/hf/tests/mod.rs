//! Tests of Hugging Face folders against models that transformers wrote and ran (`tests/golden`, bench/golden).

mod checkpoints;
mod config;
mod weights;

use std::path::{Path, PathBuf};

use oarlock_engine::Error;
use oarlock_engine::checkpoint::weights::*;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::difference::{largest_difference, largest_magnitude};
use oarlock_tensor::ops::Mask;
use oarlock_tensor::{DType, Device, Par, Tensor};
use serde_json::Value;

use super::*;

/// The golden folders.
const MODELS: [&str; 7] =
    ["llama", "llama-biased", "qwen2", "qwen3", "minimind", "minimind-2025", "minimind-seed"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden").join(name)
}

fn cpu() -> Device {
    Device::cpu(Isa::detect(), Par::solo())
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn load(dir: &Path, dtype: DType) -> LoadedModel {
    load_for_inference(dir, &cpu(), dtype, usize::MAX).unwrap()
}

/// The largest distance to the logits that transformers computed, and their own largest size.
fn distance(model: &LoadedModel, expected: &Value) -> (f64, f64) {
    let list =
        |value: &Value| value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let ids: Vec<i32> = list(&expected["ids"]).iter().map(|&id| id as i32).collect();
    let ids = Tensor::from_slice(&ids, [1, ids.len()], &model.device).unwrap();
    let logits = model.decoder.logits(&ids, &Mask::Causal).unwrap();
    let ours = logits.to_f32_vec().unwrap();
    let vocab = model.decoder.config().vocab_size;
    let (mut own, mut expected_logits) = (Vec::new(), Vec::new());
    for (row, position) in expected["logits"].as_array().unwrap().iter().zip(list(&expected["positions"])) {
        for (column, theirs) in list(row).into_iter().enumerate() {
            own.push(ours[position as usize * vocab + column]);
            expected_logits.push(theirs);
        }
    }
    let size = largest_magnitude(expected_logits.iter().copied()).unwrap();
    (largest_difference(&own, &expected_logits).unwrap(), size)
}

#[test]
fn logits_are_those_of_transformers() {
    for name in MODELS {
        let expected = json(&golden(name).join("logits.json"));
        let (far, size) = distance(&load(&golden(name), DType::F32), &expected);
        println!("{name}: f32 {far:.1e} of {size:.1}");
        assert!(far < 1e-4, "{name}: {far} of {size}");
        let (far, _) = distance(&load(&golden(name), DType::BF16), &expected);
        println!("{name}: bf16 {far:.1e} of {size:.1}");
        assert!(far < 0.06 * size, "{name} in bf16: {far} of {size}");
    }
}

#[test]
fn a_written_folder_gives_the_same_logits_bit_by_bit() {
    for name in MODELS {
        let from = golden(name);
        let model = load(&from, DType::F32);
        let dir = tempfile::tempdir().unwrap();
        let options = SaveOptions { dtype: DType::F32, max_shard_bytes: 8000, side_files_from: Some(&from) };
        save_pretrained(
            dir.path(),
            &model.config,
            &model.decoder,
            &mut WorkingCopies::of(&model.decoder),
            &options,
        )
        .unwrap();
        assert!(dir.path().join("model.safetensors.index.json").exists());
        let again = load(dir.path(), DType::F32);
        assert_eq!(again.decoder.config(), model.decoder.config(), "{name}");
        let ids = Tensor::from_slice(&[1, 2, 3, 60, 5], [1, 5], &model.device).unwrap();
        let logits = |m: &LoadedModel| {
            let ids = Tensor::from_slice(&ids.to_vec::<i32>().unwrap(), [1, 5], &m.device).unwrap();
            m.decoder.logits(&ids, &Mask::Causal).unwrap().to_vec::<f32>().unwrap()
        };
        assert_eq!(logits(&again), logits(&model), "{name}");
    }
}

fn message(result: Result<impl Sized, Error>) -> String {
    result.err().unwrap().to_string()
}
