//! A model that is divided into the stages of a pipeline trains as it does in one process.

use std::path::Path;
use std::sync::Arc;

use oarlock::checkpoint::{Contents, Saver};
use oarlock::config::{PartitionMethod, PipelineArgs};
use oarlock::data::{
    Loader, Packing, RowSettings, Rows, Sampler, Source, TokenCache, Tokenizer, eval_batches,
};
use oarlock::deepspeed::{self, Config, InitializeArgs, LayerSpec, PipelineModule, TiedLayerSpec};
use oarlock::model::{Decoder, HfConfig, Recompute};
use oarlock::nn::{self, Linear, Tanh};
use oarlock::optim::{self, Stepped};
use oarlock::shard::{Engine, Placements, ShardingConfig};
use oarlock::train::{NextToken, evaluate, train_step};
use oarlock::{Accelerator, AcceleratorConfig, ClientState, Error, SeededInit};
use oarlock_comm::{Communicator, shm};
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_tensor::DType;
use oarlock_tensor::cpu::difference::largest_difference_by;

use crate::common::golden;
use crate::placements::{Pieces, Trace, pieces, placed};

/// Rows of a step.
const ROWS: u64 = 16;

struct Data {
    hf: HfConfig,
    rows: Arc<Rows>,
    _caches: tempfile::TempDir,
}

impl Data {
    fn open() -> Data {
        let dir = golden();
        let caches = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::open(&dir).unwrap();
        let source = Source::resolve("text.jsonl", &dir, None).unwrap();
        let cache = TokenCache::build(caches.path(), &source, &tokenizer, &mut |_| ()).unwrap();
        let cache = Arc::new(TokenCache::open(&cache.path).unwrap());
        let settings = RowSettings { packing: Packing::Concat, len: 32, special: tokenizer.special() };
        let rows = Arc::new(Rows::new(cache, &settings).unwrap());
        Data { hf: HfConfig::read(&dir).unwrap(), rows, _caches: caches }
    }
}

/// A run on `ranks` ranks.
#[derive(Clone)]
struct Case<'a> {
    ranks: usize,
    pipeline: PipelineArgs,
    options: ShardingConfig,
    tied: bool,
    /// Micro-batches of a step.
    accumulation: u64,
    recompute: Recompute,
    steps: usize,
    from: Option<&'a Path>,
    to: Option<&'a Path>,
}

impl Case<'_> {
    fn new(ranks: usize, stages: usize, virtual_stages: usize, dtype: DType, tied: bool) -> Case<'static> {
        Case {
            ranks,
            pipeline: PipelineArgs { stages, virtual_stages, partition: PartitionMethod::Uniform },
            options: placed(Placements::OPTIMIZER, dtype),
            tied,
            accumulation: 4,
            recompute: Recompute::None,
            steps: 4,
            from: None,
            to: None,
        }
    }
}

/// What a rank saw.
struct RankResult {
    /// Loss and norm of each step.
    steps: Vec<(u64, u64)>,
    evaluated: f64,
    n_params: usize,
    /// What it began with, and what it ended with.
    began: Pieces,
    pieces: Pieces,
    /// The sum of all weights, from the state dict.
    weights: f64,
}

