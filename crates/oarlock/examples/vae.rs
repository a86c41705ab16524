//! A variational autoencoder that squeezes digits of 64 pixels through 8 numbers. [vae.py](vae.py) is the same program in
//! PyTorch.
//!
//! `cargo run -p oarlock --example vae`, or on two ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/vae`

#![allow(clippy::disallowed_methods, reason = "an example needs no other crate")]

use oarlock::dataloader::DataLoader;
use oarlock::nn::{self, BCEWithLogitsLoss, Forward, Linear, Module, Relu, Sequential};
use oarlock::{Accelerator, AcceleratorConfig, Error, Prepared, ReduceOp, Result, Tensor, optim};

const BATCH_SIZE: usize = 50;
const N_LATENT: usize = 8;

/// An encoder to the mean and the variance of 8 numbers, and a decoder.
#[derive(Module)]
pub struct Vae {
    encoder: Linear,
    mean: Linear,
    log_var: Linear,
    decoder: Sequential,
}

/// The images and standard normal noise become the logits of the images again, the mean and the logarithm of the variance.
impl Forward<(Tensor, Tensor)> for Vae {
    type Output = (Tensor, Tensor, Tensor);
    fn forward(&self, (images, noise): &(Tensor, Tensor)) -> nn::Result<Self::Output> {
        let hidden = self.encoder.forward(images)?.relu()?;
        let (mean, log_var) = (self.mean.forward(&hidden)?, self.log_var.forward(&hidden)?);
        let latent = (&mean + noise * (0.5 * &log_var)?.exp()?)?;
        Ok((self.decoder.forward(&latent)?, mean, log_var))
    }
}

/// The model with fresh weights.
pub fn model() -> nn::Result<Vae> {
    Ok(Vae {
        encoder: Linear::new(64, 128)?,
        mean: Linear::new(128, N_LATENT)?,
        log_var: Linear::new(128, N_LATENT)?,
        decoder: Sequential::new().add(Linear::new(N_LATENT, 128)?).add(Relu).add(Linear::new(128, 64)?),
    })
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

/// The trained model, and the loss of every step, the mean over the batch of all ranks.
pub fn train(accelerator: &Accelerator, steps: usize) -> Result<(Prepared<Vae>, Vec<f64>)> {
    let digits = digits()?;
    let noise = |i: usize| (i * N_LATENT..(i + 1) * N_LATENT).map(normal).collect::<Vec<f32>>();
    let samples: Vec<_> =
        (0..steps * BATCH_SIZE).map(|i| (digits[i % digits.len()].clone(), noise(i))).collect();
    let loader = DataLoader::new(samples, BATCH_SIZE);
    let model = model()?;
    let optimizer = optim::adam(&model).lr(3e-3);
    let (loader, model, optimizer) = accelerator.prepare((loader, model, optimizer))?;

    let reconstruction = BCEWithLogitsLoss { reduction: nn::Reduction::Sum, ..Default::default() };
    let mut losses = Vec::new();
    for batch in loader.iter()? {
        let (images, noise) = batch?;
        let (logits, mean, log_var) = model.forward(&(images.clone(), noise))?;
        let divergence = 0.5 * ((mean.square()? + log_var.exp()? - log_var)? - 1.0)?.sum_all()?;
        let loss = ((reconstruction.forward(&logits, &images)? + divergence?)? / images.size(0)? as f32)?;
        accelerator.backward(&loss)?;
        optimizer.step()?;
        losses.push(accelerator.reduce(&loss, ReduceOp::Avg, 1.0)?.item()?);
    }
    Ok((model, losses))
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
    let (model, losses) = train(&accelerator, 1000)?;
    accelerator.print(format_args!("losses {:.3?}", losses.iter().step_by(125).collect::<Vec<_>>()));

    model.eval();
    let images = Tensor::from_slice(&digits()?[..10].concat(), [10, 64], accelerator.device())?;
    let noise = Tensor::zeros([10, N_LATENT], images.dtype(), images.device())?;
    let (again, ..) = model.forward(&(images.clone(), noise))?;
    accelerator.print(format_args!("{}\nbecome\n{}", draw(&images)?, draw(&again.sigmoid()?)?));
    Ok(())
}
