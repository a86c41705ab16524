//! What a run says of itself at its beginning.

use std::path::Path;
use std::time::{Duration, Instant};

use oarlock_config::config::{Finetuning, TrainConfig};
use oarlock_engine::parallel::pipeline::Pipeline;
use oarlock_engine::{Accelerator, Result};
use oarlock_tensor::ops::update;
use oarlock_tensor::{Device, GpuInfo};

use super::state::Run;
use crate::train::journal::Journal;

impl Run<'_> {
    /// The time since the command began, in running_log.txt.
    pub(super) fn note_startup(&mut self, what: &str) -> Result<()> {
        let time = self.started.elapsed().unwrap_or(Duration::ZERO);
        match &mut self.journal {
            Some(journal) => journal.note(&format!("startup: {what} after {:.3} s", time.as_secs_f64())),
            None => Ok(()),
        }
    }

    /// What the first step has found out about a GPU.
    pub(super) fn note_products(&mut self) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let Some(info) = self.accelerator.device().gpu_info()? else { return Ok(()) };
        for (what, lacks) in [("matrix products", info.without_algorithm), ("attention", info.without_plan)] {
            if let Some(lacks) = lacks {
                journal.message(&format!("GPU: {what} of {lacks}"))?;
            }
        }
        Ok(())
    }

    /// What the cores of all ranks can do at the same time, for the utilization. One measurement on a machine with other
    /// work, or on a core that has just left its sleep, is too low; the highest of several counts.
    pub(super) fn measure_peak(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.accelerator.wait_for_everyone()?;
        let mut peak = [update::peak_flops(self.accelerator.device(), self.accelerator.dtype())];
        self.accelerator.reduce_sum(&mut peak)?;
        let (device, dtype) = (self.accelerator.device().is_cuda(), self.accelerator.dtype());
        if let Some(journal) = &mut self.journal {
            journal.raise_peak_flops(peak[0]);
            journal.paused(begin.elapsed());
            if device {
                let (n, peak) = (self.accelerator.num_processes(), peak[0] / 1e12);
                journal.note(&format!(
                    "MFU is the share of {peak:.3} TFLOP/s, what products in {dtype} reached on {n} rank(s)"
                ))?;
            }
        }
        Ok(())
    }
}

/// How a model is divided into stages.
pub(super) fn stages_line(pipeline: &Pipeline) -> String {
    let stages = pipeline.n_stages();
    let units = |stage: usize| {
        let parts = pipeline.parts().iter().skip(stage).step_by(stages);
        parts.map(|units| format!("{}..{}", units.start, units.end)).collect::<Vec<_>>().join(" and ")
    };
    let warnings: Vec<String> = (0..stages).map(units).collect();
    let schedule = if pipeline.n_chunks() > 1 { "interleaved" } else { "1F1B" };
    format!("pipeline of {stages} stages, {schedule}; units of each: {}", warnings.join(", "))
}

/// What is reported before the first step.
pub(super) fn introduce(
    journal: &mut Journal,
    config: &TrainConfig,
    accelerator: &Accelerator,
    ((n_trained, n_params), n_rows, row_len): ((usize, usize), u64, usize),
    total_steps: u64,
    resumed: Option<&Path>,
) -> Result<()> {
    config.description.notes.iter().try_for_each(|note| journal.message(note))?;
    if let Some(dir) = resumed {
        journal.message(&format!("Resuming training from {}.", dir.display()))?;
    }
    let trains = config.train.enabled;
    if !trains {
        journal.message(&format!("all params: {}", grouped(n_params)))?;
    } else if config.train.finetuning != Finetuning::Full {
        journal.message(&format!("Fine-tuning method: {}", config.train.finetuning.name()))?;
        journal.message(&format!(
            "trainable params: {} || all params: {} || trainable%: {:.4}",
            grouped(n_trained),
            grouped(n_params),
            100.0 * n_trained as f64 / n_params as f64
        ))?;
    }
    let per_step = accelerator
        .data_ranks()
        .world_size()
        .saturating_mul(config.train.batch_size)
        .saturating_mul(config.train.accumulation);
    let step = match per_step as u64 > n_rows {
        true => format!("all {n_rows} rows, fewer than the {per_step} that a step may have"),
        false => format!("{per_step} rows"),
    };
    let steps = match trains {
        true => format!("{total_steps} steps of {step}"),
        false => "nothing is trained".to_owned(),
    };
    let up_to = if config.data.packing.is_unpadded() { "up to " } else { "" };
    let by = match accelerator.device().is_cuda() && accelerator.num_processes() > 1 {
        true => format!(", collectives by {}", accelerator.communicator().describe()),
        false => String::new(),
    };
    journal.message(&format!(
        "{:.2} M parameters in {}; {} rank(s) of {}{by}; {n_rows} rows of {up_to}{row_len} tokens; {steps}",
        n_params as f64 / 1e6,
        accelerator.dtype(),
        accelerator.num_processes(),
        accelerator.device().describe(),
    ))?;
    gpu_lines(accelerator)?.iter().try_for_each(|line| journal.message(line))
}

/// What runs a training run on GPUs, and how far that is to be trusted; nothing of one on the CPU.
fn gpu_lines(accelerator: &Accelerator) -> Result<Vec<String>> {
    let Some(info) = accelerator.device().gpu_info()? else { return Ok(Vec::new()) };
    let kernels = match &info.nvrtc {
        Some(version) => format!("kernels by NVRTC {version}"),
        None => "kernels from the cache on disk".to_owned(),
    };
    let machines = accelerator.communicator().machines();
    let here = machines.iter().filter(|machine| machines.first() == Some(*machine)).count();
    let gpus = Device::cuda_indices()?.len();
    let shared = (here > gpus).then(|| format!("{here} ranks of this machine share {gpus} GPU(s)"));
    let products = &info.products;
    let trust = GpuInfo::TRUST;
    let line =
        format!("GPU: {kernels}, matrix products by {products}; {trust} (device=cpu trains on the CPU)");
    Ok(std::iter::once(line).chain(shared).collect())
}

/// A number with a comma after every third digit from the right.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
