//! The examples of the guides give the same losses on any number of ranks, and those of the same programs in Python.

use std::path::{Path, PathBuf};

use oarlock::{Accelerator, AcceleratorConfig, Result};
use serde_json::Value;

#[path = "../examples/distillation.rs"]
#[allow(dead_code)]
mod distillation;

/// How far losses on different numbers of ranks may lie apart.
const RANKS: f32 = 1e-5;
/// How far ours may lie from those of the original libraries.
const ORIGINAL: f32 = 1e-4;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name).join("golden.json")).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// What each rank of `world` returns; ranks are threads.
fn on_ranks<R: Send + 'static>(
    world: usize,
    config: &AcceleratorConfig,
    rank: impl Fn(&Accelerator) -> Result<R> + Clone + Send + 'static,
) -> Vec<R> {
    let config = AcceleratorConfig { threads: Some(1), ..config.clone() };
    let threads: Vec<_> = oarlock_comm::shm::threads(world)
        .unwrap()
        .into_iter()
        .map(|comm| {
            let (config, rank) = (config.clone(), rank.clone());
            std::thread::spawn(move || {
                let result =
                    Accelerator::over(comm.clone(), &config).and_then(|accelerator| rank(&accelerator));
                match &result {
                    Ok(_) => comm.finish(),
                    Err(error) => comm.abort(&error.to_string()),
                }
                result.unwrap()
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn assert_near(found: &[f32], expected: &[f32], within: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let apart = (found - expected).abs();
        assert!(apart < within, "{what}, step {step}: {found} and {expected} are {apart} apart");
    }
}

#[test]
fn distillation_is_the_same_on_any_number_of_ranks_and_as_in_python() {
    let expected = numbers(&read("distillation")["losses"]);
    let one = distil(1).remove(0);
    assert_near(&one, &expected, ORIGINAL, "accelerate and DeepSpeed");
    for world in [2, 4] {
        for losses in distil(world) {
            assert_near(&losses, &one, RANKS, &format!("{world} ranks"));
        }
    }
}

fn distil(world: usize) -> Vec<Vec<f32>> {
    on_ranks(world, &distillation::config(), |accelerator| {
        distillation::train(accelerator, &golden("distillation"))
    })
}
