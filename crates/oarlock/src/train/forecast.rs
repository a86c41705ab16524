//! What a run would take of memory, without starting it.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par};

use super::model::{Start, settings};
use super::objective::{Pretrain, dry_pass};
use crate::config::{LogArgs, TrainConfig};
use crate::error::Result;
use crate::estimate::Forecast;

/// The memory that a configuration would take, as a line of the log says it. Nothing is loaded but settings and adapters.
///
/// # Errors
/// What is wrong with the model or its adapters, or sizes that are impossible.
pub fn forecast(config: &TrainConfig) -> Result<String> {
    let hf = settings(&config.model)?;
    let start = Start::new(config, &hf)?;
    let mut model = start.decoder(config, &hf)?;
    model.set_recompute(config.train.recompute);
    let device = Device::dry(Isa::detect(), Par::threads(config.ranks.threads.unwrap_or(1))?);
    // Whether it would fit is for the run itself to say.
    let config = TrainConfig { log: LogArgs { memory_check: false, ..config.log }, ..config.clone() };
    let rebuild = || start.decoder(&config, &hf);
    let pass = dry_pass(&Pretrain);
    Ok(Forecast::new(&config, (&model, &rebuild), &config.shard.wrap, &device, &pass, None)?.line())
}
