//! The examples that have a twin in PyTorch: from the same initial weights both get the same losses, on any number of ranks.
//!
//! `bench/golden/make_twins.py` runs the twins and writes their losses.

use std::fs;
use std::path::{Path, PathBuf};

use oarlock::nn::{self, Module};
use oarlock::{Accelerator, AcceleratorConfig, Prepared, Result, SaveModel, distributed, optim};
use serde::Deserialize;

use crate::examples_guides::{distillation, text_classifier};

#[path = "../examples/char_gpt.rs"]
#[allow(dead_code)]
mod char_gpt;
#[path = "../examples/cnn_digits.rs"]
#[allow(dead_code)]
mod cnn_digits;
#[path = "../examples/contrastive.rs"]
#[allow(dead_code)]
mod contrastive;
#[path = "../examples/custom_optimizer.rs"]
#[allow(dead_code)]
mod custom_optimizer;
#[path = "../examples/gan.rs"]
#[allow(dead_code)]
mod gan;
#[path = "../examples/lora.rs"]
#[allow(dead_code)]
mod lora;
#[path = "../examples/moe.rs"]
#[allow(dead_code)]
mod moe;
#[path = "../examples/vae.rs"]
#[allow(dead_code)]
mod vae;

const STEPS: usize = 20;
/// How far losses may lie apart, relative to their size if that is above 1.
const WITHIN: f64 = 1e-4;

/// What `make_twins.py` writes.
#[derive(Deserialize)]
struct Golden {
    losses: Vec<f64>,
}

/// Trains a number of steps: the model, and the loss of every step over all ranks.
type Train<M> = fn(&Accelerator, usize) -> Result<(M, Vec<f64>)>;

/// Ranks divide each batch, so the batch of a step is the same on any number of them.
fn config() -> AcceleratorConfig {
    AcceleratorConfig::default().split_batches(true)
}

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path)
}

/// Trains on so many ranks, which are threads, and compares the losses of each rank with those of the twin.
fn compare<M>(name: &str, world: usize, config: AcceleratorConfig, train: Train<M>) {
    let path = golden(&format!("twins/{name}.json"));
    let expected: Golden = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let config = AcceleratorConfig { threads: Some(1), ..config };
    let ended = distributed::spawn(world, |_| {
        let (_, losses) = train(&Accelerator::new(&config)?, STEPS)?;
        assert_eq!(losses.len(), expected.losses.len());
        for (at, (found, expected)) in losses.iter().zip(&expected.losses).enumerate() {
            let apart = (found - expected).abs() / expected.abs().max(1.0);
            assert!(apart < WITHIN, "loss {at} is {found} and that of the twin {expected}");
        }
        Ok(())
    });
    ended.unwrap();
}

macro_rules! twins {
    ($($name:ident: $on_one_rank:ident, $on_two_ranks:ident;)*) => {$(
        #[test]
        fn $on_one_rank() {
            compare(stringify!($name), 1, config(), $name::train);
        }

        #[test]
        fn $on_two_ranks() {
            compare(stringify!($name), 2, config(), $name::train);
        }
    )*};
}

twins! {
    char_gpt: char_gpt_on_one_rank, char_gpt_on_two_ranks;
    cnn_digits: cnn_digits_on_one_rank, cnn_digits_on_two_ranks;
    contrastive: contrastive_on_one_rank, contrastive_on_two_ranks;
    custom_optimizer: custom_optimizer_on_one_rank, custom_optimizer_on_two_ranks;
    gan: gan_on_one_rank, gan_on_two_ranks;
    lora: lora_on_one_rank, lora_on_two_ranks;
    moe: moe_on_one_rank, moe_on_two_ranks;
    vae: vae_on_one_rank, vae_on_two_ranks;
}

/// The first losses of a whole training.
fn distil(accelerator: &Accelerator, steps: usize) -> Result<((), Vec<f64>)> {
    let losses = distillation::train(accelerator, &golden("distillation"))?;
    Ok(((), losses.into_iter().take(steps).map(f64::from).collect()))
}

#[test]
fn distillation_on_one_rank() {
    compare("distillation", 1, distillation::config().unwrap(), distil);
}

#[test]
fn distillation_on_two_ranks() {
    compare("distillation", 2, distillation::config().unwrap(), distil);
}

/// The first losses of a whole training.
fn classify(accelerator: &Accelerator, steps: usize) -> Result<((), Vec<f64>)> {
    let outcome = text_classifier::train(accelerator, &golden("text_classifier/model"))?;
    Ok(((), outcome.losses.into_iter().take(steps).map(f64::from).collect()))
}

#[test]
fn text_classifier_on_one_rank() {
    compare("text_classifier", 1, text_classifier::config(), classify);
}

#[test]
fn text_classifier_on_two_ranks() {
    compare("text_classifier", 2, text_classifier::config(), classify);
}

#[test]
#[ignore = "bench/golden/make_twins.py runs it"]
fn write_initial_weights_by_hand() {
    let folder = PathBuf::from(std::env::var_os("TWINS_FOLDER").expect("TWINS_FOLDER names a folder"));
    write(&folder, "char_gpt", char_gpt::model());
    write(&folder, "cnn_digits", cnn_digits::model());
    write(&folder, "contrastive", contrastive::model());
    write(&folder, "custom_optimizer", custom_optimizer::model());
    write(&folder, "gan.1.generator", gan::generator());
    write(&folder, "gan.2.discriminator", gan::discriminator());
    write(&folder, "moe", moe::model());
    write(&folder, "vae", vae::model());
    // After no step: the pretrained weights, and adapters at their beginning.
    let accelerator = Accelerator::new(&config()).unwrap();
    save(&accelerator, &lora::train(&accelerator, 0).unwrap().0, &folder, "lora");
}

/// Writes the weights that a prepared model begins with as `NAME.safetensors`. A twin with several models gets its files in
/// the order of their names.
fn write<M: Module>(folder: &Path, name: &str, model: nn::Result<M>) {
    let accelerator = Accelerator::new(&config()).unwrap();
    let model = model.unwrap();
    let optimizer = optim::sgd(&model);
    let (model, _optimizer) = accelerator.prepare((model, optimizer)).unwrap();
    save(&accelerator, &model, folder, name);
}

fn save<M: Module>(accelerator: &Accelerator, model: &Prepared<M>, folder: &Path, name: &str) {
    accelerator.save_model(model, folder, &SaveModel::default()).unwrap();
    fs::rename(folder.join("model.safetensors"), folder.join(format!("{name}.safetensors"))).unwrap();
}
