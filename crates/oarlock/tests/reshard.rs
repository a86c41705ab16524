//! A checkpoint of any placement on any number of ranks goes on in any other: the same state, bitwise, and the losses
//! that the uninterrupted run has.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oarlock::checkpoint::{Contents, MergeOptions, Saver};
use oarlock::data::{Loader, Packing, RowSettings, Rows, Sampler, Source, TokenCache, Tokenizer};
use oarlock::model::{Decoder, HfConfig, merge_weights};
use oarlock::shard::{Engine, Gather, Placements, ShardingConfig, Slice};
use oarlock::train::{NextToken, train_step};
use oarlock::weights::SafetensorsSource;
use oarlock::{Accelerator, AcceleratorConfig, ClientState, optim};
use oarlock_comm::Communicator;
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_tensor::DType;

use crate::common::golden;
use safetensors::SafeTensors;

/// Rows of a step, which 1, 2, 3 and 4 ranks can divide.
const ROWS: u64 = 12;
const STEPS: usize = 10;

struct Data {
    dir: PathBuf,
    rows: Arc<Rows>,
}

impl Data {
    fn open(caches: &Path) -> Data {
        let dir = golden();
        let tokenizer = Tokenizer::open(&dir).unwrap();
        let source = Source::resolve("text.jsonl", &dir, None).unwrap();
        let cache = TokenCache::build(caches, &source, &tokenizer, &mut |_| ()).unwrap();
        let cache = Arc::new(TokenCache::open(&cache.path).unwrap());
        let settings = RowSettings { packing: Packing::Concat, len: 32, special: tokenizer.special() };
        Data { dir, rows: Arc::new(Rows::new(cache, &settings).unwrap()) }
    }
}

/// One part of a run: where it begins, how long it is, where it ends.
#[derive(Clone, Copy)]
struct Leg<'a> {
    from: Option<&'a Path>,
    steps: usize,
    to: Option<&'a Path>,
}

type State = Vec<(Slice, Vec<u32>)>;

