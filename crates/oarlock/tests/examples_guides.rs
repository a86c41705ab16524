//! The examples of the guides give the same losses on any number of ranks, and those of the same programs in Python.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use oarlock::{Accelerator, AcceleratorConfig, Result};
use serde_json::Value;

use crate::ranks;

#[path = "../examples/distillation.rs"]
#[allow(dead_code)]
pub mod distillation;
#[path = "../examples/text_classifier.rs"]
#[allow(dead_code)]
pub mod text_classifier;

/// How far losses on different numbers of ranks may lie apart.
const RANKS: f32 = 1e-5;
/// How far ours may lie from those of the original libraries.
const ORIGINAL: f32 = 1e-4;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(golden(name).join("golden.json")).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// What each rank of `world` returns; ranks are threads.
fn on_ranks<R: Send>(
    world: usize,
    config: &AcceleratorConfig,
    rank: impl Fn(&Accelerator) -> Result<R> + Sync,
) -> Vec<R> {
    let config = AcceleratorConfig { threads: Some(1), ..config.clone() };
    ranks::on_ranks(world, config, rank).into_iter().map(Result::unwrap).collect()
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
    on_ranks(world, &distillation::config().unwrap(), |accelerator| {
        distillation::train(accelerator, &golden("distillation"))
    })
}

#[test]
fn the_text_classifier_is_the_same_on_any_number_of_ranks_and_as_in_python() {
    let expected = read("text_classifier");
    let one = classify(1).remove(0);
    assert_near(&one.losses, &numbers(&expected["losses"]), ORIGINAL, "accelerate and transformers");
    let predictions: Vec<Vec<i32>> = serde_json::from_value(expected["predictions"].clone()).unwrap();
    assert_eq!(one.predictions, predictions);
    let accuracy: Vec<f64> = serde_json::from_value(expected["accuracy"].clone()).unwrap();
    assert_eq!(one.accuracy, accuracy);
    for world in [2, 4] {
        for outcome in classify(world) {
            assert_near(&outcome.losses, &one.losses, RANKS, &format!("{world} ranks"));
            assert_eq!(outcome.predictions, one.predictions);
            assert_eq!(outcome.accuracy, one.accuracy);
        }
    }
}

fn classify(world: usize) -> Vec<text_classifier::Outcome> {
    on_ranks(world, &text_classifier::config(), |accelerator| {
        text_classifier::train(accelerator, &golden("text_classifier").join("model"))
    })
}

/// The page for those who come from Python quotes code that compiles: every line of a middle column stands in the file
/// that the last column names, but for its white space.
#[test]
fn the_page_from_python_quotes_code_that_is_there() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = fs::read_to_string(docs.join("from-python.md")).unwrap();
    let compact = |text: &str| text.split_whitespace().collect::<String>();
    let links = page.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    let files: HashMap<&str, String> =
        links.map(|(name, file)| (name, compact(&fs::read_to_string(docs.join(file)).unwrap()))).collect();
    let (mut wrong, mut quoted) = (Vec::new(), 0);
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        // A pipe inside a cell is written with a backslash.
        let row = row.replace("\\|", "\0");
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [_, ours, source] = cells[..] else { continue };
        let Some(name) = source.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else { continue };
        let file = files.get(name).unwrap_or_else(|| panic!("the page does not say which file [{name}] is"));
        for line in ours.split('`').skip(1).step_by(2) {
            let line = line.replace('\0', "|");
            if !file.contains(&compact(&line)) {
                wrong.push(format!("{name} has no line {line}"));
            }
            quoted += 1;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(quoted > 100, "only {quoted} lines are quoted");
}