fn rank(data: &Data, comm: Communicator, case: &Case<'_>) -> RankResult {
    let config = AcceleratorConfig {
        shard: case.options.clone(),
        pipeline: case.pipeline.clone(),
        threads: Some(1),
        ..AcceleratorConfig::default()
    };
    let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
    let mut decoder = data.hf.decoder().clone();
    decoder.tie_embeddings = case.tied;
    let mut model = Decoder::new(decoder, data.rows.row_len()).unwrap();
    model.set_recompute(case.recompute);
    let seeded = Box::new(SeededInit::new(3, accelerator.device()));
    let adamw = optim::adamw(&model).lr(3e-3).weight_decay(0.1).no_decay_of_vectors(&model);
    let (model, optimizer) = accelerator.prepare_with_weights((model, adamw), seeded).unwrap();
    let mut position = 0;
    if let Some(dir) = case.from {
        position = accelerator.load_checkpoint(dir).unwrap().consumed_samples;
    }
    let began = pieces(&optimizer);
    let (world, rank) =
        (accelerator.data_ranks().world_size() as u64, accelerator.data_ranks().rank() as u64);
    let sampler = Sampler {
        len: data.rows.n_rows(),
        seed: 7,
        shuffle: true,
        world,
        rank,
        micro_batch: ROWS / world / case.accumulation,
        accumulation: case.accumulation,
        lengths: None,
    };
    let mut loader = Loader::new(data.rows.clone(), sampler, position).unwrap();
    let mut timer = PhaseTimer::new();
    let mut steps = Vec::new();
    for _ in 0..case.steps {
        let window = loader.next_step().unwrap();
        position = window.position;
        let report =
            train_step(&accelerator, &NextToken::PLAIN, &model, &optimizer, &window.batches, 0.5, &mut timer)
                .unwrap();
        assert_eq!(report.stepped, Stepped::Done);
        assert!(report.grad_norm > 0.5, "clipping has nothing to do");
        steps.push((report.loss().to_bits(), report.grad_norm.to_bits()));
    }
    if let Some(dir) = case.to {
        let client = ClientState { consumed_samples: position, ..ClientState::default() };
        let mut saver = Saver::default();
        accelerator.begin_save(&mut saver, dir, Contents::state(client)).unwrap();
        saver.finish(&comm).unwrap();
    }
    let batches = eval_batches(data.rows.clone(), world, rank, 2).unwrap().take(9);
    let evaluated = evaluate(&accelerator, &NextToken::PLAIN, &model, batches).unwrap().loss;
    let state = accelerator.get_state_dict(&model).unwrap();
    let weights = state.values().flat_map(|tensor| tensor.to_vec::<f64>().unwrap()).sum();
    let n_params = optimizer.with_engine(Engine::n_params).unwrap();
    let pieces = pieces(&optimizer);
    comm.finish();
    RankResult { steps, evaluated, n_params, began, pieces, weights }
}

fn run(data: &Data, case: &Case<'_>) -> (Trace, Vec<RankResult>) {
    let ranks: Vec<RankResult> = shm::on_threads(case.ranks, |comm| rank(data, comm, case)).unwrap();
    assert!(ranks.iter().all(|rank| rank.evaluated.to_bits() == ranks[0].evaluated.to_bits()));
    assert!(ranks.iter().all(|rank| rank.weights.to_bits() == ranks[0].weights.to_bits()));
    let parts = ranks.iter().map(|rank| (rank.steps.clone(), rank.pieces.clone())).collect();
    (Trace::of(parts, &case.options), ranks)
}

/// The largest relative distance between losses and norms.
fn distance(a: &Trace, b: &Trace) -> f64 {
    let of =
        |trace: &Trace| trace.losses.iter().flat_map(|x| [x.0, x.1]).map(f64::from_bits).collect::<Vec<_>>();
    largest_difference_by(&of(a), &of(b), |a, b| (a / b - 1.0).abs()).unwrap()
}

#[test]
fn stages_have_the_bits_of_a_run_without_them() {
    let data = Data::open();
    for dtype in [DType::F32, DType::BF16] {
        // As many ranks see different data in each: one, then two.
        for (data_ranks, pipelines) in [(1, &[(2, 1), (4, 1), (2, 2)][..]), (2, &[(2, 1), (2, 2)])] {
            let (whole, seen) = run(&data, &Case::new(data_ranks, 1, 1, dtype, false));
            for &(stages, virtual_stages) in pipelines {
                let case = Case::new(data_ranks * stages, stages, virtual_stages, dtype, false);
                let (piped, ranks) = run(&data, &case);
                let what = format!("{stages} stages x {data_ranks}, {virtual_stages} parts each, {dtype}");
                assert!(piped == whole, "{what}: {}", distance(&piped, &whole));
                assert_eq!(ranks[0].evaluated.to_bits(), seen[0].evaluated.to_bits(), "{what}");
                // Each rank has the weights of its stage alone.
                let own: usize = ranks.iter().step_by(data_ranks).map(|rank| rank.n_params).sum();
                assert_eq!(own, seen[0].n_params, "{what}");
                assert!(ranks.iter().all(|rank| rank.n_params < seen[0].n_params), "{what}");
            }
        }
    }
}

