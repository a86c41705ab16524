//! The forecast of a run: made and checked before anything is loaded, compared with what was used at the end.

use oarlock_comm::{MachineMemory, ProcessMemory};
use oarlock_config::config::{
    IntervalStrategy, Offload, Placement, Quantized, Recompute, ShardingConfig, TrainConfig, Wrap,
};
use oarlock_engine::Result;
use oarlock_engine::report::error::NotEnoughMemory;
use oarlock_engine::report::terminal::readable;
use oarlock_tensor::ops::Rope;
use oarlock_tensor::ops::optimizer::Rule;
use oarlock_tensor::{Device, MemoryStats};

use super::activations::{DryRun, Longest, LongestOf, MicroBatch, StepShape, decoder_step};
use super::gpu::{GpuMemory, OnGpu};
use super::limits::Limits;
use super::prediction::{Estimate, estimate};
use super::settings::{Optim, Settings, Stage};
use super::size::ModelSize;
use crate::model::Decoder;

/// What a rank takes between its start and its first step besides what is counted here by name: the tokenizer, the
/// allocator's slack, stacks.
const LATER_BYTES: u64 = 1 << 20;

/// Code that is used for the first time after the start, which the ranks of a machine share.
const LATER_CODE_BYTES: u64 = 4 << 20;

/// Windows of batches that the loader and the step hold at a time.
const N_WINDOWS: u64 = 4;

/// A run's prediction, and the most that was measured.
#[derive(Debug)]
pub struct Forecast {
    estimate: Estimate,
    shape: StepShape,
    /// What the pool of a rank takes at most.
    pool_bytes: u64,
    /// Bytes of a rank that activation checkpointing saves.
    saved: u64,
    /// The most of this rank's PSS at the ends of steps.
    peak: u64,
    /// Steps between lines on memory; 0 for none.
    every: u64,
    /// What a rank has on its GPU, where it computes there.
    gpu: Option<OnGpu>,
    /// The most that was in use on the GPU at the ends of steps.
    gpu_peak: u64,
    /// What the pool had at the last of them.
    pool: MemoryStats,
}

/// A training run whose memory is predicted.
#[derive(Clone, Copy)]
pub struct Training<'a> {
    /// The model.
    pub model: &'a Decoder,
    /// A frozen model beside it.
    pub second: Option<&'a Decoder>,
    /// Sequences of an example; `shape` counts examples.
    pub n_segments: usize,
    /// Makes the same model once more, which keeps all of its activations.
    pub rebuild: &'a dyn Fn() -> Result<Decoder>,
    /// What becomes a unit.
    pub wrap: &'a Wrap,
    /// On which kernels and threads it runs.
    pub device: &'a Device,
    /// The micro-batches of a rank.
    pub shape: StepShape,
    /// The largest micro-batches where they are of other sizes.
    pub longest: Option<&'a LongestOf<'a>>,
    /// How many of them are in a step.
    pub accumulation: usize,
    /// How the model's states are kept.
    pub settings: &'a Settings,
    /// [`program_bytes`].
    pub program: u64,
    /// What is done with a micro-batch.
    pub micro_batch: &'a MicroBatch<'a>,
}

/// The models of a training run: the one that is trained, what makes it once more, and a frozen one beside it.
pub type Models<'a> = (&'a Decoder, &'a dyn Fn() -> Result<Decoder>, Option<&'a Decoder>);

/// What a forecast is made from besides the configuration.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// On which kernels and threads the run runs.
    pub device: &'a Device,
    /// How many ranks are on this machine, where they share no memory.
    pub apart: Option<usize>,
    /// The memory of this process before anything large was loaded: PSS in bytes.
    pub measured: u64,
    /// The largest micro-batches, where sequences have lengths of their own and these are known.
    pub longest: Option<&'a LongestOf<'a>>,
    /// The memory of the GPU of each rank, rank 0 the first, where ranks compute on GPUs; that of rank 0 stands for all where the
    /// others were not asked.
    pub gpus: &'a [GpuMemory],
}

