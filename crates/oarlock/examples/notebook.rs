//! Ranks without a launcher: a training run function that runs in several of them, as from a notebook.
//!
//! `cargo run --example notebook -- [file for the configuration of accelerate launch]`

use std::path::PathBuf;

use oarlock::distributed::{self, NotebookLaunch};
use oarlock::{Accelerator, AcceleratorConfig, DevicePlacement, Result, Tensor, nn, optim};

fn main() -> Result<()> {
    let config =
        std::env::args_os().nth(1).map_or_else(|| PathBuf::from("out/default_config.yaml"), PathBuf::from);
    if let Some(file) = distributed::write_basic_config("fp16", Some(&config))? {
        println!("{} is written", file.display());
    }
    let launch = NotebookLaunch { num_processes: Some(2), ..NotebookLaunch::default() };
    distributed::notebook_launcher(training_function, &launch)?;
    // Accelerate's way to look for mistakes: never with mixed precision.
    distributed::debug_launcher(training_function, 2)
}

/// What each rank does: it finds its place by itself.
fn training_function() -> Result<()> {
    // This loop makes its tensors where they are wanted.
    let config =
        AcceleratorConfig { device_placement: DevicePlacement::ByHand, ..AcceleratorConfig::default() };
    let accelerator = Accelerator::new(&config)?;
    let model = nn::Linear::new(2, 1)?;
    let optimizer = optim::sgd(&model).lr(0.1);
    let (model, optimizer) = accelerator.prepare((model, optimizer))?;
    let first = accelerator.process_index() as f32;
    let x = Tensor::from_slice(&[first, 1.0, -first, 0.5], [2, 2], accelerator.device())?;
    let y = Tensor::from_slice(&[1.0, 0.0], [2, 1], accelerator.device())?;
    let mut losses = Vec::new();
    for _step in 0..10 {
        let loss = nn::mse_loss(&model.forward(&x)?, &y)?;
        accelerator.backward(&loss)?;
        optimizer.step()?;
        losses.push(loss.item::<f32>()?);
    }
    accelerator.print(format_args!(
        "{} ranks: loss {:.4} at first, {:.4} in the end",
        accelerator.num_processes(),
        losses[0],
        losses[9]
    ));
    Ok(())
}