#[test]
fn tied_embeddings_agree_within_rounding() {
    let data = Data::open();
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 5e-3)] {
        let (whole, seen) = run(&data, &Case::new(1, 1, 1, dtype, true));
        for (ranks, stages, virtual_stages) in [(2, 2, 1), (4, 2, 1), (4, 4, 1), (2, 2, 2)] {
            let (piped, own) = run(&data, &Case::new(ranks, stages, virtual_stages, dtype, true));
            let far = distance(&piped, &whole);
            assert!(far < tolerance, "{stages} stages, {virtual_stages} parts, {dtype}: {far}");
            assert!(piped.state.keys().eq(whole.state.keys()));
            // As many ranks evaluate on the same rows.
            assert!(ranks != stages || (own[0].evaluated / seen[0].evaluated - 1.0).abs() < tolerance);
        }
    }
}

#[test]
fn placement_and_recomputation_change_no_bit_of_a_pipeline() {
    let data = Data::open();
    let case = Case { steps: 2, ..Case::new(4, 2, 1, DType::BF16, true) };
    let (one, _) = run(&data, &case);
    let whole = Case { options: placed(Placements::WHOLE, DType::BF16), ..case.clone() };
    assert!(run(&data, &whole).0 == one, "ZeRO-0");
    let again = Case { recompute: Recompute::Units { every: 1 }, ..case.clone() };
    assert!(run(&data, &again).0 == one, "recomputation");
    let few = Case { accumulation: 1, steps: 1, ..case };
    run(&data, &few);
}

#[test]
fn a_checkpoint_of_a_pipeline_goes_on_anywhere() {
    let data = Data::open();
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("checkpoint");
    let case = Case::new(4, 2, 1, DType::F32, true);
    let (ended, _) = run(&data, &Case { to: Some(&saved), steps: 2, ..case.clone() });
    let (uninterrupted, _) = run(&data, &case);
    for (ranks, stages, virtual_stages) in [(4, 2, 1), (1, 1, 1), (2, 2, 2), (4, 4, 1), (2, 1, 1)] {
        let resumed = Case {
            from: Some(&saved),
            steps: 2,
            ..Case::new(ranks, stages, virtual_stages, DType::F32, true)
        };
        let (trace, seen) = run(&data, &resumed);
        let began =
            Trace::of(seen.iter().map(|rank| (Vec::new(), rank.began.clone())).collect(), &resumed.options);
        assert!(began.state == ended.state, "{ranks} ranks, {stages} stages");
        let rest = Trace { losses: uninterrupted.losses[2..].to_vec(), state: began.state };
        assert!(distance(&trace, &rest) < 1e-5, "{ranks} ranks, {stages} stages");
        if (ranks, stages) == (4, 2) {
            assert_eq!(trace.losses, rest.losses);
        }
    }
}

/// What a world of ranks is told that cannot have such a pipeline.
fn refused(ranks: usize, pipeline: PipelineArgs, placements: Placements) -> String {
    let config = AcceleratorConfig {
        shard: placed(placements, DType::F32),
        pipeline,
        threads: Some(1),
        ..AcceleratorConfig::default()
    };
    let rank = |comm| refused_on(&comm, &config).unwrap_err().to_string();
    let errors: Vec<String> = shm::on_threads(ranks, rank).unwrap();
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    errors[0].clone()
}

fn refused_on(comm: &Communicator, config: &AcceleratorConfig) -> Result<(), Error> {
    let accelerator = Accelerator::over(comm.clone(), config)?;
    let model = Decoder::new(HfConfig::read(&golden()).unwrap().decoder().clone(), 32)?;
    let adamw = optim::adamw(&model);
    let (model, _optimizer) = accelerator.prepare((model, adamw))?;
    let ids = oarlock::Tensor::from_slice(&[1i32, 2], [1, 2], accelerator.device())?;
    model.call(&ids, |model, ids| model.logits(ids, &oarlock_tensor::ops::Mask::Causal))?;
    Ok(())
}

