//! However the state of a model is sharded, gathered, reduced and offloaded, a run is bitwise identical.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oarlock::config::LossScale;
use oarlock::data::{Loader, Packing, RowSettings, Rows, Sampler, Source, TokenCache, Tokenizer};
use oarlock::model::{Decoder, HfConfig};
use oarlock::nn::Wrap;
use oarlock::optim::{self, Stepped};
use oarlock::shard::{Engine, Gather, Lifetime, Offload, Placement, Placements, ShardingConfig, Slice};
use oarlock::train::{NextToken, train_step};
use oarlock::weights::SafetensorsSource;
use oarlock::{Accelerator, AcceleratorConfig, PreparedOptimizer, SeededInit, WeightSource};
use oarlock_comm::Communicator;
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_tensor::cpu::difference::largest_difference;
use oarlock_tensor::{DType, DeviceKind};

use crate::common::golden;

/// Both have tied and untied weights, norms of their own, and units of several blocks.
/// And what FSDP calls their layers.
const MODELS: [(&str, &str); 2] = [("llama", "LlamaDecoderLayer"), ("qwen3", "Qwen3DecoderLayer")];

struct Data {
    dir: PathBuf,
    rows: Arc<Rows>,
    _caches: tempfile::TempDir,
}

impl Data {
    fn open(model: &str) -> Data {
        Data::with(golden().with_file_name(format!("train-{model}")), 32)
    }

    /// The text of a golden trajectory, for any model with as many tokens at least.
    fn with(dir: PathBuf, len: usize) -> Data {
        let text = if dir.join("text.jsonl").exists() { dir.clone() } else { golden() };
        let caches = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::open(&text).unwrap();
        let source = Source::resolve("text.jsonl", &text, None).unwrap();
        let cache = TokenCache::build(caches.path(), &source, &tokenizer, &mut |_| ()).unwrap();
        let cache = Arc::new(TokenCache::open(&cache.path).unwrap());
        let settings = RowSettings { packing: Packing::Concat, len, special: tokenizer.special() };
        let rows = Arc::new(Rows::new(cache, &settings).unwrap());
        Data { dir, rows, _caches: caches }
    }
}

