//! A convolutional network that learns to read digits of 8 by 8 pixels. [cnn_digits.py](cnn_digits.py) is the same
//! program in PyTorch.
//!
//! `cargo run -p oarlock --example cnn_digits`, or on two ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/cnn_digits`

use oarlock::dataloader::DataLoader;
use oarlock::nn::{self, Conv2d, Flatten, Linear, MaxPool2d, Relu, Sequential};
use oarlock::{Accelerator, AcceleratorConfig, Error, Prepared, ReduceOp, Result, optim};

const BATCH_SIZE: usize = 50;
const N_TRAIN: usize = 400;

/// Two convolutions and a linear layer.
pub fn model() -> nn::Result<Sequential> {
    Ok(Sequential::new()
        .add(Conv2d::new(1, 16, 3)?.padding(1))
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Conv2d::new(16, 32, 3)?.padding(1))
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Flatten::default())
        .add(Linear::new(32 * 2 * 2, 10)?))
}

/// The images, as 64 pixels between 0 and 1, and their digits.
fn digits() -> Result<Vec<(Vec<f32>, i32)>> {
    let number = |text: &str| text.parse::<f32>().map_err(Error::other);
    let row = |line: &str| {
        let numbers = line.split(',').map(number).collect::<Result<Vec<_>>>()?;
        Ok((numbers[1..].iter().map(|pixel| pixel / 16.0).collect(), numbers[0] as i32))
    };
    include_str!("data/digits.csv").lines().map(row).collect()
}

/// The trained model, and the loss of every step, the mean over the batch of all ranks.
pub fn train(accelerator: &Accelerator, steps: usize) -> Result<(Prepared<Sequential>, Vec<f64>)> {
    let loader = DataLoader::new(digits()?[..N_TRAIN].to_vec(), BATCH_SIZE).shuffle(true);
    let model = model()?;
    let optimizer = optim::adamw(&model).lr(3e-3);
    let (loader, model, optimizer) = accelerator.prepare((loader, model, optimizer))?;

    let mut losses = Vec::new();
    while losses.len() < steps {
        for batch in loader.iter()?.take(steps - losses.len()) {
            let (images, labels) = batch?;
            let logits = model.forward(&images.reshape((-1, 1, 8, 8))?)?;
            let loss = nn::cross_entropy(&logits, &labels)?;
            accelerator.backward(&loss)?;
            optimizer.step()?;
            losses.push(accelerator.reduce(&loss, ReduceOp::Avg, 1.0)?.item()?);
        }
    }
    Ok((model, losses))
}

fn main() -> Result<()> {
    let accelerator = Accelerator::new(&AcceleratorConfig::default().split_batches(true))?;
    let (model, losses) = train(&accelerator, 200)?;
    accelerator.print(format_args!("losses {:.3?}", losses.iter().step_by(25).collect::<Vec<_>>()));

    let held_out = accelerator.prepare(DataLoader::new(digits()?[N_TRAIN..].to_vec(), BATCH_SIZE))?;
    model.eval();
    let (mut right, mut total) = (0, 0);
    for batch in held_out.iter()? {
        let (images, labels) = batch?;
        let guesses = model.forward(&images.reshape((-1, 1, 8, 8))?)?.argmax(-1)?;
        let (guesses, labels) = accelerator.gather_for_metrics(&(guesses, labels))?;
        right += guesses.eq(&labels)?.sum_all()?.item::<i32>()?;
        total += labels.size(0)?;
    }
    accelerator.print(format_args!("{right} of {total} digits that it has not seen are read right"));
    Ok(())
}
