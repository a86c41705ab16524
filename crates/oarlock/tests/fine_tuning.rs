//! Every placement x {full, LoRA, QLoRA} x {SFT, DPO}: the same bits where docs/sharding.md promises them, and a checkpoint
//! of one placement and number of ranks that goes on in another.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oarlock::adapters::{Adaptation, AdaptedSource, Adapter, adapt, adapt_quantized};
use oarlock::checkpoint::{Contents, Saver};
use oarlock::config::{ExampleKind, PreferenceArgs, TokenLossArgs};
use oarlock::data::{Loader, Rows, Sampler};
use oarlock::model::{Decoder, HfConfig};
use oarlock::shard::{Placements, ShardingConfig, WeightSource};
use oarlock::train::{NextToken, Objective, Preference, Reference, train_step};
use oarlock::weights::{QuantizedLayers, SafetensorsSource};
use oarlock::{Accelerator, AcceleratorConfig, ClientState, Prepared, PreparedOptimizer, optim};
use oarlock_comm::Communicator;
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_tensor::DType;
use oarlock_tensor::cpu::quantized::{Code, Format};

use crate::common::golden;
use crate::placements::{Pieces, Trace, class, pieces, placed, ways};
use crate::{preference, sft};

const NF4: Format = Format::FourBit { code: Code::Nf4, nested: true };

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Full,
    Lora,
    Qlora,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Sft,
    Dpo,
}

/// What is trained, and on which rows.
struct Task {
    method: Method,
    stage: Stage,
    dtype: DType,
    rows: Arc<Rows>,
}

/// How long a run is, and the checkpoints that it begins and ends with.
#[derive(Clone, Copy)]
struct Leg<'a> {
    steps: usize,
    /// Micro-batches of a step on each rank.
    accumulation: u64,
    from: Option<&'a Path>,
    to: Option<&'a Path>,
}

const SHORT: Leg = Leg { steps: 3, accumulation: 1, from: None, to: None };

/// Rows of a step on all ranks, which 2 and 4 ranks divide, also into two micro-batches.
const ROWS: u64 = 8;

/// All tasks.
fn tasks() -> Vec<Task> {
    let of_stage = |stage| match stage {
        Stage::Sft => sft::data(&sft::GOLDEN).0,
        Stage::Dpo => preference::data(ExampleKind::Pairs).0,
    };
    let mut tasks = Vec::new();
    for stage in [Stage::Sft, Stage::Dpo] {
        let rows = of_stage(stage);
        for (index, method) in [Method::Full, Method::Lora, Method::Qlora].into_iter().enumerate() {
            // Each stage in both dtypes, and each method.
            let dtype = [DType::F32, DType::BF16][(index + usize::from(stage == Stage::Dpo)) % 2];
            tasks.push(Task { method, stage, dtype, rows: rows.clone() });
        }
    }
    tasks
}

impl Task {
    fn name(&self) -> String {
        format!("{:?} {:?} in {}", self.method, self.stage, self.dtype)
    }

    /// The model as its method makes it, and where its weights come from. Adapters go on from one that does something.
    fn model(&self, accelerator: &Accelerator) -> (Decoder, Box<dyn WeightSource>) {
        let hf = HfConfig::read(&golden()).unwrap();
        let mut model = decoder(&hf);
        let full = SafetensorsSource::open(&golden(), &hf, &model).unwrap();
        if self.method == Method::Full {
            return (model, Box::new(full));
        }
        let folder = golden().with_file_name("adapters").join("lora");
        let adapter = Adapter::open(&folder, &hf, &mut model).unwrap();
        let mut adaptation = Adaptation::of(&adapter);
        adaptation.with_reference = self.stage == Stage::Dpo;
        let mut base: Box<dyn WeightSource> = Box::new(full);
        match self.method {
            Method::Qlora => {
                let layers = QuantizedLayers::All(NF4);
                let weights = adapt_quantized(&mut model, &adaptation, &layers, self.dtype).unwrap();
                base = Box::new(weights.source(base, accelerator.device()));
            }
            _ => adapt(&mut model, &adaptation).unwrap(),
        }
        let source = AdaptedSource::new(base, &decoder(&hf), 0, accelerator.device());
        (model, Box::new(source.continuing(Some(adapter))))
    }

