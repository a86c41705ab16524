//! `oarlock estimate-memory`: what a training run takes, for every stage, before it is started.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use oarlock::config::{Offload, ShardingConfig};
use oarlock::estimate::{
    self, DryRun, Estimate, GpuMemory, ModelSize, OnGpu, Optim, Settings, Stage, StepShape, decoder_step,
    offload_to_files,
};
use oarlock::model::hf::HfConfig;
use oarlock::model::{Decoder, DecoderConfig, Recompute};
use oarlock::train::objective::{NextToken, dry_pass};
use oarlock_comm::ProcessMemory;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par};

use super::dtypes::dtypes;
use crate::console::{Outcome, print};
use crate::error::{Error, Result};

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum OffloadDevice {
    None,
    Cpu,
    Nvme,
}

#[derive(Clone, Copy, ValueEnum)]
enum OptimName {
    Adamw,
    Adam,
    Lamb,
    Lion,
    Adagrad,
    /// With momentum
    Sgd,
    /// Without momentum
    PlainSgd,
    Adafactor,
    Muon,
}

#[derive(Clone, Copy, ValueEnum)]
enum Other {
    Deepspeed,
}

/// The most sequences of a batch, as in a configuration.
const MOST_BATCH: u64 = 1 << 24;

#[derive(Args)]
pub(super) struct EstimateArgs {
    /// The model's folder; its config.json is enough
    #[arg(required_unless_present_any = ["params", "hidden"])]
    model: Option<PathBuf>,
    /// A number of parameters such as 26M or 7B, where there is no folder
    #[arg(long, value_parser = count, conflicts_with = "model")]
    params: Option<usize>,
    /// Parameters of the largest unit (layer or embedding), beside --params
    #[arg(long, value_parser = count, requires = "params")]
    largest_unit: Option<usize>,
    /// Width of a llama, where there is no folder
    #[arg(long, value_parser = size, requires = "layers", conflicts_with = "model")]
    hidden: Option<usize>,
    /// Layers of it
    #[arg(long, value_parser = layers, requires = "hidden")]
    layers: Option<usize>,
    /// Attention heads of it; by default of 64 channels each
    #[arg(long, value_parser = size, requires = "hidden")]
    heads: Option<usize>,
    /// Key and value heads of it; by default as many as heads
    #[arg(long, value_parser = size, requires = "hidden")]
    kv_heads: Option<usize>,
    /// Width of its MLP; by default 8/3 of the width
    #[arg(long, value_parser = size, requires = "hidden")]
    intermediate: Option<usize>,
    /// Tokens of its vocabulary
    #[arg(long, value_parser = size, requires = "hidden", default_value_t = 32_000)]
    vocab: usize,
    /// Sequences of a rank in one forward pass
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_BATCH))]
    batch: usize,
    /// Tokens of a sequence
    #[arg(long, value_parser = size, default_value_t = 2048)]
    cutoff_len: usize,
    /// The dtype of the arithmetic
    #[arg(long, value_parser = dtypes(["f32", "bf16", "fp16"]), default_value = "bf16")]
    dtype: DType,
    /// Only this stage of ZeRO; 0 is plain data parallelism
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=3))]
    stage: Option<u8>,
    /// Ranks, all on one machine
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    num_processes: u16,
    /// Threads of a rank
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Where optimizer state is kept; for ranks on CPU, none and cpu are the same
    #[arg(long, value_enum, default_value_t = OffloadDevice::None)]
    offload_optimizer: OffloadDevice,
    /// Where parameters are kept; stage 3 only
    #[arg(long, value_enum, default_value_t = OffloadDevice::None)]
    offload_param: OffloadDevice,
    /// Keep only the input of each layer, and compute its activations again in the backward pass
    #[arg(long)]
    gradient_checkpointing: bool,
    /// The optimizer
    #[arg(long, value_enum, default_value_t = OptimName::Adamw)]
    optim: OptimName,
    /// Where ranks compute; cuda: a rank on each GPU, whose memory is distinguished from that of the host
    #[arg(long, value_parser = ["cpu", "cuda"], default_value = "cpu")]
    device: String,
    /// Print JSON, in bytes
    #[arg(long)]
    json: bool,
    /// Print what another program estimates, too
    #[arg(long, value_enum)]
    compare: Option<Other>,
}

/// A size of a model, at most as large as those of a config.json.
fn size(text: &str) -> std::result::Result<usize, String> {
    at_most(text, DecoderConfig::MOST_SIZE)
}

fn layers(text: &str) -> std::result::Result<usize, String> {
    at_most(text, DecoderConfig::MOST_LAYERS)
}

fn at_most(text: &str, most: usize) -> std::result::Result<usize, String> {
    let fitting = text.parse().ok().filter(|n| *n <= most);
    fitting.ok_or_else(|| format!("a whole number of at most {most}"))
}