/// Losses and norms of each step, and the state after the last: each parameter's in one piece, whoever held its parts.
#[derive(PartialEq)]
pub struct Trace {
    pub losses: Vec<(u64, u64)>,
    pub state: BTreeMap<(String, &'static str), Vec<u32>>,
}

/// The parts of the state that a rank owns: parameter, kind of state, first element, values.
pub type Pieces = Vec<(String, &'static str, usize, Vec<u32>)>;

/// What a rank owns of the state.
pub fn pieces(optimizer: &PreparedOptimizer) -> Pieces {
    let snapshot = optimizer.with_engine(Engine::snapshot).unwrap();
    let read = |slice: Slice| {
        let mut values = vec![0.0; slice.elements.len()];
        snapshot.read(&slice, &mut values).unwrap();
        let bits = values.into_iter().map(f32::to_bits).collect();
        (slice.name, slice.kind, slice.elements.start, bits)
    };
    (0..snapshot.units()).flat_map(|unit| snapshot.slices(unit)).map(read).collect()
}

impl Trace {
    /// What the ranks of a run saw and own.
    pub fn of(ranks: Vec<(Vec<(u64, u64)>, Pieces)>, options: &ShardingConfig) -> Trace {
        assert!(ranks.iter().all(|rank| rank.0 == ranks[0].0), "the ranks disagree: {options:?}");
        let mut pieces: Pieces = ranks.iter().flat_map(|rank| rank.1.clone()).collect();
        pieces.sort();
        let mut state = BTreeMap::<_, Vec<u32>>::new();
        for (name, kind, start, values) in pieces {
            let joined = state.entry((name, kind)).or_default();
            assert_eq!(joined.len(), start, "a part is missing or twice there: {options:?}");
            joined.extend(values);
        }
        Trace { losses: ranks.into_iter().next().unwrap().0, state }
    }
}

fn rank(
    data: &Data,
    device: DeviceKind,
    comm: Communicator,
    options: &ShardingConfig,
    steps: usize,
    accumulation: u64,
) -> (Vec<(u64, u64)>, Pieces) {
    let config = AcceleratorConfig {
        shard: options.clone(),
        device,
        threads: Some(1),
        ..AcceleratorConfig::default()
    };
    let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
    let hf = HfConfig::read(&data.dir).unwrap();
    let model = Decoder::new(hf.decoder().clone(), data.rows.row_len()).unwrap();
    let weights: Box<dyn WeightSource> = match data.dir.join("model.safetensors").exists() {
        true => Box::new(SafetensorsSource::open(&data.dir, &hf, &model).unwrap()),
        false => Box::new(SeededInit::new(3, accelerator.device())),
    };
    let adamw = optim::adamw(&model).lr(3e-3).weight_decay(0.1).no_decay_of_vectors(&model);
    let (model, optimizer) = accelerator.prepare_with_weights((model, adamw), weights).unwrap();
    let (world, rank) = (comm.world_size() as u64, comm.rank() as u64);
    let micro_batch = 4 / accumulation;
    let sampler = Sampler {
        len: data.rows.n_rows(),
        seed: 7,
        shuffle: true,
        world,
        rank,
        micro_batch,
        accumulation,
        lengths: None,
    };
    let mut loader = Loader::new(data.rows.clone(), sampler, 0).unwrap();
    let mut timer = PhaseTimer::new();
    let mut losses = Vec::new();
    for _ in 0..steps {
        let window = loader.next_step().unwrap();
        let report =
            train_step(&accelerator, &NextToken::PLAIN, &model, &optimizer, &window.batches, 0.5, &mut timer)
                .unwrap();
        assert!(report.grad_norm > 0.5, "clipping has nothing to do");
        losses.push((report.totals.loss_sum.to_bits(), report.grad_norm.to_bits()));
    }
    let pieces = pieces(&optimizer);
    comm.finish();
    (losses, pieces)
}

fn train(data: &Data, ranks: usize, options: &ShardingConfig, steps: usize, accumulation: u64) -> Trace {
    train_on(DeviceKind::Cpu, data, ranks, options, steps, accumulation)
}

fn train_on(
    device: DeviceKind,
    data: &Data,
    ranks: usize,
    options: &ShardingConfig,
    steps: usize,
    accumulation: u64,
) -> Trace {
    let rank = |comm| rank(data, device, comm, options, steps, accumulation);
    Trace::of(oarlock_comm::shm::on_threads(ranks, rank).unwrap(), options)
}

pub fn placed(placements: Placements, dtype: DType) -> ShardingConfig {
    ShardingConfig { dtype, placements, ..ShardingConfig::default() }
}

/// All ways to hold a model on `ranks` ranks, each with a name.
pub fn ways(ranks: usize, dtype: DType, disk: &Path, layer: &str) -> Vec<(&'static str, ShardingConfig)> {
    let zero = |placements| placed(placements, dtype);
    let copied =
        |placements| ShardingConfig { gather: Gather::Copy, persistence_elems: 0, ..zero(placements) };
    let full = || copied(Placements::PARAMETERS);
    let nvme = || Some(Offload { dir: Some(disk.to_path_buf()), sub_group_elems: 5000, buffers: 3 });
    let wrapped = |wrap, options| ShardingConfig { wrap, ..options };
    let layers = || Wrap::Transformer(vec![layer.to_owned()]);
    let mut ways = vec![
        ("ZeRO-1", zero(Placements::OPTIMIZER)),
        ("ZeRO-2", zero(Placements::GRADIENTS)),
        ("ZeRO-3", zero(Placements::PARAMETERS)),
        ("ZeRO-1, copies", copied(Placements::OPTIMIZER)),
        (
            "ZeRO-2, copies, buckets of 1000",
            ShardingConfig { reduce_bucket_elems: 1000, ..copied(Placements::GRADIENTS) },
        ),
        ("DDP, buckets of 777", ShardingConfig { reduce_bucket_elems: 777, ..zero(Placements::WHOLE) }),
        ("FULL_SHARD, copies", full()),
        ("FULL_SHARD, copies, some kept", ShardingConfig { reuse_elems: 20_000, ..full() }),
        ("FULL_SHARD, copies, no prefetch", ShardingConfig { prefetch_elems: 0, ..full() }),
        ("FULL_SHARD, copies, little live", ShardingConfig { max_live_elems: 20_000, ..full() }),
        ("FULL_SHARD, copies, small ones stay", ShardingConfig { persistence_elems: 3000, ..full() }),
        ("SHARD_GRAD_OP, copies", ShardingConfig { lifetime: Lifetime::ForwardToBackward, ..full() }),
        (
            "ZeRO-1, optimizer on disk",
            ShardingConfig { offload_optimizer: nvme(), ..zero(Placements::OPTIMIZER) },
        ),
        (
            "ZeRO-3, both on disk",
            ShardingConfig {
                offload_optimizer: nvme(),
                offload_params: nvme(),
                ..zero(Placements::PARAMETERS)
            },
        ),
        (
            "ZeRO-3, both on disk but for small ones",
            ShardingConfig {
                offload_optimizer: nvme(),
                offload_params: nvme(),
                persistence_elems: 100,
                ..zero(Placements::PARAMETERS)
            },
        ),
        (
            "ZeRO-3, parameters on disk",
            ShardingConfig { offload_params: nvme(), persistence_elems: 0, ..zero(Placements::PARAMETERS) },
        ),
        ("FULL_SHARD, copies, a layer a unit", wrapped(layers(), full())),
        ("FULL_SHARD, copies, units of 10,000", wrapped(Wrap::Size(10_000), full())),
        ("FULL_SHARD, copies, one unit", wrapped(Wrap::None, full())),
        ("ZeRO-2, one unit", wrapped(Wrap::None, zero(Placements::GRADIENTS))),
        ("NO_SHARD, one unit", wrapped(Wrap::None, zero(Placements::WHOLE))),
        ("SHARD_GRAD_OP, a layer a unit", wrapped(layers(), zero(Placements::PARAMETERS))),
    ];
    if ranks == 4 {
        let hybrid = |options| ShardingConfig { group: Some(2), ..options };
        ways.push(("HYBRID_SHARD", hybrid(zero(Placements::PARAMETERS))));
        ways.push(("HYBRID_SHARD, copies", hybrid(full())));
        let lifetime = Lifetime::ForwardToBackward;
        ways.push(("HYBRID_SHARD_ZERO2, copies", ShardingConfig { lifetime, ..hybrid(full()) }));
        ways.push(("hpZ", ShardingConfig { secondary: Some(2), ..full() }));
        ways.push(("hpZ, no prefetch", ShardingConfig { secondary: Some(2), prefetch_elems: 0, ..full() }));
    }
    ways
}

#[test]
#[ignore = "heavy"]
fn every_way_to_hold_a_model_has_the_same_bits() {
    let disk = tempfile::tempdir().unwrap();
    for (name, layer) in MODELS {
        let data = Data::open(name);
        for (ranks, dtype, steps) in
            [(2, DType::F32, 20), (4, DType::BF16, 20), (4, DType::F32, 5), (3, DType::F32, 4)]
        {
            let whole = train(&data, ranks, &placed(Placements::WHOLE, dtype), steps, 1);
            for (way, options) in ways(ranks, dtype, disk.path(), layer) {
                let trace = train(&data, ranks, &options, steps, 1);
                assert_eq!(trace.losses, whole.losses, "{name}, {ranks} ranks, {dtype}: {way}");
                assert!(trace.state == whole.state, "{name}, {ranks} ranks, {dtype}: {way}: other weights");
            }
        }
    }
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0, "something is left on the disk");
}

/// Memory that the host cannot touch, and launches that run as late as they may.
#[test]
fn every_way_to_hold_a_model_has_the_same_bits_on_the_strict_device() {
    let disk = tempfile::tempdir().unwrap();
    let (ranks, steps) = (4, 3);
    for ((name, layer), dtype) in MODELS.into_iter().zip([DType::BF16, DType::F32]) {
        let data = Data::open(name);
        let whole = placed(Placements::WHOLE, dtype);
        let want = train(&data, ranks, &whole, steps, 1);
        let staged = train_on(DeviceKind::Staging, &data, ranks, &whole, steps, 1);
        assert!(staged == want, "{name}, {dtype}: staged");
        let mut ways = ways(ranks, dtype, disk.path(), layer);
        ways.push(("DDP", whole));
        for (way, options) in ways {
            let trace = train_on(DeviceKind::Strict, &data, ranks, &options, steps, 1);
            assert_eq!(trace.losses, want.losses, "{name}, {dtype}: {way}");
            assert!(trace.state == want.state, "{name}, {dtype}: {way}: other weights");
        }
    }
}

#[test]
fn a_class_that_the_model_lacks_is_named_with_those_that_it_has() {
    let data = Data::open("qwen3");
    let hf = HfConfig::read(&data.dir).unwrap();
    let model = Decoder::new(hf.decoder().clone(), data.rows.row_len()).unwrap();
    let shard = ShardingConfig {
        wrap: Wrap::Transformer(vec!["LlamaDecoderLayer".to_owned()]),
        ..ShardingConfig::default()
    };
    let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(Communicator::solo(), &config).unwrap();
    let adamw = optim::adamw(&model);
    let message = accelerator.prepare((model, adamw)).map(|_| ()).unwrap_err();
    assert!(
        message.to_string().starts_with(
            "could not find the transformer layer class LlamaDecoderLayer in the model; its units are of the classes \
             Embedding, Qwen3DecoderLayer, Head"
        ),
        "{message}"
    );
}

/// The model of the bench, once; `cargo test --release -p oarlock --test suite placements -- --ignored --nocapture`.
#[test]
#[ignore = "takes some minutes"]
fn a_model_of_26_million_parameters_has_the_same_bits_too_by_hand() {
    let disk = tempfile::tempdir().unwrap();
    let data = Data::with(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/models/26m"), 16);
    for (ranks, dtype) in [(2, DType::F32), (2, DType::BF16), (4, DType::F32), (4, DType::BF16)] {
        let whole = train(&data, ranks, &placed(Placements::WHOLE, dtype), 20, 1);
        println!("{ranks} ranks, {dtype}: DDP ends with the loss {:x}", whole.losses[19].0);
        for (way, mut options) in ways(ranks, dtype, disk.path(), MODELS[0].1) {
            if options.reduce_bucket_elems < 10_000 {
                options.reduce_bucket_elems = 1_000_000;
            }
            for offload in [&mut options.offload_optimizer, &mut options.offload_params].into_iter().flatten()
            {
                offload.sub_group_elems = 1_000_000;
            }
            let trace = train(&data, ranks, &options, 20, 1);
            assert_eq!(trace.losses, whole.losses, "{ranks} ranks, {dtype}: {way}");
            assert!(trace.state == whole.state, "{ranks} ranks, {dtype}: {way}: other weights");
            println!("  the same: {way}");
        }
    }
}

#[test]
#[ignore = "heavy"]
fn reducing_every_micro_batch_stays_within_rounding() {
    let disk = tempfile::tempdir().unwrap();
    let data = Data::open("llama");
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 5e-3)] {
        let losses = |options: &ShardingConfig| -> Vec<f64> {
            let trace = train(&data, 2, options, 10, 4);
            trace.losses.iter().map(|(loss, _)| f64::from_bits(*loss) / (2.0 * 4.0 * 31.0)).collect()
        };
        let whole = losses(&placed(Placements::WHOLE, dtype));
        for (way, options) in ways(2, dtype, disk.path(), MODELS[0].1) {
            let apart = largest_difference(&losses(&options), &whole).unwrap();
            assert!(apart < tolerance, "{way}, {dtype}: losses {apart} apart");
        }
    }
}

