//! Measurements: the passes, the norm and the optimizer of a shortened model by real steps of training, the collectives by
//! themselves, on as many ranks as the machine is to have. The ranks are threads of this process.

use std::time::Instant;

use oarlock_comm::{Communicator, Ownership, Ready, Scalar, Sharing};
use oarlock_config::config::{Elems, ShardingConfig, TrainConfig};
use oarlock_engine::parallel::pipeline::message_seconds;
use oarlock_engine::report::speed::{Phase, PhaseTimer};
use oarlock_engine::{
    Accelerator, AcceleratorConfig, Error, Prepared, PreparedOptimizer, Result, distributed,
};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, Device, FlatBuffer, Par, Store};

use crate::data::Batch;
use crate::estimate::{Limits, ModelSize, Settings, Stage, decoder_step, estimate};
use crate::model::hf::HfConfig;
use crate::model::{Decoder, DecoderConfig};
use crate::train::model::settings;
use crate::train::objective::{self, ObjectiveContext, dry_pass};
use crate::train::{optimizer, train_step};

use super::facts::{decoder, shape};
use super::power::Power;
use super::profile::{Halves, Line, PassTimes, Profile, Subject};

/// Seconds for which a micro-batch is measured, and the least and most repeats.
const SECONDS: f64 = 1.0;
pub(super) const REPEATS: (usize, usize) = (3, 9);
/// The elements of collectives by which a line is drawn.
pub(super) const ELEMENTS: [usize; 2] = [1 << 14, 1 << 22];
/// Blocks with fewer parameters than this are measured by four, larger ones by two.
const SMALL_BLOCK: usize = 4_000_000;

/// What a profile of a configuration on `ranks` ranks is of.
///
/// # Errors
/// What is wrong with the model.
pub fn subject(config: &TrainConfig, ranks: usize, threads: usize) -> Result<Subject> {
    let hf = settings(&config.model)?;
    let (of, train) = (hf.decoder(), &config.train);
    let layer = of.layers.first();
    let widths = layer.map_or(String::new(), |layer| {
        format!(
            ", MLP {}, {} of {} heads",
            layer.mlp.intermediate_size, layer.attention.n_kv_heads, layer.attention.n_heads
        )
    });
    let tied = if of.tie_embeddings { ", tied" } else { "" };
    Ok(Subject {
        model: format!(
            "{}, {} layers, hidden size {}{widths}, vocabulary {}{tied}",
            of.family.model_type,
            of.layers.len(),
            of.hidden_size,
            of.vocab_size
        ),
        data: format!("{} tokens, {:?}", config.data.cutoff_len, config.data.packing),
        training: format!("{}, {}", train.finetuning.name(), train.optimizer.rule.name()),
        dtype: train.dtype.to_string(),
        ranks,
        threads,
        kernels: Isa::detect().path().to_string(),
    })
}

/// Measures a configuration with micro-batches of these numbers of sequences on `ranks` ranks of `threads` threads each.
///
/// # Errors
/// What is wrong with the model, no memory for the shortened model, a failed rank.
pub fn measure(config: &TrainConfig, ranks: usize, threads: usize, batches: &[usize]) -> Result<Profile> {
    let hf = settings(&config.model)?;
    let subject = subject(config, ranks, threads)?;
    let n_layers = hf.decoder().layers.len();
    let depths = Depths::of(config, &hf, n_layers)?;
    check_memory(config, &depths, ranks, threads, batches)?;
    let args = Args { config, depths: &depths, threads, batches };
    let mut all = distributed::spawn(ranks, |_| args.on_this_rank())?;
    let own = all.swap_remove(0);
    let blocks = depths.blocks;
    let passes = own.passes.iter().map(|(&(batch, recompute), times)| PassTimes {
        batch,
        recompute,
        forward: Halves::from_two((times[0][0], blocks[0]), (times[1][0], blocks[1]), blocks[2]),
        backward: Halves::from_two((times[0][1], blocks[0]), (times[1][1], blocks[1]), blocks[2]),
    });
    let owned = depths.elems.map(|elems| elems as f64 / ranks as f64);
    Ok(Profile {
        passes: passes.collect(),
        norm: Line::through((owned[0], own.norm[0]), (owned[1], own.norm[1])),
        update: Line::through((owned[0], own.update[0]), (owned[1], own.update[1])),
        accumulate: own.accumulate,
        reduce_scatter: own.line(&own.reduce_scatter, 1),
        all_reduce: own.line(&own.all_reduce, 1),
        message: own.line(&own.message, 4),
        rest: own.rest,
        watts: own.watts,
        subject,
    })
}