impl Forecast {
    /// The forecast of a configuration on this rank, for rank 0 to make; `micro_batch` says what is done with one. With
    /// `memory_check` a training run that would not fit is refused. Where sequences have lengths of their own that are
    /// not known, all are taken for as long as they may be.
    ///
    /// # Errors
    /// [`Error::Memory`](oarlock_engine::Error::Memory) with what would fit.
    pub fn new(
        config: &TrainConfig,
        (model, rebuild, second): Models<'_>,
        known: Known<'_>,
        micro_batch: &MicroBatch<'_>,
    ) -> Result<Forecast> {
        let Known { device, apart, measured, longest, gpus } = known;
        let mut settings = settings_of(config, model.config().hidden_size, apart);
        if !gpus.is_empty() {
            // Beside a GPU, main memory is a place of its own.
            settings.sharding.offload_params = config.shard.offload_params.clone();
        }
        let evaluates =
            config.eval.at_start || config.eval.at_end || config.eval.when != IntervalStrategy::Never;
        let shape = StepShape {
            batch: if config.train.enabled { config.train.batch_size } else { 0 },
            len: config.data.cutoff_len,
            documents: config.data.packing.has_documents(),
            eval_batch: evaluates.then_some(config.eval.batch_size),
            longest: None,
            parts: config.ranks.sequence_parallel,
        };
        let n_segments = config.data.n_segments();
        let longest_row = |batch: usize| batch.saturating_mul(n_segments).saturating_mul(shape.len);
        let as_they_may_be = |train, eval: Option<usize>| Longest {
            train: longest_row(train),
            eval: eval.map_or(0, longest_row),
        };
        let longest = longest.unwrap_or(&as_they_may_be);
        let longest = config.data.packing.is_unpadded().then_some(longest);
        let shape = shape.with_longest(longest);
        let accumulation = config.train.accumulation;
        let program =
            program_bytes(measured, model, shape.of_segments(n_segments), accumulation, settings.ranks);
        let settings = &settings;
        let training = Training {
            model,
            second,
            n_segments,
            rebuild,
            wrap: &config.shard.wrap,
            device,
            shape,
            longest,
            accumulation,
            settings,
            program,
            micro_batch,
        };
        let step = training.step()?;
        let size = training.size();
        let mut estimate = self::estimate(&size, settings, Some(&step), program);
        let whole = estimate.rank();
        let mut on_cpu = settings.clone();
        on_cpu.sharding.offload_params = on_cpu.sharding.offload_params.filter(Offload::is_in_files);
        let on_cpu = self::estimate(&size, &on_cpu, Some(&step), program);
        let on_gpu = |estimate: &mut Estimate| {
            let updates_on_cpu = config.shard.offload_optimizer.is_some();
            let first = *gpus.first()?;
            Some(OnGpu::taken_from(estimate, &size, first, updates_on_cpu).on_gpus(gpus))
        };
        let gpu = on_gpu(&mut estimate);
        let limits = config.log.memory_check.then(Limits::current).transpose()?;
        let broken = |host: &Estimate, gpu: &Option<OnGpu>| {
            let limits = limits.as_ref()?;
            limits.broken_by(host).or_else(|| gpu.as_ref().and_then(OnGpu::broken))
        };
        if let Some(limit) = broken(&estimate, &gpu) {
            let fits = |estimate: &Estimate| {
                let mut host = estimate.clone();
                let gpu = on_gpu(&mut host);
                broken(&host, &gpu).is_none()
            };
            let fitting = training.proposals(&fits)?;
            let mut fitting: Vec<_> =
                fitting.into_iter().map(|(change, estimate)| (change, estimate.rank())).collect();
            if gpu.is_some() && broken(&on_cpu, &None).is_none() {
                fitting.push((NotEnoughMemory::ON_CPU.to_owned(), on_cpu.rank()));
            }
            let predicted = match gpu.as_ref().filter(|gpu| gpu.broken().is_some()) {
                Some(gpu) => gpu.tightest_line(),
                None => needs(&estimate),
            };
            let n_ranks = settings.ranks;
            return Err(NotEnoughMemory { limit, predicted, n_ranks, fitting }.into());
        }
        let mut saved = 0;
        if config.train.recompute != Recompute::None {
            let keeps_all = rebuild()?;
            let kept = Training { model: &keeps_all, ..training }.predict()?;
            saved = kept.rank().saturating_sub(whole);
        }
        let every = config.log.memory_steps as u64;
        Ok(Forecast {
            estimate,
            shape,
            pool_bytes: step.pool_bytes,
            saved,
            peak: 0,
            every,
            gpu,
            gpu_peak: 0,
            pool: MemoryStats::default(),
        })
    }

