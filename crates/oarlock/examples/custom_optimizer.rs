//! An optimizer with a rule of its own: AdaBelief (Zhuang et al. 2020), which takes large steps where gradients are as
//! expected. [custom_optimizer.py](custom_optimizer.py) is the same program in PyTorch.
//!
//! `cargo run -p oarlock --example custom_optimizer`, or on two ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/custom_optimizer`

#![allow(clippy::disallowed_methods, reason = "an example needs no other crate")]

use oarlock::dataloader::DataLoader;
use oarlock::nn::{self, Linear, Relu, Sequential};
use oarlock::optim::{self, CustomRule, Update};
use oarlock::{Accelerator, AcceleratorConfig, Error, Prepared, ReduceOp, Result, Tensor, lr_scheduler};

const BATCH_SIZE: usize = 50;

/// AdaBelief with decoupled weight decay: the second state is the variance of gradients around their average.
#[derive(Clone, Debug)]
struct AdaBelief {
    betas: [f64; 2],
    eps: f64,
}

impl CustomRule<2> for AdaBelief {
    fn name(&self) -> &'static str {
        "adabelief"
    }

    fn states(&self) -> [&'static str; 2] {
        ["exp_avg", "exp_avg_var"]
    }

    fn update(&self, update: Update<'_, 2>) {
        let Update { weights, grad, states: [exp_avg, exp_avg_var], step, lr, weight_decay, .. } = update;
        let [beta1, beta2] = self.betas.map(|beta| beta as f32);
        let [correction1, correction2] = self.betas.map(|beta| (1.0 - beta.powf(step as f64)) as f32);
        let (eps, lr, decay) = (self.eps as f32, lr as f32, (lr * weight_decay) as f32);
        for (((w, m), s), g) in weights.iter_mut().zip(exp_avg).zip(exp_avg_var).zip(grad) {
            *m = beta1 * *m + (1.0 - beta1) * g;
            *s = beta2 * *s + (1.0 - beta2) * (g - *m).powi(2) + eps;
            *w -= decay * *w;
            *w -= lr * (*m / correction1) / ((*s / correction2).sqrt() + eps);
        }
    }
}

/// The model with fresh weights.
pub fn model() -> nn::Result<Sequential> {
    Ok(Sequential::new().add(Linear::new(64, 32)?).add(Relu).add(Linear::new(32, 10)?))
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
pub fn train(accelerator: &Accelerator, steps: usize) -> Result<(Prepared<Sequential>, Vec<f64>)> {
    let loader = DataLoader::new(digits()?, BATCH_SIZE).shuffle(true).drop_last(true);
    let model = model()?;
    let rule = AdaBelief { betas: [0.9, 0.999], eps: 1e-8 };
    let optimizer = optim::custom(&model, rule).lr(1e-2).weight_decay(0.1).no_decay_of_vectors(&model);
    let scheduler = lr_scheduler::cosine(&optimizer, 0, steps as u64);
    let (loader, model, optimizer, scheduler) = accelerator.prepare((loader, model, optimizer, scheduler))?;

    let mut losses = Vec::new();
    while losses.len() < steps {
        for batch in loader.iter()?.take(steps - losses.len()) {
            let (images, digits) = batch?;
            let loss = nn::cross_entropy(&model.forward(&images)?, &digits)?;
            accelerator.backward(&loss)?;
            accelerator.clip_grad_norm(&optimizer, 1.0)?;
            optimizer.step()?;
            scheduler.step();
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
    let (images, digits): (Vec<_>, Vec<_>) = digits()?.into_iter().unzip();
    let images = Tensor::from_slice(&images.concat(), [images.len(), 64], accelerator.device())?;
    let said = model.forward(&images)?.argmax(-1)?.to_vec::<i32>()?;
    let right = said.iter().zip(&digits).filter(|(said, digit)| said == digit).count();
    accelerator.print(format_args!("{right} of {} digits are read right", digits.len()));
    Ok(())
}