/// The shortened models.
struct Depths {
    /// One block, and some more.
    hf: [HfConfig; 2],
    /// Elements that are trained.
    elems: [usize; 2],
    /// How many times the work of a mean block each has beside the ends, and so the whole model.
    blocks: [f64; 3],
}

impl Depths {
    fn of(config: &TrainConfig, hf: &HfConfig, n_layers: usize) -> Result<Depths> {
        let of = |n: usize| {
            let mut layers = hf.decoder().layers.clone();
            layers.truncate(n);
            HfConfig::new(DecoderConfig { layers, ..hf.decoder().clone() }, hf.special().clone())
        };
        let elems = |hf: &HfConfig| -> Result<usize> {
            let groups =
                ModelSize::wrapped(&decoder(config, hf, false)?, config.train.dtype, &config.shard.wrap);
            let groups = groups.unit_groups(None);
            Ok(groups.iter().flatten().filter(|group| group.is_trained).map(|group| group.elems).sum())
        };
        let block = ModelSize::of(&decoder(config, &of(2.min(n_layers)), false)?, config.train.dtype)
            .n_params()
            - ModelSize::of(&decoder(config, &of(1), false)?, config.train.dtype).n_params();
        let more = if block < SMALL_BLOCK { 4 } else { 2 };
        let hf = [of(1), of(more.min(n_layers))];
        let elems = [elems(&hf[0])?, elems(&hf[1])?];
        // Layers may differ; what they have in common is the arithmetic that a token takes.
        let len = config.data.cutoff_len;
        let flops = |n: usize| -> Result<f64> {
            let model = decoder(config, &of(n), false)?;
            Ok(crate::train::model::flops(&model, model.config().attention_width(len)))
        };
        let ends = if n_layers > 1 { 2.0 * flops(1)? - flops(2)? } else { 0.0 };
        let first = flops(1)? - ends;
        let blocks = [1, more.min(n_layers), n_layers].map(|n| flops(n).map(|flops| (flops - ends) / first));
        let [few, some, all] = blocks;
        Ok(Depths { hf, elems, blocks: [few?, some?, all?] })
    }
}

/// Refuses to measure what does not fit.
fn check_memory(
    config: &TrainConfig,
    depths: &Depths,
    ranks: usize,
    threads: usize,
    batches: &[usize],
) -> Result<()> {
    let (dtype, largest) = (config.train.dtype, batches.iter().copied().max().unwrap_or(1));
    let device = Device::dry(Isa::detect(), Par::threads(threads)?);
    let of = |hf: &HfConfig| -> Result<_> {
        let model = decoder(config, hf, false)?;
        let objective = objective::of(&config.train, ObjectiveContext::default());
        let step = decoder_step(&model, dtype, &device, shape(config, largest), &dry_pass(&*objective))?;
        let settings = Settings::new(dtype, Stage::Optimizer, ranks);
        Ok(estimate(&ModelSize::of(&model, dtype), &settings, Some(&step), 0))
    };
    let mut estimate = of(&depths.hf[1])?;
    estimate.parts.extend(of(&depths.hf[0])?.parts);
    match Limits::current()?.broken_by(&estimate) {
        None => Ok(()),
        Some(limit) => Err(Error::Usage(format!(
            "plan: to measure one and {} blocks of the model with micro-batches of {largest} sequences on {ranks} rank(s) takes \
             {}, but {} is {}; measure smaller micro-batches (--batches) or fewer ranks (--ranks), or give measurements of a larger \
             machine (--profile)",
            depths.hf[1].decoder().layers.len(),
            crate::estimate::readable(estimate.machine()),
            limit.name,
            crate::estimate::readable(limit.allows),
        ))),
    }
}

struct Args<'a> {
    config: &'a TrainConfig,
    depths: &'a Depths,
    threads: usize,
    batches: &'a [usize],
}

/// What a rank has measured; pairs are of the two shortened models, or of the two numbers of elements.
#[derive(Clone, Debug, Default)]
struct Measured {
    /// Forward and backward pass.
    passes: std::collections::BTreeMap<(usize, bool), [[f64; 2]; 2]>,
    norm: [f64; 2],
    update: [f64; 2],
    accumulate: f64,
    reduce_scatter: [f64; 2],
    all_reduce: [f64; 2],
    message: [f64; 2],
    rest: f64,
    watts: Option<f64>,
}