    /// What activations, logits and scratch memory of a rank take at most, in bytes.
    pub fn pool_bytes(&self) -> u64 {
        self.pool_bytes
    }

    /// The prediction.
    pub fn estimate(&self) -> &Estimate {
        &self.estimate
    }

    /// The prediction as a line of the log.
    pub fn line(&self) -> String {
        let saved = match self.saved {
            0 => String::new(),
            bytes => format!("; activation checkpointing saves {}", readable(bytes)),
        };
        let tokens = match self.shape.longest {
            Some(longest) => {
                format!("; the largest micro-batch has {} tokens", longest.train.max(longest.eval))
            }
            None => String::new(),
        };
        let gpu = self.gpu.as_ref().map_or(String::new(), |gpu| format!("\n{}", gpu.line()));
        format!("memory: predicted {}{saved}{tokens}{gpu}", needs(&self.estimate))
    }

    /// After step `done` of a run that began after `first` and ends after `last`: measures where that says most, and
    /// gives a line where one is due.
    pub fn after_step(&mut self, (first, done, last): (u64, u64, u64), device: &Device) -> Option<String> {
        let due = self.every > 0 && done.is_multiple_of(self.every);
        if !due && done != first + 1 && done != last {
            return None;
        }
        let own = ProcessMemory::current().ok()?;
        self.peak = self.peak.max(own.pss);
        let gpu = GpuMemory::now(device, 1).map_or(0, |memory| memory.in_use);
        self.gpu_peak = self.gpu_peak.max(gpu);
        let arena = device.arena();
        self.pool = arena.memory_stats();
        let machine = MachineMemory::current().ok().filter(|_| due)?;
        let gpu = if gpu > 0 { format!("; {} of the GPU used", readable(gpu)) } else { String::new() };
        let in_use: usize = arena.usage().iter().map(|(_, usage)| usage.bytes).sum();
        Some(format!(
            "memory after step {done}: buffers {} in use, {} taken from the system; PSS {} (peak RSS {}); {} of the \
             machine's {} used{gpu}",
            readable(in_use as u64),
            readable(arena.bytes() as u64),
            readable(own.pss),
            readable(own.peak_rss),
            readable(machine.total.saturating_sub(machine.available)),
            readable(machine.total),
        ))
    }

    /// What was predicted and what was measured, at the end of a run; `None` where nothing was measured. `end` is the
    /// most that any rank has at the end.
    pub fn compared(&mut self, end: u64) -> Option<String> {
        self.peak = self.peak.max(end);
        let predicted = self.estimate.rank();
        let compare = |predicted: u64, peak: u64| {
            let percent = 100.0 * peak as f64 / predicted as f64;
            let (predicted, peak) = (readable(predicted), readable(peak));
            (predicted, format!("measured peak {peak} ({percent:.1} %)"))
        };
        let gpu = self.gpu.as_ref().filter(|_| self.gpu_peak > 0).map_or(String::new(), |gpu| {
            let (predicted, measured) = compare(gpu.all(), self.gpu_peak);
            let MemoryStats { peak_reserved, peak_allocated, .. } = self.pool;
            let [reserved, used] = [peak_reserved, peak_allocated].map(|bytes| readable(bytes as u64));
            format!(
                "\nGPU memory: predicted {predicted} in use, {measured}; the pool reserved at most {reserved}, and buffers \
                 used at most {used} of it"
            )
        });
        let (predicted, measured) = compare(predicted, self.peak);
        (self.peak > 0).then(|| format!("memory: predicted {predicted} a rank, {measured}{gpu}"))
    }
}