#[test]
fn what_a_pipeline_cannot_do_is_told() {
    let told = refused(3, PipelineArgs::stages(2), Placements::OPTIMIZER);
    assert!(told.contains("2 stages must divide the 3 ranks"), "{told}");
    for placements in [Placements::GRADIENTS, Placements::PARAMETERS] {
        let told = refused(2, PipelineArgs::stages(2), placements);
        assert!(told.contains("ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"), "{told}");
    }
    let told =
        refused(2, PipelineArgs { virtual_stages: 3, ..PipelineArgs::stages(2) }, Placements::OPTIMIZER);
    assert!(told.contains("a model of 4 units cannot be divided into 6 parts"), "{told}");
    let told = refused(2, PipelineArgs::stages(2), Placements::OPTIMIZER);
    assert!(told.contains("Decoder is divided into 2 stages"), "{told}");
}

/// Layers with tied ends: an encoding, and the same weights the other way round.
fn layers() -> Vec<LayerSpec> {
    let shared = || Linear::new(6, 8).map(Linear::no_bias);
    let mut layers = vec![TiedLayerSpec::new("ends", shared)];
    for _ in 0..3 {
        layers.push(LayerSpec::new(|| Linear::new(8, 8)));
        layers.push(LayerSpec::new(|| Ok(Tanh)));
    }
    layers.push(TiedLayerSpec::with_forward("ends", shared, |layer: &Linear, x| {
        x.matmul(&nn::parameter(&layer.weight, x)?)
    }));
    layers
}

/// Losses of the steps of an engine, and of an evaluation at the end.
fn engine_losses(
    comm: &Communicator,
    stages: usize,
    virtual_stages: usize,
    zero: u8,
) -> oarlock::Result<Vec<f64>> {
    let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(comm.clone(), &config)?;
    let net = PipelineModule::new(layers(), nn::mse_loss)?
        .num_stages(stages)
        .num_virtual_stages(virtual_stages)
        .activation_checkpoint_interval(stages - 1);
    let text = format!(
        "{{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, \"gradient_clipping\": 0.05,
          \"zero_optimization\": {{\"stage\": {zero}}}, \"optimizer\": {{\"type\": \"AdamW\", \"params\": {{\"lr\": 0.02}}}}}}"
    );
    let args = InitializeArgs::new(net, Config::from_text("ds.json", &text)?);
    let (engine, ()) =
        deepspeed::initialize_pipeline(InitializeArgs { accelerator: Some(accelerator), ..args })?;
    let data_ranks = engine.engine().accelerator().data_ranks().clone();
    let mut next = data_ranks.rank();
    let mut data = std::iter::from_fn(|| {
        let x: Vec<f32> = (0..12).map(|i| ((next * 12 + i) % 17) as f32 / 17.0 - 0.4).collect();
        next += data_ranks.world_size();
        let x = oarlock::Tensor::from_slice(&x, [2, 6], engine.device()).unwrap();
        Some(Ok((x.clone(), x)))
    });
    let mut losses = Vec::new();
    for _ in 0..6 {
        losses.push(engine.train_batch(&mut data)?);
    }
    assert_eq!((engine.global_steps(), engine.engine().micro_steps()), (6, 24));
    losses.push(engine.eval_batch(&mut data)?);
    Ok(losses)
}

fn losses_of_engines(
    ranks: usize,
    stages: usize,
    virtual_stages: usize,
    zero: u8,
) -> Vec<Result<Vec<f64>, String>> {
    let rank = |comm| engine_losses(&comm, stages, virtual_stages, zero).map_err(|error| error.to_string());
    shm::on_threads(ranks, rank).unwrap()
}

#[test]
fn an_engine_of_layers_trains_as_on_one_stage() {
    for data_ranks in [1, 2] {
        let whole = losses_of_engines(data_ranks, 1, 1, 1)[0].clone().unwrap();
        assert!(whole[5] < whole[0], "{whole:?}");
        for (stages, virtual_stages) in [(2, 1), (2, 2), (4, 1)] {
            if stages * data_ranks > 4 {
                continue;
            }
            let ranks = losses_of_engines(stages * data_ranks, stages, virtual_stages, 1);
            assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{ranks:?}");
            let losses = ranks[0].clone().unwrap();
            let far = largest_difference_by(&losses, &whole, |a, b| (a / b - 1.0).abs()).unwrap();
            assert!(far < 1e-4, "{stages} stages, {virtual_stages} parts: {losses:?} {whole:?}");
        }
    }
    let refused = losses_of_engines(2, 2, 1, 2)[0].clone().unwrap_err();
    assert!(refused.contains("ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"), "{refused}");
}