    /// The model that DPO compares with.
    fn reference(&self, accelerator: &Accelerator) -> Reference {
        if self.method != Method::Full {
            return Reference::SameWeights;
        }
        let (model, weights) = self.model(accelerator);
        Reference::Second(accelerator.prepare_with_weights(model, weights).unwrap())
    }

    fn run(&self, ranks: usize, options: &ShardingConfig, leg: Leg<'_>) -> Trace {
        let ranks = oarlock_comm::shm::on_threads(ranks, |comm| self.rank(comm, options, leg));
        Trace::of(ranks.unwrap(), options)
    }

    fn rank(&self, comm: Communicator, options: &ShardingConfig, leg: Leg<'_>) -> (Vec<(u64, u64)>, Pieces) {
        let shard = ShardingConfig { dtype: self.dtype, ..options.clone() };
        let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
        let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
        let (model, weights) = self.model(&accelerator);
        let adamw = optim::adamw(&model).lr(1e-3).weight_decay(0.01);
        let prepared = accelerator.prepare_with_weights((model, adamw), weights).unwrap();
        let losses = match self.stage {
            Stage::Sft => {
                let objective = NextToken { args: TokenLossArgs::default(), seed: 42 };
                self.steps(&accelerator, &objective, &prepared, leg)
            }
            Stage::Dpo => {
                let objective = Preference::new(PreferenceArgs::default(), self.reference(&accelerator));
                self.steps(&accelerator, &objective, &prepared, leg)
            }
        };
        let pieces = pieces(&prepared.1);
        comm.finish();
        (losses, pieces)
    }

    /// Loss and gradient norm of each step.
    fn steps(
        &self,
        accelerator: &Accelerator,
        objective: &dyn Objective,
        (model, optimizer): &(Prepared<Decoder>, PreparedOptimizer),
        leg: Leg<'_>,
    ) -> Vec<(u64, u64)> {
        let load = |dir| accelerator.load_checkpoint(dir).unwrap().consumed_samples;
        let mut position = leg.from.map_or(0, load);
        let world = accelerator.num_processes() as u64;
        let sampler = Sampler {
            len: self.rows.n_rows(),
            seed: 7,
            shuffle: true,
            world,
            rank: accelerator.process_index() as u64,
            micro_batch: ROWS / world / leg.accumulation,
            accumulation: leg.accumulation,
            lengths: None,
        };
        let mut loader = Loader::new(self.rows.clone(), sampler, position).unwrap();
        let mut timer = PhaseTimer::new();
        let mut step = || {
            let window = loader.next_step().unwrap();
            position = window.position;
            let batches = &window.batches;
            let report =
                train_step(accelerator, objective, model, optimizer, batches, 0.5, &mut timer).unwrap();
            (report.loss().to_bits(), report.grad_norm.to_bits())
        };
        let losses = (0..leg.steps).map(|_| step()).collect();
        if let Some(dir) = leg.to {
            let client = ClientState { consumed_samples: position, ..ClientState::default() };
            let mut saver = Saver::default();
            accelerator.begin_save(&mut saver, dir, Contents::state(client)).unwrap();
            saver.finish(accelerator.communicator()).unwrap();
        }
        losses
    }
}

fn decoder(hf: &HfConfig) -> Decoder {
    Decoder::for_rows(hf.decoder().clone(), 56, 2 * 56 * ROWS as usize).unwrap()
}