/// What a configuration says about memory; `apart` as in [`Settings::apart`].
pub(crate) fn settings_of(config: &TrainConfig, hidden_size: usize, apart: Option<usize>) -> Settings {
    let shard = &config.shard;
    let placements = shard.placements;
    let stage = match (placements.optimizer, placements.gradients, placements.parameters) {
        (Placement::Whole, ..) => Stage::Whole,
        (_, Placement::Whole, _) => Stage::Optimizer,
        (.., Placement::Whole) => Stage::Gradients,
        _ => Stage::Parameters,
    };
    let optim = match &config.train.optimizer.rule {
        Rule::AdamW { .. } | Rule::Adam { .. } => Optim::TwoMoments,
        Rule::Lamb { .. } => Optim::Lamb,
        Rule::Sgd { momentum: 0.0, .. } => Optim::Stateless,
        Rule::Sgd { .. } | Rule::Adagrad { .. } | Rule::Lion { .. } => Optim::OneState,
        Rule::Adafactor { .. } => Optim::Factored,
        Rule::Muon { .. } => Optim::Muon,
        Rule::LowRank(low) => Optim::LowRank(*low, config.train.optimizer.targets.clone()),
        Rule::Custom(_) | Rule::EightBit(_) | Rule::OneBit(_) => {
            Optim::Other(config.train.optimizer.rule.clone())
        }
    };
    let ranks = config.ranks.num_processes;
    Settings {
        group: match shard.group {
            Some(n) => n.min(ranks),
            // Ranks that share memory are on one machine.
            None if shard.by_machine => apart.unwrap_or(ranks),
            None => ranks,
        },
        apart,
        optim,
        sharding: ShardingConfig {
            secondary: shard.secondary.filter(|&n| n < ranks),
            quantized: if ranks > 1 { shard.quantized } else { Quantized::NONE },
            offload_optimizer: shard.offload_optimizer.clone().filter(Offload::is_in_files),
            offload_params: shard.offload_params.clone().filter(Offload::is_in_files),
            ..shard.resolve(config.train.dtype, hidden_size)
        },
        ..Settings::new(config.train.dtype, stage, ranks)
    }
}

/// The memory of a rank of this program that is not a model state and no activation. `measured` is the PSS of this very
/// process before anything large is loaded.
pub fn program_bytes(
    measured: u64,
    model: &Decoder,
    shape: StepShape,
    accumulation: usize,
    ranks: usize,
) -> u64 {
    // The angles of positions are computed when a row has them for the first time.
    let row = shape.longest.map_or(shape.len, |longest| longest.train.max(longest.eval));
    let kinds = model.config().rotary_kinds();
    let angles = kinds.iter().map(|(_, dim)| Rope::bytes(row, *dim));
    let later = LATER_BYTES + LATER_CODE_BYTES / ranks.max(1) as u64;
    let all = angles.chain([later, windows_bytes(shape, accumulation)]);
    all.fold(measured, u64::saturating_add)
}

/// The batches that a rank of this program holds, which are a part of [`program_bytes`].
pub(super) fn windows_bytes(shape: StepShape, accumulation: usize) -> u64 {
    let token = 4 * if shape.documents { 3 } else { 2 };
    let tokens = (shape.tokens() as u64).saturating_mul(accumulation as u64);
    N_WINDOWS.saturating_mul(tokens.saturating_mul(token))
}