/// What decides the bits of a step of several micro-batches: how often gradients are reduced (the classes of
/// docs/sharding.md), and, where micro-batch by micro-batch, the units.
pub fn class(options: &ShardingConfig) -> (Option<Option<usize>>, Wrap) {
    match options.placements.gradients {
        Placement::Whole => (None, Wrap::Declared),
        Placement::Sharded => (Some(options.group), options.wrap.clone()),
    }
}

#[test]
fn strategies_of_a_class_have_the_same_bits_where_micro_batches_accumulate() {
    let disk = tempfile::tempdir().unwrap();
    for ((name, layer), dtype) in MODELS.into_iter().zip([DType::F32, DType::BF16]) {
        let data = Data::open(name);
        let mut classes: Vec<(_, &str, Trace, usize)> = Vec::new();
        let ddp = ("DDP", placed(Placements::WHOLE, dtype));
        for (way, options) in [ddp].into_iter().chain(ways(4, dtype, disk.path(), layer)) {
            let trace = train(&data, 4, &options, 3, 4);
            match classes.iter_mut().find(|(of, ..)| *of == class(&options)) {
                None => classes.push((class(&options), way, trace, 1)),
                Some((_, first, want, n)) => {
                    assert_eq!(trace.losses, want.losses, "{name}, {dtype}: {way} and {first}");
                    assert!(trace.state == want.state, "{name}, {dtype}: {way} and {first}: other weights");
                    *n += 1;
                }
            }
        }
        // All three classes, each with several members; the classes themselves differ within rounding.
        for of in [None, Some(None), Some(Some(2))] {
            let found = classes.iter().find(|(class, ..)| *class == (of, Wrap::Declared));
            assert!(found.is_some_and(|(.., n)| *n > 2), "{of:?}");
        }
        assert!(classes[0].2.losses != classes[1].2.losses, "{} and {}", classes[0].1, classes[1].1);
    }
}