#[test]
#[ignore = "heavy"]
fn every_placement_of_every_method_and_stage_has_the_same_bits() {
    let disk = tempfile::tempdir().unwrap();
    for task in tasks() {
        for ranks in [2, 4] {
            let whole = task.run(ranks, &placed(Placements::WHOLE, task.dtype), SHORT);
            assert_eq!(whole.losses.len(), SHORT.steps);
            assert!(!whole.state.is_empty());
            for (way, options) in ways(ranks, task.dtype, disk.path(), "LlamaDecoderLayer") {
                let trace = task.run(ranks, &options, SHORT);
                assert_eq!(trace.losses, whole.losses, "{}, {ranks} ranks: {way}", task.name());
                assert!(trace.state == whole.state, "{}, {ranks} ranks: {way}: other state", task.name());
            }
        }
    }
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0, "something is left on the disk");
}

/// With several micro-batches, placements that reduce gradients equally often are bitwise identical, and all have the
/// same losses within rounding.
#[test]
#[ignore = "heavy"]
fn accumulation_keeps_the_bits_of_a_class_and_the_losses_of_all() {
    let disk = tempfile::tempdir().unwrap();
    let leg = Leg { accumulation: 2, ..SHORT };
    for task in tasks() {
        let ddp = ("DDP", placed(Placements::WHOLE, task.dtype));
        let mut classes: Vec<(_, &str, Trace)> = Vec::new();
        let all = [ddp].into_iter().chain(ways(4, task.dtype, disk.path(), "LlamaDecoderLayer"));
        for (way, options) in all {
            let trace = task.run(4, &options, leg);
            if let Some((_, first, same)) = classes.iter().find(|(of, ..)| *of == class(&options)) {
                assert_eq!(trace.losses, same.losses, "{}: {way} and {first}", task.name());
                assert!(trace.state == same.state, "{}: {way} and {first}: other state", task.name());
                continue;
            }
            if let Some((_, first, ddp)) = classes.first() {
                close(&trace, &ddp.losses, task.dtype, &format!("{}: {way} and {first}", task.name()));
            }
            classes.push((class(&options), way, trace));
        }
        assert!(classes.len() > 2);
    }
}

/// Losses within what docs/sharding.md promises for sums in another order.
fn close(trace: &Trace, losses: &[(u64, u64)], dtype: DType, what: &str) {
    let tolerance = if dtype == DType::F32 { 1e-5 } else { 5e-3 };
    assert_eq!(trace.losses.len(), losses.len());
    for (step, ((ours, _), (theirs, _))) in trace.losses.iter().zip(losses).enumerate() {
        let apart = (f64::from_bits(*ours) - f64::from_bits(*theirs)).abs();
        assert!(apart < tolerance, "{what}, step {step}: {apart} apart");
    }
}

#[test]
fn a_checkpoint_of_four_ranks_with_zero3_goes_on_on_two_with_zero1() {
    let folder = tempfile::tempdir().unwrap();
    for task in tasks() {
        let name = task.name();
        let [zero1, zero3] =
            [Placements::OPTIMIZER, Placements::PARAMETERS].map(|placements| placed(placements, task.dtype));
        let whole = task.run(4, &zero3, Leg { steps: 6, ..SHORT });
        let dir: PathBuf = folder.path().join(&name);
        let saved = task.run(4, &zero3, Leg { to: Some(&dir), ..SHORT });
        assert_eq!(saved.losses, whole.losses[..3], "{name}");
        let from = Leg { from: Some(&dir), ..SHORT };
        let loaded = task.run(2, &zero1, Leg { steps: 0, ..from });
        assert!(loaded.state == saved.state, "{name}: what was loaded is not what was saved");
        let resumed = task.run(2, &zero1, from);
        close(&resumed, &whole.losses[3..], task.dtype, &name);
        // The same ranks go on bitwise identically, in any placement.
        let resumed = task.run(4, &zero1, from);
        assert_eq!(resumed.losses, whole.losses[3..], "{name}");
        assert!(resumed.state == whole.state, "{name}: other state");
    }
}