impl Measured {
    fn line(&self, seconds: &[f64; 2], size: usize) -> Line {
        let at = ELEMENTS.map(|elems| (elems * size) as f64);
        Line::through((at[0], seconds[0]), (at[1], seconds[1]))
    }
}

impl Args<'_> {
    fn on_this_rank(&self) -> Result<Measured> {
        let mut measured = Measured::default();
        let mut rest = f64::INFINITY;
        let mut power = None;
        for recompute in [false, true] {
            let [few, more] = &self.depths.hf;
            let trained = [self.prepare(few, recompute)?, self.prepare(more, recompute)?];
            for &batch in self.batches {
                // What is measured first would else be what the processor does while it is cold.
                for one in &trained {
                    one.step(batch)?;
                }
                power.get_or_insert_with(Power::begin);
                let times = steps(&trained, batch)?;
                for (depth, times) in times.iter().enumerate() {
                    measured.passes.entry((batch, recompute)).or_default()[depth] =
                        [times.of(Phase::Forward), times.of(Phase::Backward)];
                    if (batch, recompute) == (self.batches[0], false) {
                        (measured.norm[depth], measured.update[depth]) =
                            (times.of(Phase::Clip), times.of(Phase::Optimizer));
                    }
                    rest = rest.min(times.of(Phase::Data) + times.of(Phase::Other));
                }
            }
        }
        measured.rest = rest;
        measured.watts = power.and_then(|power| power.watts());
        let accelerator = self.accelerator()?;
        let comm = accelerator.communicator();
        for (index, elems) in ELEMENTS.into_iter().enumerate() {
            let [scatter, all] = reductions(comm, elems)?;
            (measured.reduce_scatter[index], measured.all_reduce[index]) = (scatter, all);
            measured.accumulate = accumulation(&accelerator, elems)?;
        }
        if comm.world_size() > 1 {
            let rest = (2..comm.world_size()).map(|rank| vec![rank]);
            let groups: Vec<Vec<usize>> = std::iter::once(vec![0, 1]).chain(rest).collect();
            let pair = comm.split(&groups)?;
            if comm.rank() < 2 {
                for (index, elems) in ELEMENTS.into_iter().enumerate() {
                    measured.message[index] = message_seconds(&pair, accelerator.device(), elems, REPEATS.1)?;
                }
            }
            comm.barrier()?;
        }
        Ok(measured)
    }

    fn accelerator(&self) -> Result<Accelerator> {
        let config = self.config;
        let unsharded: ShardingConfig<Elems> =
            ShardingConfig { wrap: config.shard.wrap.clone(), ..ShardingConfig::default() };
        let hidden_size = self.depths.hf[0].decoder().hidden_size;
        let cpu_path = config.ranks.cpu_path.as_deref().map(str::parse).transpose().map_err(Error::Usage)?;
        Accelerator::new(&AcceleratorConfig {
            shard: unsharded.resolve(config.train.dtype, hidden_size),
            threads: Some(self.threads),
            seed: Some(config.train.seed),
            cpu_path,
            ..AcceleratorConfig::default()
        })
    }

    fn prepare(&self, hf: &HfConfig, recompute: bool) -> Result<Trained<'_>> {
        let accelerator = self.accelerator()?;
        let model = decoder(self.config, hf, recompute)?;
        let optimizer = optimizer(self.config, &model);
        let (model, optimizer) = accelerator.prepare((model, optimizer))?;
        Ok(Trained { config: self.config, accelerator, model, optimizer })
    }
}

/// A shortened model that is trained.
struct Trained<'a> {
    config: &'a TrainConfig,
    accelerator: Accelerator,
    model: Prepared<Decoder>,
    optimizer: PreparedOptimizer,
}

/// The median time of each phase of some steps.
struct Medians([f64; Phase::ALL.len()]);

impl Medians {
    fn of(&self, phase: Phase) -> f64 {
        self.0[phase as usize]
    }
}