/// DeepSpeed's rule, written down once more: the scale after each step of a run with these overflows.
fn scales(overflows: &[bool], power: i32, window: i64, hysteresis: u32) -> Vec<f64> {
    let (mut scale, mut left, mut last) = (2f64.powi(power), hysteresis, -1i64);
    let step = |(at, overflow): (usize, &bool)| {
        let at = at as i64;
        if *overflow {
            if hysteresis == 1 || left == 1 {
                scale = (scale / 2.0).max(1.0);
            } else {
                left -= 1;
            }
            last = at;
        } else if at - last - 1 > 0 && (at - last - 1) % window == 0 {
            left = hysteresis;
            scale *= 2.0;
        }
        scale
    };
    overflows.iter().enumerate().map(step).collect()
}

#[test]
fn an_overflow_on_one_rank_is_skipped_by_all_and_the_loss_scale_follows_deepspeed() {
    let data = Data::open("llama");
    // So large that the first steps overflow; after that it grows into the next overflow again.
    let loss_scale = LossScale::Dynamic {
        initial_power: 24,
        growth_interval: 3,
        hysteresis: 2,
        consecutive_hysteresis: false,
        min_scale: 1.0,
    };
    let train = |placements| -> Vec<(bool, f64, u64)> {
        let rank = |comm: Communicator| {
            let shard = placed(placements, DType::F16);
            let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
            let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
            let hf = HfConfig::read(&data.dir).unwrap();
            let model = Decoder::new(hf.decoder().clone(), data.rows.row_len()).unwrap();
            let weights = SafetensorsSource::open(&data.dir, &hf, &model).unwrap();
            let adamw = optim::adamw(&model).lr(1e-3).weight_decay(0.0).loss_scale(loss_scale);
            let objects = (model, adamw);
            let (model, optimizer) = accelerator.prepare_with_weights(objects, Box::new(weights)).unwrap();
            let (world, rank) = (comm.world_size() as u64, comm.rank() as u64);
            let (len, shuffle) = (data.rows.n_rows(), true);
            let sampler = Sampler {
                len,
                seed: 7,
                shuffle,
                world,
                rank,
                micro_batch: 2,
                accumulation: 1,
                lengths: None,
            };
            let mut loader = Loader::new(data.rows.clone(), sampler, 0).unwrap();
            let mut timer = PhaseTimer::new();
            let steps = (0..30).map(|_| {
                let window = loader.next_step().unwrap();
                let before = optimizer.n_steps().unwrap();
                let report = train_step(
                    &accelerator,
                    &NextToken::PLAIN,
                    &model,
                    &optimizer,
                    &window.batches,
                    1.0,
                    &mut timer,
                )
                .unwrap();
                let skipped = report.stepped != Stepped::Done;
                assert_eq!(optimizer.n_steps().unwrap() - before, u64::from(!skipped));
                assert_eq!(report.grad_norm.is_finite(), !skipped);
                (skipped, optimizer.loss_scale().unwrap(), report.totals.loss_sum.to_bits())
            });
            steps.collect::<Vec<_>>()
        };
        let mut ranks = oarlock_comm::shm::on_threads(2, rank).unwrap();
        assert_eq!(ranks[0], ranks[1]);
        ranks.swap_remove(0)
    };
    let steps = train(Placements::OPTIMIZER);
    let overflows: Vec<bool> = steps.iter().map(|step| step.0).collect();
    assert!(overflows[0] && overflows[5..].contains(&true) && overflows.iter().any(|overflow| !overflow));
    let found: Vec<f64> = steps.iter().map(|step| step.1).collect();
    assert_eq!(found, scales(&overflows, 24, 3, 2));
    for placements in [Placements::WHOLE, Placements::GRADIENTS, Placements::PARAMETERS] {
        assert!(train(placements) == steps, "{placements:?}");
    }
}
