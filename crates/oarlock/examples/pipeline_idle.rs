//! The idle share of the stages of a pipeline: measured, and as the schedule predicts it.
//!
//! ```sh
//! cargo run --release -p oarlock --example pipeline_idle [STAGES [STEPS]]
//! ```
//!
//! The stages are threads of this program, each with one thread of computation: use no more than the machine has cores. A
//! step with M micro-batches takes a + c M: c is what a micro-batch takes in the steady state, and a what filling and
//! draining takes. The idle share is a / (a + c M); the schedule says (S - 1) / (V M + S - 1).

use std::time::Instant;

use oarlock::deepspeed::{self, Config, InitializeArgs, LayerSpec, PipelineModule};
use oarlock::nn::{self, Linear, Tanh};
use oarlock::{Accelerator, AcceleratorConfig, Result, Tensor, distributed};

const WIDTH: usize = 512;
const ROWS: usize = 256;
const MICRO_BATCHES: [usize; 4] = [4, 8, 16, 32];

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).filter_map(|word| word.parse().ok());
    let (stages, steps) = (args.next().unwrap_or(2), args.next().unwrap_or(12));
    println!("{stages} stages, {} layers of {WIDTH} x {WIDTH}, {ROWS} rows a micro-batch", 4 * stages);
    println!("| parts a stage | micro-batches | step (ms) | idle, measured | idle, predicted |");
    println!("|---|---|---|---|---|");
    for parts in [1, 2] {
        let mut times = Vec::new();
        for n_micro in MICRO_BATCHES {
            times.push((n_micro as f64, step_time(stages, parts, n_micro, steps)?));
        }
        // Least squares.
        let n = times.len() as f64;
        let (mean_m, mean_t) =
            (times.iter().map(|(m, _)| m).sum::<f64>() / n, times.iter().map(|(_, t)| t).sum::<f64>() / n);
        let slope = times.iter().map(|(m, t)| (m - mean_m) * (t - mean_t)).sum::<f64>()
            / times.iter().map(|(m, _)| (m - mean_m).powi(2)).sum::<f64>();
        let begin = mean_t - slope * mean_m;
        for (m, time) in times {
            let predicted = (stages - 1) as f64 / (parts as f64 * m + (stages - 1) as f64);
            let measured = begin / (begin + slope * m);
            println!(
                "| {parts} | {m} | {:.1} | {:.1} % | {:.1} % |",
                1e3 * time,
                100.0 * measured,
                100.0 * predicted
            );
        }
    }
    Ok(())
}

/// Seconds of a step: the median over `steps` of them.
fn step_time(stages: usize, parts: usize, n_micro: usize, steps: usize) -> Result<f64> {
    let ranks = distributed::spawn(stages, |_rank| {
        let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
        let accelerator = Accelerator::new(&config)?;
        let layer = || [LayerSpec::new(|| Linear::new(WIDTH, WIDTH)), LayerSpec::new(|| Ok(Tanh))];
        let layers = (0..4 * stages).flat_map(|_| layer()).collect();
        let net = PipelineModule::new(layers, nn::mse_loss)?.num_stages(stages).num_virtual_stages(parts);
        let text = format!(
            r#"{{ "train_micro_batch_size_per_gpu": {ROWS}, "gradient_accumulation_steps": {n_micro},
                "optimizer": {{ "type": "SGD", "params": {{ "lr": 0.01 }} }} }}"#
        );
        let args = InitializeArgs::new(net, Config::from_text("ds.json", &text)?);
        let args = InitializeArgs { accelerator: Some(accelerator), ..args };
        let (engine, ()) = deepspeed::initialize_pipeline(args)?;
        let values: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i % 23) as f32 / 23.0 - 0.5).collect();
        let x = Tensor::from_slice(&values, [ROWS, WIDTH], engine.device())?;
        let mut data = std::iter::repeat((x.clone(), x)).map(Ok);
        let mut times = Vec::new();
        for _step in 0..steps + 2 {
            let begin = Instant::now();
            engine.train_batch(&mut data)?;
            times.push(begin.elapsed().as_secs_f64());
        }
        // The first steps make buffers.
        times.drain(..2);
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    })?;
    Ok(ranks.into_iter().max_by(f64::total_cmp).unwrap_or(0.0))
}
