//! Two networks that train each other: one draws digits, the other tells them from real ones. [gan.py](gan.py) is the same
//! program in PyTorch.
//!
//! `cargo run -p oarlock --example gan`, or on two ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/gan`

#![allow(clippy::disallowed_methods, reason = "an example needs no other crate")]

use oarlock::dataloader::DataLoader;
use oarlock::nn::{self, Forward, Linear, Module, Relu, Sequential, Sigmoid};
use oarlock::{Accelerator, AcceleratorConfig, Error, Prepared, ReduceOp, Result, Tensor, optim};

const BATCH_SIZE: usize = 50;
const N_LATENT: usize = 16;

/// Draws images from noise.
pub fn generator() -> nn::Result<Sequential> {
    let (fc1, fc2) = (Linear::new(N_LATENT, 128)?, Linear::new(128, 64)?);
    Ok(Sequential::new().add(fc1).add(Relu).add(fc2).add(Sigmoid))
}

/// Tells real images from drawn ones: positive for real.
#[derive(Module)]
pub struct Discriminator {
    fc1: Linear,
    fc2: Linear,
}

impl Forward<Tensor> for Discriminator {
    type Output = Tensor;
    fn forward(&self, images: &Tensor) -> nn::Result<Tensor> {
        self.fc2.forward(&self.fc1.forward(images)?.leaky_relu(0.2)?)
    }
}

/// The discriminator with fresh weights.
pub fn discriminator() -> nn::Result<Discriminator> {
    Ok(Discriminator { fc1: Linear::new(64, 128)?, fc2: Linear::new(128, 1)? })
}

/// The loss of logits that should all say the same: 1 for real, 0 for drawn.
fn should_say(logits: &Tensor, verdict: f32) -> nn::Result<Tensor> {
    nn::bce_with_logits(logits, &logits.full_like(verdict)?)
}

/// The images, as 64 pixels between 0 and 1.
fn digits() -> Result<Vec<Vec<f32>>> {
    let pixel = |number: &str| Ok(number.parse::<f32>().map_err(Error::other)? / 16.0);
    include_str!("data/digits.csv").lines().map(|line| line.split(',').skip(1).map(pixel).collect()).collect()
}

/// A number between 0 and 1 for each n, as if drawn at random.
fn uniform(n: usize) -> f64 {
    let x = (n as u32).wrapping_mul(0x9e37_79b1);
    let x = (x ^ x >> 15).wrapping_mul(0x85eb_ca77);
    f64::from(x ^ x >> 13) / 2f64.powi(32)
}

/// As if drawn from the normal distribution: Box and Muller's transform.
fn normal(n: usize) -> f32 {
    let [u, v] = [2 * n, 2 * n + 1].map(uniform);
    ((-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
}

/// The trained generator, and for every step the losses of both, the means over the batch of all ranks.
pub fn train(accelerator: &Accelerator, steps: usize) -> Result<(Prepared<Sequential>, Vec<f64>)> {
    let digits = digits()?;
    let noise = |i: usize| (i * N_LATENT..(i + 1) * N_LATENT).map(normal).collect::<Vec<f32>>();
    let samples: Vec<_> =
        (0..steps * BATCH_SIZE).map(|i| (digits[i % digits.len()].clone(), noise(i))).collect();
    let loader = DataLoader::new(samples, BATCH_SIZE);
    let (generator, discriminator) = (generator()?, discriminator()?);
    let g_optimizer = optim::adam(&generator).lr(5e-4).betas(0.5, 0.999);
    let d_optimizer = optim::adam(&discriminator).lr(5e-4).betas(0.5, 0.999);
    let (loader, generator, discriminator, g_optimizer, d_optimizer) =
        accelerator.prepare((loader, generator, discriminator, g_optimizer, d_optimizer))?;

    let mut losses = Vec::new();
    for batch in loader.iter()? {
        let (real, noise) = batch?;
        let drawn = generator.forward(&noise)?;
        let on_real = should_say(&discriminator.forward(&real)?, 1.0)?;
        let on_drawn = should_say(&discriminator.forward(&drawn.detach())?, 0.0)?;
        let d_loss = (on_real + on_drawn)?;
        accelerator.backward(&d_loss)?;
        d_optimizer.step()?;

        let g_loss = should_say(&discriminator.forward(&drawn)?, 1.0)?;
        accelerator.backward(&g_loss)?;
        g_optimizer.step()?;
        // The loss of the generator went through the discriminator and left gradients there.
        d_optimizer.zero_grad()?;
        let (d_loss, g_loss) = accelerator.reduce(&(d_loss, g_loss), ReduceOp::Avg, 1.0)?;
        losses.extend([d_loss.item::<f64>()?, g_loss.item()?]);
    }
    Ok((generator, losses))
}

/// Images side by side, in characters.
fn draw(images: &Tensor) -> Result<String> {
    let rows = images.unflatten(1, (8, 8))?.transpose(0, 1)?.to_vec::<f32>()?;
    let shades: Vec<u8> = rows.iter().map(|pixel| b" .:-=+*#%@"[(pixel * 9.0) as usize]).collect();
    let lines = shades.chunks(8 * images.size(0)?).map(String::from_utf8_lossy);
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

fn main() -> Result<()> {
    let accelerator = Accelerator::new(&AcceleratorConfig::default().split_batches(true))?;
    let (generator, losses) = train(&accelerator, 5000)?;
    accelerator.print(format_args!("losses {:.3?}", losses.chunks(2).step_by(625).collect::<Vec<_>>()));

    generator.eval();
    let noise: Vec<f32> = (0..10 * N_LATENT).map(normal).collect();
    let noise = Tensor::from_slice(&noise, [10, N_LATENT], accelerator.device())?;
    accelerator.print(format_args!("{}", draw(&generator.forward(&noise)?)?));
    Ok(())
}
