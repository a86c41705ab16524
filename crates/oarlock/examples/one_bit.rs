//! A small network that learns to read digits with Adam and with the 1-bit optimizers: the losses, and what a rank sends in a
//! step. `bench/one_bit/run` puts the losses of DeepSpeed's own optimizers beside them.
//!
//! `cargo run --release -p oarlock --example one_bit [ranks=2 steps=300 freeze=60 weights=FILE json=1]`; the initial weights are
//! written to `weights`.

use std::collections::HashMap;
use std::path::Path;

use oarlock::nn::{self, Linear, Sequential, Tanh};
use oarlock::optim::{self, Optim, Rule};
use oarlock::{
    Accelerator, AcceleratorConfig, Error, Placements, ReduceOp, Result, SaveModel, ShardingConfig, Tensor,
    distributed,
};

const N_TRAIN: usize = 400;
/// Rows of a rank in a step.
const ROWS: usize = 20;
const OPTIMIZERS: [&str; 4] = ["adam", "onebit_adam", "zero_one_adam", "onebit_lamb"];

/// Of each step, the mean loss of the ranks and the bytes that a rank sent.
type Course = Vec<(f64, f64)>;

fn optimizer(name: &str, model: &Sequential, freeze: u64) -> Optim {
    let rate = 2e-3;
    match name {
        "onebit_adam" => optim::onebit_adam(model, freeze).lr(rate),
        "zero_one_adam" => {
            let kind = optim::OneBitKind::ZeroOneAdam {
                var_freeze_step: freeze,
                var_update_scaler: 16,
                local_step_scaler: 50,
                local_step_clipper: 4,
            };
            Optim::new(
                model,
                Rule::OneBit(optim::OneBit { beta1: 0.9, beta2: 0.999, eps: 1e-8, kind }),
                rate,
                0.0,
            )
        }
        "onebit_lamb" => optim::onebit_lamb(model, freeze).lr(0.02),
        _ => optim::adam(model).lr(rate),
    }
}

/// The images, as 64 pixels between 0 and 1, and their digits.
fn digits() -> Result<(Vec<f32>, Vec<i32>)> {
    let number = |text: &str| text.parse::<f32>().map_err(Error::other);
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for line in include_str!("data/digits.csv").lines().take(N_TRAIN) {
        let numbers = line.split(',').map(number).collect::<Result<Vec<_>>>()?;
        images.extend(numbers[1..].iter().map(|pixel| pixel / 16.0));
        labels.push(numbers[0] as i32);
    }
    Ok((images, labels))
}

fn train(n_ranks: usize, steps: usize, freeze: u64, name: &str, weights: &Path) -> Result<Course> {
    let is_first = name == OPTIMIZERS[0];
    let ranks = distributed::spawn(n_ranks, |rank| {
        let shard = ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() };
        let config = AcceleratorConfig { threads: Some(1), shard, ..AcceleratorConfig::default() };
        let accelerator = Accelerator::new(&config)?;
        let model = Sequential::new().add(Linear::new(64, 128)?).add(Tanh).add(Linear::new(128, 10)?);
        let optimizer = optimizer(name, &model, freeze);
        let (model, optimizer) = accelerator.prepare((model, optimizer))?;
        match is_first {
            true => accelerator.save_model(&model, weights, &SaveModel::default())?,
            false => accelerator.load_model(&model, weights)?,
        }
        let (images, labels) = digits()?;
        let sent = || -> f64 {
            accelerator.communicator().traffic().iter().map(|traffic| traffic.sent_bytes(n_ranks)).sum()
        };
        let mut course = Course::new();
        for step in 0..steps {
            let first = (step * n_ranks + rank) * ROWS % N_TRAIN;
            let rows = &images[first * 64..(first + ROWS) * 64];
            let x = Tensor::from_slice(rows, [ROWS, 64], accelerator.device())?;
            let labels = Tensor::from_slice(&labels[first..first + ROWS], [ROWS], accelerator.device())?;
            let before = sent();
            let loss = nn::cross_entropy(&model.forward(&x)?, &labels)?;
            accelerator.backward(&loss)?;
            optimizer.step()?;
            let bytes = sent() - before;
            course.push((accelerator.reduce(&loss, ReduceOp::Avg, 1.0)?.item::<f32>()?.into(), bytes));
        }
        Ok(course)
    })?;
    ranks.into_iter().next().ok_or_else(|| Error::Usage("ranks=0: give one at least".to_owned()))
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let settings: HashMap<&str, &str> = words.iter().filter_map(|word| word.split_once('=')).collect();
    let number = |key, default| match settings.get(key) {
        Some(value) => value.parse().map_err(Error::other),
        None => Ok(default),
    };
    let (n_ranks, steps, freeze) = (number("ranks", 2)?, number("steps", 300)?, number("freeze", 60)?);
    let folder = std::env::temp_dir().join(format!("one_bit_{}", std::process::id()));
    let weights = settings.get("weights").map_or(folder.as_path(), Path::new);
    let mut courses = Vec::new();
    for name in OPTIMIZERS {
        courses.push(train(n_ranks, steps, freeze as u64, name, weights)?);
    }
    if settings.contains_key("json") {
        let list = |course: &Course, value: fn(&(f64, f64)) -> f64| {
            course.iter().map(|step| value(step).to_string()).collect::<Vec<_>>().join(", ")
        };
        let of_each = |value: fn(&(f64, f64)) -> f64| {
            let named = OPTIMIZERS.iter().zip(&courses);
            named
                .map(|(name, course)| format!("\"{name}\": [{}]", list(course, value)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        println!("{{\"losses\": {{{}}}, \"sent\": {{{}}}}}", of_each(|step| step.0), of_each(|step| step.1));
        return Ok(());
    }
    println!("{n_ranks} ranks, freeze at step {freeze}; loss, and bytes that a rank sends in the step");
    println!("| step | {} |", OPTIMIZERS.join(" | "));
    println!("|---|{}", "---|".repeat(OPTIMIZERS.len()));
    let shown = (0..steps).filter(|step| *step == 0 || (step + 1).is_multiple_of((steps / 10).max(1)));
    for step in shown {
        let cells = courses.iter().map(|course| format!("{:.4}, {:.0}", course[step].0, course[step].1));
        println!("| {} | {} |", step + 1, cells.collect::<Vec<_>>().join(" | "));
    }
    Ok(())
}
