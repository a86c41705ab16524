//! DeepSpeed's loop: a configuration file makes the engine, the loop saves now and then with a state of its own, and a run
//! that was stopped goes on where its last checkpoint stands, bitwise identical.
//!
//! `cargo run --example deepspeed_loop -- FOLDER`, or on several ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/deepspeed_loop FOLDER`

#![allow(clippy::disallowed_methods, reason = "an example needs no other crate")]

use std::path::{Path, PathBuf};

use oarlock::deepspeed::{self, Config, InitializeArgs};
use oarlock::nn::{self, Forward, Linear, Module};
use oarlock::{Accelerator, AcceleratorConfig, Result, Tensor};
use serde::{Deserialize, Serialize};

const WIDTH: usize = 4;
/// Optimizer steps, samples of each over all ranks, and micro-batches between two checkpoints.
const STEPS: usize = 16;
const BATCH_SIZE: usize = 8;
const SAVE_INTERVAL: usize = 8;

/// Two layers.
#[derive(Module)]
pub struct Net {
    up: nn::Unit<Linear>,
    down: nn::Unit<Linear>,
}

impl Net {
    /// Without memory yet.
    pub fn new() -> Result<Net> {
        let [up, down] = [Linear::normal(WIDTH, 24, true, 0.3)?, Linear::normal(24, 1, true, 0.3)?];
        Ok(Net { up: nn::Unit::new(up), down: nn::Unit::new(down) })
    }
}

impl Forward<Tensor> for Net {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let h = self.up.run(x, |up| up.forward(x))?.tanh()?;
        self.down.run(&h, |down| down.forward(&h))
    }
}

/// What the loop keeps in a checkpoint beside the engine's state.
#[derive(Serialize, Deserialize)]
struct ClientState {
    step: usize,
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn main() -> Result<()> {
    let folder =
        std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("deepspeed_loop"), PathBuf::from);
    let accelerator = Accelerator::new(&AcceleratorConfig::default())?;
    let losses = train(&accelerator, &folder, usize::MAX)?;
    accelerator.print(format_args!(
        "{} micro-batches, the last losses {:.4?}",
        losses.len(),
        &losses[losses.len().saturating_sub(4)..]
    ));
    Ok(())
}

/// Trains from the newest checkpoint in `folder`, or from the beginning, until `stop` micro-batches of the whole run are
/// done. The mean loss over all ranks of each micro-batch.
pub fn train(accelerator: &Accelerator, folder: &Path, stop: usize) -> Result<Vec<f32>> {
    let config = Config::from_file(here("examples/deepspeed_loop/ds_config.json"))?;
    let args =
        InitializeArgs { accelerator: Some(accelerator.clone()), ..InitializeArgs::new(Net::new()?, config) };
    let (engine, ()) = deepspeed::initialize(args)?;
    accelerator.load_model(engine.model(), here("tests/golden/deepspeed_library/first.safetensors"))?;

    let done = match engine.load_checkpoint::<ClientState>(folder, None)? {
        Some((_path, client)) => client.step + 1,
        None => 0,
    };
    let mut losses = Vec::new();
    for (step, (x, y)) in dataloader_to_step(loader(accelerator), done) {
        if step >= stop {
            break;
        }
        let rows = y.len();
        let x = Tensor::from_slice(&x, [rows, WIDTH], engine.device())?;
        let y = Tensor::from_slice(&y, [rows, 1], engine.device())?;
        // forward() method
        let loss = engine.forward(&x)?.sub(&y)?.square()?.mean_all()?;
        // runs backpropagation
        engine.backward(&loss)?;
        // weight update
        engine.step()?;
        // save checkpoint
        if (step + 1).is_multiple_of(SAVE_INTERVAL) {
            engine.save_checkpoint(folder, None, &ClientState { step })?;
        }
        let mut sum = [loss.item::<f64>()?];
        accelerator.reduce_sum(&mut sum)?;
        losses.push((sum[0] / accelerator.num_processes() as f64) as f32);
    }
    Ok(losses)
}

/// Steps a loader on to where a run stands.
fn dataloader_to_step<T>(loader: impl Iterator<Item = T>, step: usize) -> impl Iterator<Item = (usize, T)> {
    loader.enumerate().skip(step)
}

/// The micro-batches of this rank: inputs between -1 and 1, and the sines of their sums.
fn loader(accelerator: &Accelerator) -> impl Iterator<Item = (Vec<f32>, Vec<f32>)> {
    let (rank, world) = (accelerator.process_index(), accelerator.num_processes());
    let rows = BATCH_SIZE / 2 / world;
    (0..2 * STEPS).map(move |micro| batch((micro * world + rank) * rows, rows))
}

/// Some rows of the data.
pub fn batch(first: usize, rows: usize) -> (Vec<f32>, Vec<f32>) {
    let x: Vec<f32> =
        (first * WIDTH..(first + rows) * WIDTH).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
    let y = x.chunks(WIDTH).map(|row| row.iter().sum::<f32>().sin()).collect();
    (x, y)
}