impl Trained<'_> {
    /// A step with one micro-batch: the time of each phase.
    fn step(&self, batch: usize) -> Result<[f64; Phase::ALL.len()]> {
        let vocab = self.model.module().config().vocab_size;
        let window = [micro_batch(self.config, batch, vocab, self.accelerator.process_index())];
        let mut timer = PhaseTimer::new();
        let clip = self.config.train.max_grad_norm.unwrap_or(0.0);
        let objective = objective::of(&self.config.train, ObjectiveContext::default());
        train_step(&self.accelerator, &*objective, &self.model, &self.optimizer, &window, clip, &mut timer)?;
        let times = timer.take();
        Ok(Phase::ALL.map(|phase| times.of(phase).as_secs_f64()))
    }
}

/// Steps of both models in turns, so that what slows the machine down for a while slows both.
fn steps(trained: &[Trained<'_>; 2], batch: usize) -> Result<[Medians; 2]> {
    let begin = Instant::now();
    let mut times = [vec![trained[0].step(batch)?], vec![trained[1].step(batch)?]];
    let mut both = [begin.elapsed().as_secs_f64()];
    trained[0].accelerator.communicator().all_reduce_f64(&mut both, Scalar::Max)?;
    for _ in 1..((SECONDS / both[0]) as usize).clamp(REPEATS.0, REPEATS.1) {
        for (times, one) in times.iter_mut().zip(trained) {
            times.push(one.step(batch)?);
        }
    }
    let medians = |times: Vec<[f64; Phase::ALL.len()]>| -> Result<Medians> {
        // In every step the slowest rank is waited for.
        let mut slowest = times.concat();
        trained[0].accelerator.communicator().all_reduce_f64(&mut slowest, Scalar::Max)?;
        let of = |phase: usize| slowest.iter().skip(phase).step_by(Phase::ALL.len()).copied().collect();
        Ok(Medians(std::array::from_fn(|phase| median(of(phase)))))
    };
    let [few, more] = times;
    Ok([medians(few)?, medians(more)?])
}

pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// A micro-batch of so many sequences of full length, of no text.
fn micro_batch(config: &TrainConfig, sequences: usize, vocab: usize, rank: usize) -> Batch {
    let (len, unpadded) = (config.data.cutoff_len, config.data.packing.is_unpadded());
    let n = sequences * len;
    let id = |i: usize| ((i + rank * n).wrapping_mul(2_654_435_761) % vocab.max(1)) as i32;
    let ids: Vec<i32> = (0..=n).map(id).collect();
    // Where sequences follow one another in a row, each is a document.
    let start = |i: usize| if unpadded { (i / len * len) as i32 } else { 0 };
    Batch {
        input_ids: ids[..n].to_vec(),
        labels: ids[1..].to_vec(),
        doc_start: config.data.packing.has_documents().then(|| (0..n).map(start).collect()),
        rows: if unpadded { 1 } else { sequences },
        len: if unpadded { n } else { len },
        n_targets: n,
        ..Batch::default()
    }
}

/// Seconds of a reduce-scatter and an all-reduce of so many f32 elements.
fn reductions(comm: &Communicator, elems: usize) -> Result<[f64; 2]> {
    let region = comm.allocate("measured sums", elems * 4, Sharing::PerRank)?;
    let owners = Ownership::even(0..elems, comm.world_size());
    let mut times = [Vec::new(), Vec::new()];
    for repeat in 0..=REPEATS.1 {
        let begin = Instant::now();
        comm.reduce_scatter(&region, DType::F32, &owners, Ready::now())?.precede_launches()?;
        let middle = Instant::now();
        comm.all_reduce(&region, DType::F32, 0..elems, Ready::now())?.precede_launches()?;
        if repeat > 0 {
            times[0].push((middle - begin).as_secs_f64());
            times[1].push(middle.elapsed().as_secs_f64());
        }
    }
    Ok(times.map(median))
}

/// Seconds of adding one element to the sums of a step.
fn accumulation(accelerator: &Accelerator, elems: usize) -> Result<f64> {
    let device = accelerator.device();
    let buffer = || FlatBuffer::pooled(device, elems * 4, "measured sums");
    let (from, to) = (buffer()?, buffer()?);
    let parts = [&from, &to].map(|flat| Part { flat, range: 0..elems });
    transfer::accumulate(device, &parts[0], &parts[1], Store::Overwrite)?;
    let mut times = Vec::new();
    for _ in 0..REPEATS.1 {
        accelerator.wait_for_everyone()?;
        let begin = Instant::now();
        transfer::accumulate(device, &parts[0], &parts[1], Store::Add)?;
        times.push(begin.elapsed().as_secs_f64());
    }
    Ok(median(times) / elems as f64)
}