/// The losses of a leg, and the state with which it began.
fn rank(data: &Data, comm: Communicator, options: &ShardingConfig, leg: Leg<'_>) -> (Vec<u64>, State) {
    let config =
        AcceleratorConfig { shard: options.clone(), threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
    let hf = HfConfig::read(&data.dir).unwrap();
    let model = Decoder::new(hf.decoder().clone(), data.rows.row_len()).unwrap();
    let weights = SafetensorsSource::open(&data.dir, &hf, &model).unwrap();
    let adamw = optim::adamw(&model).lr(1e-3).weight_decay(0.0);
    let (model, optimizer) = accelerator.prepare_with_weights((model, adamw), Box::new(weights)).unwrap();
    let mut position = 0;
    if let Some(dir) = leg.from {
        position = accelerator.load_checkpoint(dir).unwrap().consumed_samples;
    }
    let read = |slice: Slice| {
        let mut values = vec![0.0; slice.elements.len()];
        optimizer.with_engine(|engine| engine.read_state(&slice, &mut values)).unwrap().unwrap();
        (slice, values.into_iter().map(f32::to_bits).collect())
    };
    let began = optimizer.with_engine(Engine::needed_slices).unwrap().into_iter().map(read).collect();
    let (world, rank) = (comm.world_size() as u64, comm.rank() as u64);
    let (len, micro_batch) = (data.rows.n_rows(), ROWS / world);
    let sampler =
        Sampler { len, seed: 7, shuffle: true, world, rank, micro_batch, accumulation: 1, lengths: None };
    let mut loader = Loader::new(data.rows.clone(), sampler, position).unwrap();
    let mut timer = PhaseTimer::new();
    let mut losses = Vec::new();
    for _ in 0..leg.steps {
        let window = loader.next_step().unwrap();
        position = window.position;
        let report =
            train_step(&accelerator, &NextToken::PLAIN, &model, &optimizer, &window.batches, 1.0, &mut timer)
                .unwrap();
        losses.push(report.loss().to_bits());
    }
    if let Some(dir) = leg.to {
        let client = ClientState { consumed_samples: position, ..ClientState::default() };
        let mut saver = Saver::default();
        accelerator.begin_save(&mut saver, dir, Contents::state(client)).unwrap();
        saver.finish(&comm).unwrap();
    }
    comm.finish();
    (losses, began)
}

fn run(data: &Data, ranks: usize, options: &ShardingConfig, leg: Leg<'_>) -> (Vec<u64>, Vec<State>) {
    let ranks = oarlock_comm::shm::on_threads(ranks, |comm| rank(data, comm, options, leg)).unwrap();
    assert!(ranks.iter().all(|rank| rank.0 == ranks[0].0), "the ranks disagree");
    let losses = ranks[0].0.clone();
    (losses, ranks.into_iter().map(|rank| rank.1).collect())
}

/// The elements of a tensor of a checkpoint's merged weights.
fn merged(checkpoint: &Path, out: &Path) -> Vec<(String, Vec<u32>)> {
    merge_weights(
        checkpoint,
        out,
        &MergeOptions {
            tag: None,
            model: None,
            dtype: Some(DType::F32),
            max_shard_bytes: 1 << 30,
            overwrite: false,
        },
    )
    .unwrap();
    let bytes = std::fs::read(out.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |bytes: &[u8]| bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    file.tensors().into_iter().map(|(name, tensor)| (name, values(tensor.data()))).collect()
}

#[test]
fn any_stage_on_any_number_of_ranks_goes_on_where_another_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let data = Data::open(folder.path());
    let stages = [Placements::WHOLE, Placements::OPTIMIZER, Placements::GRADIENTS, Placements::PARAMETERS];
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 5e-3)] {
        let placed = |placements| ShardingConfig { dtype, placements, ..ShardingConfig::default() };
        let full_shard =
            ShardingConfig { gather: Gather::Copy, persistence_elems: 0, ..placed(Placements::PARAMETERS) };
        // The uninterrupted run, on four ranks with all of the state divided.
        let whole = run(&data, 4, &full_shard, Leg { from: None, steps: 3 + STEPS, to: None }).0;
        let mut saved = Vec::new();
        for (ranks, options) in
            [(4, &full_shard), (1, &placed(Placements::WHOLE)), (3, &placed(Placements::GRADIENTS))]
        {
            let dir = folder.path().join(format!("checkpoint-{dtype}-{ranks}"));
            run(&data, ranks, options, Leg { from: None, steps: 3, to: Some(&dir) });
            saved.push((ranks, dir));
        }
        for (from, dir) in &saved {
            let weights = merged(dir, &folder.path().join(format!("merged-{dtype}-{from}")));
            let loading = match from {
                4 => vec![1, 2, 3, 4],
                _ => vec![4],
            };
            let state_of = |states: &[State]| {
                let mut all: Vec<_> = states.iter().flatten().cloned().collect();
                all.sort_by(|a, b| {
                    (a.0.kind, &a.0.name, a.0.elements.start).cmp(&(b.0.kind, &b.0.name, b.0.elements.start))
                });
                let mut joined = std::collections::BTreeMap::<(&str, String), Vec<u32>>::new();
                for (slice, values) in all {
                    let joined = joined.entry((slice.kind, slice.name)).or_default();
                    if joined.len() == slice.elements.start {
                        joined.extend(values);
                    }
                }
                joined
            };
            let mut first = None;
            for ranks in loading {
                for placements in stages {
                    let (losses, states) = run(
                        &data,
                        ranks,
                        &placed(placements),
                        Leg { from: Some(dir), steps: STEPS, to: None },
                    );
                    let state = state_of(&states);
                    for (name, values) in &weights {
                        // The head is the embedding where they are tied.
                        if let Some(master) = state.get(&("master", name.clone())) {
                            assert!(master == values, "merged {name}");
                        }
                    }
                    let expected = first.get_or_insert_with(|| state.clone());
                    assert!(state == *expected, "{dtype}, {from} to {ranks} ranks, {placements:?}: state");
                    for (at, (loss, expected)) in losses.iter().zip(&whole[3..]).enumerate() {
                        let apart = (f64::from_bits(*loss) - f64::from_bits(*expected)).abs();
                        assert!(
                            apart < tolerance,
                            "{dtype}, {from} to {ranks} ranks, step {at}: {apart} apart"
                        );
                    }
                    if (*from, ranks) == (4, 4) {
                        assert_eq!(losses, whole[3..], "{dtype}, {placements:?}: the same ranks");
                    }
                }
            }
        }
    }
}
