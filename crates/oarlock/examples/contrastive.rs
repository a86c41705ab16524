//! Learns to recognize two views of one image, with the contrastive loss of CLIP over the batch of all ranks.
//! [contrastive.py](contrastive.py) is the same program in PyTorch.
//!
//! `cargo run -p oarlock --example contrastive`, or on two ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/contrastive`

use oarlock::dataloader::DataLoader;
use oarlock::nn::{self, Forward, Linear, Module, Param, Relu, Sequential};
use oarlock::{Accelerator, AcceleratorConfig, DType, Error, Prepared, ReduceOp, Result, Tensor, optim};

const BATCH_SIZE: usize = 50;
const N_TRAIN: usize = 400;

/// A network for both views, and a learned scale.
#[derive(Module)]
pub struct Encoder {
    net: Sequential,
    log_scale: Param,
}

/// Two views become two embeddings of length 1 and the scale of their logits.
impl Forward<(Tensor, Tensor)> for Encoder {
    type Output = (Tensor, Tensor, Tensor);
    fn forward(&self, (a, b): &(Tensor, Tensor)) -> nn::Result<Self::Output> {
        let embed = |view: &Tensor| {
            let x = self.net.forward(view)?;
            &x / x.norm_keepdim(2.0, -1)?
        };
        Ok((embed(a)?, embed(b)?, nn::parameter(&self.log_scale, a)?.exp()?))
    }
}

/// The model with fresh weights.
pub fn model() -> nn::Result<Encoder> {
    let net = Sequential::new().add(Linear::new(64, 128)?).add(Relu).add(Linear::new(128, 32)?);
    Ok(Encoder { net, log_scale: nn::param([1], nn::Init::Constant { value: 2.0 })? })
}

/// The images, as 64 pixels between 0 and 1.
fn digits() -> Result<Vec<Vec<f32>>> {
    let pixel = |number: &str| Ok(number.parse::<f32>().map_err(Error::other)? / 16.0);
    include_str!("data/digits.csv").lines().map(|line| line.split(',').skip(1).map(pixel).collect()).collect()
}

/// Two views of an image: moved one pixel up and dimmed, and moved one pixel to the right with a hole in it.
fn views(image: &[f32], n: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut a, mut b) = (image.to_vec(), image.to_vec());
    a.rotate_left(8);
    a.iter_mut().for_each(|pixel| *pixel *= 0.6);
    b.rotate_right(1);
    b[n % 7 * 8 + n % 5..][..10].fill(0.0);
    (a, b)
}

/// The trained model, and the loss of every step, the mean over the batch of all ranks.
pub fn train(accelerator: &Accelerator, steps: usize) -> Result<(Prepared<Encoder>, Vec<f64>)> {
    let digits = digits()?;
    let samples: Vec<_> = (0..steps * BATCH_SIZE).map(|n| views(&digits[n * 7 % N_TRAIN], n)).collect();
    let loader = DataLoader::new(samples, BATCH_SIZE);
    let model = model()?;
    let optimizer = optim::adamw(&model).lr(3e-3);
    let (loader, model, optimizer) = accelerator.prepare((loader, model, optimizer))?;

    let mut losses = Vec::new();
    for batch in loader.iter()? {
        let (a, b, scale) = model.forward(&batch?)?;
        // The embeddings of all ranks; gradients flow back to the rank that an embedding comes from.
        let (all_a, all_b) = (accelerator.gather_with_grad(&a)?, accelerator.gather_with_grad(&b)?);
        let rows = a.size(0)? as i32;
        let first = accelerator.process_index() as i32 * rows;
        let partners = Tensor::arange(first, first + rows, 1, DType::I32, a.device())?;
        let find_b = nn::cross_entropy(&(&scale * a.matmul(&all_b.t()?)?)?, &partners)?;
        let find_a = nn::cross_entropy(&(&scale * b.matmul(&all_a.t()?)?)?, &partners)?;
        let loss = ((find_a + find_b)? / 2.0)?;
        accelerator.backward(&loss)?;
        optimizer.step()?;
        losses.push(accelerator.reduce(&loss, ReduceOp::Avg, 1.0)?.item()?);
    }
    Ok((model, losses))
}

fn main() -> Result<()> {
    let accelerator = Accelerator::new(&AcceleratorConfig::default().split_batches(true))?;
    let (model, losses) = train(&accelerator, 300)?;
    accelerator.print(format_args!("losses {:.3?}", losses.iter().step_by(30).collect::<Vec<_>>()));

    model.eval();
    let held_out: Vec<_> = digits()?[N_TRAIN..].iter().zip(0..).map(|(image, n)| views(image, n)).collect();
    let total = held_out.len();
    let all = DataLoader::new(held_out, total).device(accelerator.device());
    for batch in all.iter()? {
        let (a, b, _) = model.forward(&batch?)?;
        let found = a.matmul(&b.t()?)?.argmax(-1)?.to_vec::<i32>()?;
        let right = found.iter().zip(0..).filter(|(found, own)| *found == own).count();
        accelerator
            .print(format_args!("{right} of {total} images that it has not seen find their other view"));
    }
    Ok(())
}
