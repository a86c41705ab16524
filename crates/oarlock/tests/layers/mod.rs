//! What the tests of layers share: torch's values, inputs, and how far results may lie apart.

use std::path::{Path, PathBuf};

use oarlock::{Device, Tensor};
use serde_json::Value;

/// A file that `bench/golden/make_modules.py` wrote.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/modules").join(name)
}

pub fn expected(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

pub fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[track_caller]
pub fn assert_close(got: &[f32], want: &[f32], allowed: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= allowed, "{what} [{index}]: got {got}, want {want}");
    }
}

/// The sines of multiples of `step`.
pub fn wave(device: &Device, shape: &[usize], step: f32) -> Tensor {
    let data: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i as f32 * step).sin()).collect();
    Tensor::from_slice(&data, shape, device).unwrap()
}
