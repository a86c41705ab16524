//! What a run would take of memory, without starting it.

use oarlock_comm::ProcessMemory;
use oarlock_config::config::{LogArgs, TrainConfig};
use oarlock_engine::Result;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par};

use super::model::{Start, settings};
use super::objective::{self, ObjectiveContext, dry_pass};
use crate::estimate::{Forecast, GpuMemory, Known, USUAL_GPU_BYTES};
use crate::model::Decoder;

/// The memory that a configuration would take, as a line of the log says it. Nothing is loaded but settings and adapters.
///
/// # Errors
/// What is wrong with the model or its adapters, or sizes that are impossible.
pub fn forecast(config: &TrainConfig) -> Result<String> {
    let objective = objective::of(&config.train, ObjectiveContext::default());
    let hf = settings(&config.model)?;
    let start = Start::new(config, &hf)?;
    let mut model = start.decoder(config, &hf)?;
    model.set_recompute(config.train.recompute);
    let device = Device::dry(Isa::detect(), Par::threads(config.ranks.threads.unwrap_or(1))?);
    let second = start.second(config, &hf, &device)?;
    let second = second.as_ref().map(|(second, _)| second);
    // Whether it would fit is for the run itself to say.
    let config = TrainConfig { log: LogArgs { memory_check: false, ..config.log }, ..config.clone() };
    let rebuild = || start.decoder(&config, &hf);
    let models = (&model, &rebuild as &dyn Fn() -> Result<Decoder>, second);
    let measured = ProcessMemory::current().map_or(0, |own| own.pss);
    let ranks = config.ranks.num_processes;
    let gpus = config.ranks.device.is_gpu().then(|| Device::cuda_indices().unwrap_or_default());
    let gpu = gpus.as_ref().map(|seen| GpuMemory::unknown(ranks.div_ceil(seen.len().max(1))));
    let device = match &gpus {
        Some(seen) => {
            let asked = seen.first().and_then(|&index| Device::cuda_memory_bytes(index).ok());
            device.as_dry_gpu(asked.unwrap_or(USUAL_GPU_BYTES))
        }
        None => device,
    };
    // With a GPU for each rank they use NCCL.
    let apart = gpu.filter(|gpu| gpu.ranks == 1 && ranks > 1).map(|_| ranks);
    let known = Known { device: &device, apart, measured, longest: None, gpus: gpu.as_slice() };
    let mut line = Forecast::new(&config, models, known, &dry_pass(&*objective))?.line();
    if config.data.packing.is_unpadded() {
        let len = config.data.cutoff_len;
        line.push_str(&format!(
            "\nevery conversation counts with cutoff_len {len} tokens here; the run counts with those that come"
        ));
    }
    Ok(line)
}