/// A count such as 1000, 26M or 7B.
fn count(text: &str) -> std::result::Result<usize, String> {
    let (number, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        Some((at, 'b' | 'B' | 'g' | 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    match number.parse::<f64>().map(|x| (x * factor).round()) {
        Ok(x) if (1.0..=1e13).contains(&x) => Ok(x as usize),
        _ => Err("a number such as 1000, 26M or 7B, at most 10000B".to_owned()),
    }
}

/// A llama of the given shape.
fn llama(args: &EstimateArgs, hidden: usize, n_layers: usize) -> DecoderConfig {
    DecoderConfig::llama(args.vocab, hidden, n_layers, args.cutoff_len).with_layers(|layer| {
        let (attention, mlp) = (&mut layer.attention, &mut layer.mlp);
        attention.n_heads = args.heads.unwrap_or(attention.n_heads);
        attention.n_kv_heads = args.kv_heads.unwrap_or(attention.n_heads);
        attention.head_dim = hidden.checked_div(attention.n_heads).unwrap_or(0);
        mlp.intermediate_size = args.intermediate.unwrap_or(mlp.intermediate_size);
    })
}

fn settings(args: &EstimateArgs, dtype: DType, stage: Stage) -> Result<Settings> {
    let offload = |device| (device == OffloadDevice::Nvme).then(offload_to_files);
    if args.offload_param == OffloadDevice::Nvme && args.stage != Some(3) {
        return Err(Error::Usage(
            "--offload-param nvme needs --stage 3: only it shards parameters".to_owned(),
        ));
    }
    let optim = match args.optim {
        OptimName::Adamw | OptimName::Adam => Optim::TwoMoments,
        OptimName::Lamb => Optim::Lamb,
        OptimName::Lion | OptimName::Adagrad | OptimName::Sgd => Optim::OneState,
        OptimName::PlainSgd => Optim::Stateless,
        OptimName::Adafactor => Optim::Factored,
        OptimName::Muon => Optim::Muon,
    };
    let ranks = usize::from(args.num_processes);
    Ok(Settings {
        // With a GPU for each rank they use NCCL.
        apart: (args.device == "cuda" && ranks > 1).then_some(ranks),
        optim,
        sharding: ShardingConfig {
            dtype,
            offload_optimizer: offload(args.offload_optimizer),
            offload_params: match args.offload_param {
                // Beside a GPU, main memory is a place of its own.
                OffloadDevice::Cpu if args.device == "cuda" => Some(Offload::TO_MEMORY),
                device => offload(device),
            },
            ..ShardingConfig::default()
        },
        ..Settings::new(dtype, stage, ranks)
    })
}

pub(super) fn run(args: &EstimateArgs) -> Outcome {
    let dtype = args.dtype;
    let config = match (&args.model, args.hidden, args.layers) {
        (Some(dir), ..) => Some(HfConfig::read(dir)?.decoder().clone()),
        (None, Some(hidden), Some(layers)) => Some(llama(args, hidden, layers)),
        _ => None,
    };
    let mut model = config.map(|config| Decoder::new(config, args.cutoff_len)).transpose()?;
    if let (Some(model), true) = (&mut model, args.gradient_checkpointing) {
        model.set_recompute(Recompute::Units { every: 1 });
    }
    let shape = StepShape {
        batch: args.batch,
        len: args.cutoff_len,
        documents: false,
        eval_batch: None,
        longest: None,
        parts: 1,
    };
    let (mut step, mut program): (Option<DryRun>, u64) = (None, 0);
    if let Some(model) = &model {
        let measured = ProcessMemory::current().map_or(0, |own| own.pss);
        program = estimate::program_bytes(measured, model, shape, 1, args.num_processes as usize);
        let device = Device::dry(Isa::detect(), Par::threads(usize::from(args.threads))?);
        let device = match args.device.as_str() {
            "cuda" => device.as_dry_gpu(estimate::USUAL_GPU_BYTES),
            _ => device,
        };
        step = Some(decoder_step(model, dtype, &device, shape, &dry_pass(&NextToken::PLAIN))?);
    }
    let size = match (&model, args.params) {
        (Some(model), None) => ModelSize::of(model, dtype),
        (Some(model), Some(n)) => {
            let largest = ModelSize::of(model, dtype).largest_unit().min(n);
            ModelSize::of_count(n, args.largest_unit.or(Some(largest)), dtype)?
        }
        (None, n) => ModelSize::of_count(n.unwrap_or(0), args.largest_unit, dtype)?,
    };
    let stages = Stage::ALL.into_iter().filter(|s| args.stage.is_none_or(|n| usize::from(n) == s.number()));
    let mut estimates: Vec<Estimate> = stages
        .map(|stage| Ok(estimate::estimate(&size, &settings(args, dtype, stage)?, step.as_ref(), program)))
        .collect::<Result<_>>()?;
    let updates_on_cpu = args.offload_optimizer != OffloadDevice::None;
    let taken =
        |estimate: &mut Estimate| OnGpu::taken_from(estimate, &size, GpuMemory::unknown(1), updates_on_cpu);
    let on_gpu: Vec<OnGpu> = match args.device.as_str() {
        "cuda" => estimates.iter_mut().map(taken).collect(),
        _ => Vec::new(),
    };
    let mut text = match args.json {
        true => format!("{:#}\n", super::estimate_table::json(&size, &estimates, &on_gpu, step.as_ref())),
        false => super::estimate_table::table(&size, &estimates, step.as_ref()),
    };
    if !args.json {
        for (estimate, gpu) in estimates.iter().zip(&on_gpu) {
            text.push_str(&format!("{:7} {}\n", estimate.settings.stage.name(), gpu.line()));
        }
    }
    if let (Some(Other::Deepspeed), false) = (args.compare, args.json) {
        let (n, ranks) = (size.n_params() as u64, u64::from(args.num_processes));
        text.push_str("\nDeepSpeed's estimators, for GPUs and without activations:\n");
        text.push_str(&format!("ZeRO-2: {}", estimate::zero2(n, ranks)));
        text.push_str(&format!("ZeRO-3: {}", estimate::zero3(n, size.largest_layer() as u64, ranks)));
    }
    print(&text)
}
