//! An image classifier on the engine alone, with a data set of its own: drawings of bars, crosses and frames, which a small
//! convolutional network learns to tell apart. It builds no tokenizer and no language model.
//!
//! `cargo run -p oarlock-engine --example image_classifier`, or on two ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/image_classifier`

use oarlock_engine::dataloader::{DataLoader, Dataset};
use oarlock_engine::nn::{self, Conv2d, Flatten, Linear, MaxPool2d, Relu, Sequential};
use oarlock_engine::{Accelerator, AcceleratorConfig, Prepared, Result, optim};

/// The width and height of an image.
const SIZE: usize = 8;
const KINDS: usize = 3;

/// So many drawings, each made when it is asked for: pixels between 0 and 1 with some noise, and the kind of drawing.
struct Drawings {
    first: usize,
    len: usize,
}

impl Dataset for Drawings {
    type Item = (Vec<f32>, i32);

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<(Vec<f32>, i32)> {
        let number = self.first + index;
        let kind = number % KINDS;
        // Where it is drawn, and how large.
        let (row, column, reach) = (2 + number / KINDS % 4, 2 + number / 12 % 4, 1 + number / 48 % 2);
        let is_drawn = |y: usize, x: usize| {
            let (dy, dx) = (y.abs_diff(row), x.abs_diff(column));
            match kind {
                0 => dy == 0 && dx <= reach,
                1 => dy == dx && dy <= reach,
                _ => dy.max(dx) == reach,
            }
        };
        let pixel = |at: usize| {
            let noise = (number * 31 + at * 17) % 23;
            f32::from(u8::from(is_drawn(at / SIZE, at % SIZE))) * 0.7 + noise as f32 / 100.0
        };
        Ok(((0..SIZE * SIZE).map(pixel).collect(), kind as i32))
    }
}

fn model() -> nn::Result<Sequential> {
    Ok(Sequential::new()
        .add(Conv2d::new(1, 8, 3)?.padding(1))
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Conv2d::new(8, 16, 3)?.padding(1))
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Flatten::default())
        .add(Linear::new(16 * 2 * 2, KINDS)?))
}

/// The share of drawings that the model has not seen and names right.
fn accuracy(accelerator: &Accelerator, model: &Prepared<Sequential>) -> Result<f64> {
    let held_out = accelerator.prepare(DataLoader::new(Drawings { first: 960, len: 192 }, 32))?;
    model.eval();
    let (mut right, mut total) = (0, 0);
    for batch in held_out.iter()? {
        let (images, kinds) = batch?;
        let guesses = model.forward(&images.reshape((-1, 1, SIZE, SIZE))?)?.argmax(-1)?;
        let (guesses, kinds) = accelerator.gather_for_metrics(&(guesses, kinds))?;
        right += guesses.eq(&kinds)?.sum_all()?.item::<i32>()?;
        total += kinds.size(0)?;
    }
    Ok(f64::from(right) / total as f64)
}

/// Trains for some epochs; the accuracy before and after.
pub fn train(accelerator: &Accelerator, epochs: usize) -> Result<[f64; 2]> {
    let loader = DataLoader::new(Drawings { first: 0, len: 960 }, 32).shuffle(true);
    let model = model()?;
    let optimizer = optim::adamw(&model).lr(1e-2);
    let (loader, model, optimizer) = accelerator.prepare((loader, model, optimizer))?;
    let before = accuracy(accelerator, &model)?;
    model.train();
    for _ in 0..epochs {
        for batch in loader.iter()? {
            let (images, kinds) = batch?;
            let logits = model.forward(&images.reshape((-1, 1, SIZE, SIZE))?)?;
            let loss = nn::cross_entropy(&logits, &kinds)?;
            accelerator.backward(&loss)?;
            optimizer.step()?;
        }
    }
    Ok([before, accuracy(accelerator, &model)?])
}

fn main() -> Result<()> {
    let accelerator = Accelerator::new(&AcceleratorConfig::default().split_batches(true))?;
    let [before, after] = train(&accelerator, 4)?;
    accelerator
        .print(format_args!("{before:.2} of the drawings are named right before training, {after:.2} after"));
    Ok(())
}
