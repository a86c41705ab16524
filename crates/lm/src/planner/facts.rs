//! What is known of a training run before it is measured: sizes of units, memory of micro-batches, the steps to do.

use oarlock_config::config::{
    Finetuning, Length, ObjectiveArgs, Offload, PartitionMethod, Recompute, TrainConfig,
};
use oarlock_engine::parallel::pipeline::{UnitWeight, unit_weights};
use oarlock_engine::{Error, Result};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, DeviceKind, Par};

use crate::estimate::{
    DryRun, ModelSize, Settings, Stage, StepShape, decoder_step, program_bytes, settings_of,
};
use crate::model::Decoder;
use crate::model::hf::HfConfig;
use crate::train::model::{Start, settings};
use crate::train::objective::{self, ObjectiveContext, dry_pass};

use super::choice::Choice;

/// What is known of a training run.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The sizes of the model's units.
    pub size: ModelSize,
    /// How its state is kept, as far as that is not a choice.
    pub settings: Settings,
    /// What the configuration itself chooses.
    pub written: Choice,
    /// Sequences of a step, of all ranks together.
    pub global_batch: usize,
    /// Tokens of a sequence.
    pub len: usize,
    /// Width of what goes from a stage of a pipeline to the next.
    pub hidden_size: usize,
    /// Optimizer steps of the run, where they are known without its data.
    pub steps: Option<u64>,
    /// Ranks that the configuration starts.
    pub ranks: usize,
    /// Elements of a reduction.
    pub bucket_elems: usize,
    /// How a pipeline is divided.
    pub partition: PartitionMethod,
    pub(super) unit_weights: Vec<UnitWeight>,
    pub(super) micro_batches: Vec<MicroBatch>,
}

/// The memory of a micro-batch.
#[derive(Clone, Debug)]
pub(super) struct MicroBatch {
    pub batch: usize,
    pub recompute: bool,
    pub run: DryRun,
    /// Bytes of the program beside it.
    pub program: u64,
}

impl Facts {
    /// Of a configuration and micro-batches of these numbers of sequences. `program` is the memory of this process before
    /// anything large is loaded.
    ///
    /// # Errors
    /// What is wrong with the model, and a training run that the planner does not know.
    pub fn of(config: &TrainConfig, batches: &[usize], program: u64) -> Result<Facts> {
        check(config)?;
        let hf = settings(&config.model)?;
        let dtype = config.train.dtype;
        let hidden_size = hf.decoder().hidden_size;
        let device = Device::dry(Isa::detect(), Par::threads(config.ranks.threads.unwrap_or(1))?);
        let objective = objective::of(&config.train, ObjectiveContext::default());
        let mut micro_batches = Vec::new();
        for recompute in [false, true] {
            let model = decoder(config, &hf, recompute)?;
            for &batch in batches {
                let shape = shape(config, batch);
                let run = decoder_step(&model, dtype, &device, shape, &dry_pass(&*objective))?;
                let program = program_bytes(program, &model, shape, 1, config.ranks.num_processes);
                micro_batches.push(MicroBatch { batch, recompute, run, program });
            }
        }
        let model = decoder(config, &hf, false)?;
        let (shard, ranks, settings) = (&config.shard, &config.ranks, settings_of(config, hidden_size, None));
        let stages = ranks.pipeline.stages.max(1);
        Ok(Facts {
            size: ModelSize::wrapped(&model, dtype, &shard.wrap),
            written: Choice {
                stage: settings.stage,
                by_machine: shard.group.is_none() && shard.by_machine && settings.stage >= Stage::Gradients,
                stages,
                recompute: config.train.recompute != Recompute::None,
                batch: config.train.batch_size,
                accumulation: config.train.accumulation,
            },
            settings,
            global_batch: config.train.batch_size
                * config.train.accumulation
                * (ranks.num_processes / stages).max(1),
            len: config.data.cutoff_len,
            hidden_size,
            steps: match config.train.length {
                Length::Steps(steps) => Some(steps),
                Length::Epochs(_) => None,
            },
            ranks: ranks.num_processes,
            bucket_elems: shard.reduce_bucket_elems.of(hidden_size),
            partition: ranks.pipeline.partition.clone(),
            unit_weights: unit_weights(&model)?,
            micro_batches,
        })
    }

    pub(super) fn micro_batch(&self, batch: usize, recompute: bool) -> Option<&MicroBatch> {
        self.micro_batches.iter().find(|one| (one.batch, one.recompute) == (batch, recompute))
    }
}

/// Refuses what the planner has no model of.
fn check(config: &TrainConfig) -> Result<()> {
    let adapters = matches!(&config.train.finetuning, Finetuning::Adapter(args) if !args.adapters.is_empty());
    let offloaded = [&config.shard.offload_optimizer, &config.shard.offload_params];
    let unknown = [
        // What takes a GPU by itself is planned for the CPU.
        (matches!(config.ranks.device, DeviceKind::Cuda(_)), "a training run on GPUs (`device: cuda`)"),
        (
            config.train.objective != ObjectiveArgs::NextToken,
            "a training run on pairs, unpaired preferences or its own answers",
        ),
        (matches!(config.train.finetuning, Finetuning::Freeze(_)), "`finetuning_type: freeze`"),
        (config.model.quantization.is_some(), "quantized weights"),
        (adapters, "a training run that continues an adapter"),
        (config.shard.quantized.any(), "quantized communication (`zero_quantized_weights` and the like)"),
        (config.ranks.sequence_parallel > 1, "`sequence_parallel_size`"),
        // The CPU has in main memory what a GPU would offload to it.
        (offloaded.into_iter().flatten().any(Offload::is_in_files), "offloading"),
        (config.ranks.pipeline.virtual_stages > 1, "virtual stages of a pipeline"),
    ];
    match unknown.into_iter().find(|(is_so, _)| *is_so) {
        Some((_, what)) => Err(Error::Usage(format!(
            "plan: {what} is not predicted yet; leave it out on the command line (key=value) to see the rest"
        ))),
        None => Ok(()),
    }
}

/// The model of a configuration.
pub(super) fn decoder(config: &TrainConfig, hf: &HfConfig, recompute: bool) -> Result<Decoder> {
    let mut model = Start::new(config, hf)?.decoder(config, hf)?;
    let every = match config.train.recompute {
        Recompute::None => Recompute::Units { every: 1 },
        written => written,
    };
    model.set_recompute(if recompute { every } else { Recompute::None });
    Ok(model)
}

/// The shape of micro-batches of so many sequences, each as long as it may be.
pub(super) fn shape(config: &TrainConfig, batch: usize) -> StepShape {
    let len = config.data.cutoff_len;
    let longest =
        config.data.packing.is_unpadded().then_some(crate::estimate::Longest { train: batch * len, eval: 0 });
    StepShape {
        batch,
        len,
        documents: config.data.packing.has_documents(),
        eval_batch: None,
        longest,
        parts: 1,
    }
}
