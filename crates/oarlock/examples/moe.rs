//! A mixture of experts: a router sends each image of a digit to two of eight experts, and a balancing loss keeps all of
//! them busy. [moe.py](moe.py) is the same program in PyTorch.
//!
//! `cargo run -p oarlock --example moe`, or on two ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/moe`

use oarlock::dataloader::DataLoader;
use oarlock::nn::{self, Forward, Linear, Mlp, Module};
use oarlock::{Accelerator, AcceleratorConfig, DType, Error, Prepared, ReduceOp, Result, Tensor, optim};

const DIM: usize = 32;
const N_EXPERTS: usize = 8;
const TOP_K: usize = 2;
/// What the balancing loss counts beside the other.
const BALANCE: f32 = 0.01;

/// Experts, of which a router selects `TOP_K` for each row.
#[derive(Module)]
struct MixtureOfExperts {
    router: Linear,
    experts: Vec<Mlp>,
}

/// Beside its output: the probabilities `[B, N_EXPERTS]`, and the share of each expert in the choices.
impl Forward<Tensor> for MixtureOfExperts {
    type Output = (Tensor, Tensor, Tensor);
    fn forward(&self, x: &Tensor) -> nn::Result<Self::Output> {
        let probs = self.router.forward(x)?.softmax(-1)?;
        let (gates, chosen) = probs.topk(TOP_K, -1, true)?;
        let gates = (&gates / gates.sum_keepdim(-1)?)?.flatten(0, -1)?;
        let (mut y, choices) = (x.zeros_like()?, chosen.flatten(0, -1)?);
        for (index, expert) in (0..).zip(&self.experts) {
            // Where the choices name this expert, and whose choices these are.
            let places = choices.eq(index)?.nonzero()?.squeeze(-1)?;
            let rows = places.floor_divide(TOP_K as i32)?;
            let gate = gates.index_select(0, &places)?.unsqueeze(-1)?;
            y = y.index_add(0, &rows, &(expert.forward(&x.index_select(0, &rows)?)? * gate)?)?;
        }
        Ok((y, probs, chosen.one_hot(N_EXPERTS)?.cast(DType::F32)?.mean([0, 1])?))
    }
}

/// A classifier with a mixture of experts beside a residual connection.
#[derive(Module)]
pub struct Classifier {
    stem: Linear,
    moe: MixtureOfExperts,
    head: Linear,
}

impl Forward<Tensor> for Classifier {
    type Output = (Tensor, Tensor, Tensor);
    fn forward(&self, images: &Tensor) -> nn::Result<Self::Output> {
        let x = self.stem.forward(images)?.relu()?;
        let (y, probs, share) = self.moe.forward(&x)?;
        Ok((self.head.forward(&(x + y)?)?, probs, share))
    }
}

/// The model with fresh weights.
pub fn model() -> nn::Result<Classifier> {
    let experts = (0..N_EXPERTS).map(|_| Mlp::new(DIM, 2 * DIM)).collect::<nn::Result<_>>()?;
    let moe = MixtureOfExperts { router: Linear::new(DIM, N_EXPERTS)?.no_bias(), experts };
    Ok(Classifier { stem: Linear::new(64, DIM)?, moe, head: Linear::new(DIM, 10)? })
}

/// The images, as 64 pixels between 0 and 1, with their digits.
fn digits() -> Result<Vec<(Vec<f32>, i32)>> {
    let number = |text: &str| text.parse::<f32>().map_err(Error::other);
    let row = |line: &str| {
        let numbers = line.split(',').map(number).collect::<Result<Vec<_>>>()?;
        Ok((numbers[1..].iter().map(|pixel| pixel / 16.0).collect(), numbers[0] as i32))
    };
    include_str!("data/digits.csv").lines().map(row).collect()
}

/// The trained model, and the loss of every step, the mean over the batch of all ranks.
pub fn train(accelerator: &Accelerator, steps: usize) -> Result<(Prepared<Classifier>, Vec<f64>)> {
    let loader = DataLoader::new(digits()?, 50).shuffle(true).drop_last(true);
    let model = model()?;
    let optimizer = optim::adamw(&model).lr(3e-3);
    let (loader, model, optimizer) = accelerator.prepare((loader, model, optimizer))?;

    let mut losses = Vec::new();
    while losses.len() < steps {
        for batch in loader.iter()?.take(steps - losses.len()) {
            let (images, digits) = batch?;
            let (logits, probs, share) = model.forward(&images)?;
            // The loss is linear in the probabilities: with the share of all ranks its mean is that of the batch.
            let share = accelerator.reduce(&share, ReduceOp::Avg, 1.0)?;
            let balance = (share * probs.mean(0)?)?.sum_all()?.scale(N_EXPERTS as f32)?;
            let loss = (nn::cross_entropy(&logits, &digits)? + (BALANCE * balance)?)?;
            accelerator.backward(&loss)?;
            optimizer.step()?;
            losses.push(accelerator.reduce(&loss, ReduceOp::Avg, 1.0)?.item()?);
        }
    }
    Ok((model, losses))
}

fn main() -> Result<()> {
    let accelerator = Accelerator::new(&AcceleratorConfig::default().split_batches(true))?;
    let (model, losses) = train(&accelerator, 300)?;
    accelerator.print(format_args!("losses {:.3?}", losses.iter().step_by(30).collect::<Vec<_>>()));

    model.eval();
    for digit in 0..10 {
        let images = digits()?.into_iter().filter(|(_, of)| *of == digit).flat_map(|(image, _)| image);
        let images = Tensor::from_slice(&images.collect::<Vec<_>>(), [50, 64], accelerator.device())?;
        let (logits, _, share) = model.forward(&images)?;
        let right = logits.argmax(-1)?.eq(digit)?.cast(DType::F32)?.mean(..)?.item::<f32>()?;
        accelerator.print(format_args!("{digit}: {:.0} % right, experts {share:.2}", 100.0 * right));
    }
    Ok(())
}
