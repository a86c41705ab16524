//! Data parallel training in its shortest form: one forward pass, one backward pass, one step, in two ranks.
//!
//! `cargo run --example ddp_minimal`

use std::path::Path;

use oarlock::distributed::{self, Backend, DistributedDataParallel as DDP, InitOptions, ReduceOp};
use oarlock::{Device, Result, Tensor, nn, optim};

/// The rows of all ranks together.
const ROWS: usize = 40;

/// Starts the ranks.
pub fn main() -> Result<()> {
    let world_size = 2;
    distributed::spawn(world_size, |rank| {
        example(rank, world_size, None)?;
        println!("Rank {rank}: Successfully completed training");
        Ok(())
    })?;
    println!("Finished");
    Ok(())
}

/// What each rank does; the losses over the rows of all ranks before and after the step. Where `weights` names a file the
/// model begins with those.
pub fn example(rank: usize, world_size: usize, weights: Option<&Path>) -> Result<[f32; 2]> {
    let options = InitOptions { rank: Some(rank), world_size: Some(world_size), ..InitOptions::default() };
    let group = distributed::init_process_group(Backend::Gloo, &options)?;

    let model = nn::Linear::new(10, 10)?;
    let optimizer = optim::sgd(&model).lr(0.001);
    let ddp_model = DDP::new(model, optimizer, &group)?;
    if let Some(weights) = weights {
        ddp_model.accelerator().load_model(&ddp_model, weights)?;
    }

    let (x, labels) = batch(rank, world_size, ddp_model.device())?;
    let loss = nn::mse_loss(&ddp_model.forward(&x)?, &labels)?;
    ddp_model.backward(&loss)?;
    ddp_model.step()?;

    ddp_model.eval();
    let after = nn::mse_loss(&ddp_model.forward(&x)?, &labels)?;
    let mut losses =
        Tensor::from_slice(&[loss.item::<f32>()?, after.item::<f32>()?], [2], ddp_model.device())?;
    distributed::all_reduce(&mut losses, ReduceOp::Avg)?;
    distributed::destroy_process_group()?;
    let losses = losses.to_vec::<f32>()?;
    Ok([losses[0], losses[1]])
}

/// This rank's rows and their labels.
fn batch(rank: usize, world_size: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let rows = ROWS / world_size;
    let numbers = |shift: usize| {
        let first = rank * rows * 10;
        let values: Vec<f32> =
            (first..first + rows * 10).map(|i| ((i * 37 + shift) % 101) as f32 / 50.0 - 1.0).collect();
        Tensor::from_slice(&values, [rows, 10], device)
    };
    Ok((numbers(0)?, numbers(13)?))
}
