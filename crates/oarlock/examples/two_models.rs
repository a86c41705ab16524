//! Two separate models trained in turn, each with a DeepSpeed configuration, an accelerator, a schedule and a loss scale of
//! its own.
//!
//! `cargo run --example two_models`, or on several ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/two_models`

#![allow(clippy::disallowed_methods, reason = "an example needs no other crate")]

use std::path::{Path, PathBuf};

use oarlock::deepspeed::Config;
use oarlock::nn::{self, Forward, Linear, Module};
use oarlock::{
    Accelerator, AcceleratorConfig, DeepSpeedPlugin, DummyOptim, DummyScheduler, Result, Tensor, optim,
};
use oarlock_engine::distributed::rank;

const WIDTH: usize = 4;
const STEPS: usize = 16;
const BATCH_SIZE: usize = 8;

#[derive(Module)]
struct Net {
    up: nn::Unit<Linear>,
    down: nn::Unit<Linear>,
}

impl Net {
    fn new() -> Result<Net> {
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

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn main() -> Result<()> {
    let comm = rank::join()?;
    let accelerator = Accelerator::over(comm.clone(), &config(comm.world_size())?)?;
    let [first, second] = train(&accelerator)?;
    for (name, losses) in [("first", first), ("second", second)] {
        accelerator
            .print(format_args!("{name}: the last losses {:.4?}", &losses[losses.len().saturating_sub(4)..]));
    }
    Ok(())
}

/// Two plugins, by name. The ranks divide each batch, and that is what their "auto" micro-batch is.
pub fn config(world: usize) -> Result<AcceleratorConfig> {
    let plugin = |name: &str| -> Result<DeepSpeedPlugin> {
        let mut config = Config::from_file(here(&format!("examples/two_models/{name}.json")))?;
        config.fill("train_micro_batch_size_per_gpu", BATCH_SIZE / world);
        Ok(config.into())
    };
    let deepspeed_plugins =
        vec![("first_model".to_owned(), plugin("first")?), ("second_model".to_owned(), plugin("second")?)];
    Ok(AcceleratorConfig { deepspeed_plugins, ..AcceleratorConfig::default() })
}

/// The losses of every step of both models, each the mean over all ranks.
pub fn train(first_accelerator: &Accelerator) -> Result<[Vec<f32>; 2]> {
    let second_accelerator = first_accelerator.another()?;

    first_accelerator.select_deepspeed_plugin("first_model")?;
    let first_model = Net::new()?;
    let first_optimizer = DummyOptim::new(&first_model).lr(0.02).weight_decay(0.01);
    let first_scheduler = DummyScheduler::new(&first_optimizer, STEPS as u64, 4);
    let (first_model, first_optimizer, first_scheduler) =
        first_accelerator.prepare((first_model, first_optimizer, first_scheduler))?;
    first_accelerator.load_model(&first_model, here("tests/golden/deepspeed_library/first.safetensors"))?;

    second_accelerator.select_deepspeed_plugin("second_model")?;
    let second_model = Net::new()?;
    let second_optimizer = optim::adamw(&second_model).lr(0.01).weight_decay(0.0);
    let (second_model, second_optimizer) = second_accelerator.prepare((second_model, second_optimizer))?;
    second_accelerator
        .load_model(&second_model, here("tests/golden/deepspeed_library/second.safetensors"))?;

    let (rank, world) = (first_accelerator.process_index(), first_accelerator.num_processes());
    let rows = BATCH_SIZE / world;
    let mut losses = [Vec::new(), Vec::new()];
    for step in 0..STEPS {
        let (x, sines) = batch((step * world + rank) * rows, rows);
        let cosines: Vec<f32> = sines.iter().map(|y| (2.0 * y).cos()).collect();
        let x = Tensor::from_slice(&x, [rows, WIDTH], first_accelerator.device())?;
        let [sines, cosines] =
            [sines, cosines].map(|y| Tensor::from_slice(&y, [rows, 1], first_accelerator.device()));

        let loss1 = first_model.forward(&x)?.sub(&sines?)?.square()?.mean_all()?;
        first_accelerator.backward(&loss1)?;
        first_optimizer.step()?;
        first_scheduler.step();
        first_optimizer.zero_grad()?;

        let loss2 = second_model.forward(&x)?.sub(&cosines?)?.square()?.mean_all()?;
        second_accelerator.backward(&loss2)?;
        second_optimizer.step()?;
        second_optimizer.zero_grad()?;

        let mut sums = [loss1.item::<f64>()?, loss2.item::<f64>()?];
        first_accelerator.reduce_sum(&mut sums)?;
        losses.iter_mut().zip(sums).for_each(|(losses, sum)| losses.push((sum / world as f64) as f32));
    }
    Ok(losses)
}

/// Some rows of the data: inputs between -1 and 1, and the sines of their sums.
fn batch(first: usize, rows: usize) -> (Vec<f32>, Vec<f32>) {
    let x: Vec<f32> =
        (first * WIDTH..(first + rows) * WIDTH).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
    let y = x.chunks(WIDTH).map(|row| row.iter().sum::<f32>().sin()).collect();
    (x, y)
}