impl Training<'_> {
    /// The prediction.
    ///
    /// # Errors
    /// Sequences longer than the model's, or impossible sizes.
    pub fn predict(&self) -> Result<Estimate> {
        let size = self.size();
        Ok(estimate(&size, self.settings, Some(&self.step()?), self.program))
    }

    /// The sizes of the units of all models.
    fn size(&self) -> ModelSize {
        let of = |model: &Decoder| ModelSize::wrapped(model, self.settings.sharding.dtype, self.wrap);
        match self.second {
            Some(second) => of(self.model).and(of(second)),
            None => of(self.model),
        }
    }

    /// The same with other micro-batches.
    fn with_shape(&self, shape: StepShape) -> Training<'_> {
        let windows = |shape: StepShape| windows_bytes(shape.of_segments(self.n_segments), self.accumulation);
        let program = self.program.saturating_sub(windows(self.shape)).saturating_add(windows(shape));
        Training { shape, program, ..*self }
    }

    /// A step on a dry device.
    fn step(&self) -> Result<DryRun> {
        let shape = self.shape.of_segments(self.n_segments);
        decoder_step(self.model, self.settings.sharding.dtype, self.device, shape, self.micro_batch)
    }

    /// Changes of the run that make it fit, each with its estimate: the smallest change of each kind, and all
    /// together where none is enough.
    ///
    /// # Errors
    /// As [`Training::predict`].
    pub fn proposals(&self, fits: &dyn Fn(&Estimate) -> bool) -> Result<Vec<(String, Estimate)>> {
        let Training { shape, settings, program, .. } = *self;
        let mut found = Vec::new();
        let size = self.size();
        let (key, now) = match shape.batch {
            0 => ("per_device_eval_batch_size", shape.eval_batch.unwrap_or(0)),
            batch => ("per_device_train_batch_size", batch),
        };
        let halved = |batch: usize| {
            let eval_batch = shape.eval_batch.map(|b| b.min(batch));
            StepShape { batch: shape.batch.min(batch), eval_batch, ..shape }.with_longest(self.longest)
        };
        let batches = std::iter::successors(Some(now / 2), |batch| Some(batch / 2)).take_while(|b| *b > 0);
        let mut smallest = shape;
        for batch in batches {
            smallest = halved(batch);
            let estimate = self.with_shape(smallest).predict()?;
            if fits(&estimate) {
                found.push((format!("{key}: {batch}"), estimate));
                break;
            }
        }
        let now = self.step()?;
        let mut keep = |what: String, settings: &Settings, step| -> bool {
            let estimate = estimate(&size, settings, Some(step), program);
            let kept = fits(&estimate);
            if kept {
                found.push((what, estimate));
            }
            kept
        };
        let mut recomputing = (self.rebuild)()?;
        recomputing.set_recompute(Recompute::Units { every: 1 });
        let recomputing = Training { model: &recomputing, ..*self };
        let less = recomputing.step()?;
        if less.pool_bytes < now.pool_bytes {
            keep("gradient_checkpointing: true".to_owned(), settings, &less);
        }
        for stage in Stage::ALL.into_iter().filter(|stage| *stage > settings.stage && settings.ranks > 1) {
            if keep(stage.name().to_owned(), &Settings { stage, ..settings.clone() }, &now) {
                break;
            }
        }
        let mut nvme = Settings { stage: settings.stage.max(Stage::Optimizer), ..settings.clone() };
        nvme.sharding.offload_optimizer = Some(settings.files());
        keep("the optimizer state offloaded to NVMe".to_owned(), &nvme, &now);
        if found.is_empty() {
            let mut all = Settings { stage: Stage::Parameters, ..nvme };
            all.sharding.offload_params = Some(all.files());
            let smallest = recomputing.with_shape(smallest);
            let estimate = estimate(&size, &all, Some(&smallest.step()?), smallest.program);
            if fits(&estimate) {
                let what = format!(
                    "ZeRO-3 with parameters and optimizer state offloaded to NVMe, gradient_checkpointing: true, \
                     {key}: {}",
                    smallest.shape.batch.max(smallest.shape.eval_batch.unwrap_or(0))
                );
                found.push((what, estimate));
            }
        }
        Ok(found)
    }
}

/// What an estimate comes to, in words.
fn needs(estimate: &Estimate) -> String {
    let parts: Vec<String> =
        estimate.parts.iter().map(|part| format!("{} {}", part.name, readable(part.rank))).collect();
    let ranks = match estimate.settings.ranks {
        1 => String::new(),
        n => format!(", {} for all {n}", readable(estimate.machine())),
    };
    format!("{} a rank{ranks} ({})", readable(estimate.rank()), parts.join(", "))
}
