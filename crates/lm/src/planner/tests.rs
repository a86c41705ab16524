//! Formulas against figures by hand, traffic against what engines count, and properties of predictions.

use std::collections::BTreeMap;

use oarlock_comm::{Communicator, Link, Recorded};
use oarlock_config::config::{Lifetime, PartitionMethod};
use oarlock_engine::nn::{Wrap, parameters};
use oarlock_engine::parallel::pipeline::unit_weights;
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_engine::shard::{Placements, ShardingConfig};
use oarlock_engine::{Accelerator, AcceleratorConfig, Device, optim};
use oarlock_tensor::DType;
use proptest::prelude::*;

use super::choice::Choice;
use super::facts::MicroBatch;
use super::network::{Call, CallKind, Over, Ranks};
use super::pipeline::{Part, passes};
use super::step::{Account, Group, Step, Unit};
use super::*;
use crate::data::Batch;
use crate::estimate::{ModelSize, Settings, Stage, StepShape, decoder_step};
use crate::model::{Decoder, DecoderConfig};
use crate::train::objective::dry_pass;
use crate::train::{NextToken, train_step};

fn call(operation: CallKind, bytes: u64) -> Call {
    Call { operation, bytes, over: Over::Shard }
}

#[test]
fn bytes_between_machines_are_those_counted_by_hand() {
    // 2 machines of 2 ranks: what 2 ranks own, of 250 bytes each, goes to the other machine once.
    let four = Ranks { machines: 2, per_machine: 2, groups: 1, sum_bytes: 4 };
    assert_eq!(four.sent(call(CallKind::AllGather, 1000)), 500.0);
    assert_eq!(four.sent(call(CallKind::ReduceScatter, 1000)), 500.0);
    assert_eq!(four.sent(call(CallKind::AllReduce, 1000)), 1000.0);
    // Sums of 16-bit values are f32 until all are added.
    let narrow = Ranks { sum_bytes: 2, ..four };
    assert_eq!(narrow.sent(call(CallKind::ReduceScatter, 1000)), 1000.0);
    assert_eq!(narrow.sent(call(CallKind::AllReduce, 1000)), 1500.0);
    assert_eq!(narrow.sent(call(CallKind::AllGather, 1000)), 500.0);
    // Of 3 ranks each sends its sixth to each of the 3 others.
    let six = Ranks { per_machine: 3, ..four };
    assert_eq!(six.sent(call(CallKind::AllGather, 1200)), 1800.0);
    // Each of 2 ranks sends its 8 bytes to each of 2 others.
    assert_eq!(four.sent(call(CallKind::Values, 8)), 32.0);
    // One rank a machine: what a rank sends, as a communicator counts it.
    for n in 2..6 {
        let ranks = Ranks { machines: n, per_machine: 1, groups: 1, sum_bytes: 4 };
        for kind in [CallKind::AllGather, CallKind::ReduceScatter, CallKind::AllReduce] {
            let sent = 12_000.0 * kind.operation().sent_share(n);
            assert!((ranks.sent(call(kind, 12_000)) - sent).abs() < 1e-6, "{kind:?} of {n}");
        }
    }
    // Inside of a machine nothing is sent to others.
    let inside = Ranks { machines: 1, per_machine: 4, groups: 1, sum_bytes: 4 };
    assert_eq!(inside.sent(call(CallKind::AllReduce, 1000)), 0.0);
    let network = Network { latency: 0.001, bandwidth: 1e6, overhead: 0.0 };
    let time = |kind| four.time(call(kind, 500_000), network, Line::default());
    assert_eq!(time(CallKind::ReduceScatter), 0.002 + 0.25);
    assert_eq!(time(CallKind::AllReduce), 0.003 + 0.5);
    let message = Line { fixed: 0.1, each: 1e-3 };
    // A rank copies the quarters of 4000 bytes of 3 others.
    assert!((inside.time(call(CallKind::AllGather, 4000), network, message) - (0.2 + 3.0)).abs() < 1e-12);
}

#[test]
fn a_pipeline_is_idle_as_the_formula_says() {
    for n_stages in 1..5 {
        for (chunks, n_micro) in [(1, 1), (1, 3), (1, 8), (2, n_stages), (2, 3 * n_stages)] {
            let part = Part { forward: 1.0 / chunks as f64, backward: 2.0 / chunks as f64 };
            let passed = passes(n_stages, &vec![part; n_stages * chunks], n_micro, &|_, _| 0.0).unwrap();
            let (s, v, m) = (n_stages as f64, chunks as f64, n_micro as f64);
            let idle = 1.0 - 3.0 * m / passed.seconds;
            let expected = (s - 1.0) / (v * m + s - 1.0);
            assert!(
                (idle - expected).abs() < 1e-9,
                "{n_stages} stages, {n_micro} x {chunks}: {idle}, {expected}"
            );
        }
    }
    // Of unequal stages the slowest sets the pace, and a message holds up both of its stages.
    let parts = [Part { forward: 1.0, backward: 2.0 }, Part { forward: 2.0, backward: 4.0 }];
    assert_eq!(passes(2, &parts, 4, &|_, _| 0.0).unwrap().seconds, 4.0 * 6.0 + 3.0);
    let passed = passes(2, &[parts[0]; 2], 1, &|_, _| 0.5).unwrap();
    assert_eq!((passed.seconds, passed.messages), (7.0, 1));
    assert!(
        passes(2, &[parts[0]; 4], 3, &|_, _| 0.0).is_err(),
        "interleaved schedules take multiples of the stages"
    );
}

/// A step of `n` units of 100 f32 elements each, which take a second forward and two backward.
fn plain_step(n: usize, micro_batches: usize, overlaps: bool) -> Step {
    let unit = |group| Unit { forward: 1.0, backward: 2.0, uses: vec![group], completes: vec![group] };
    Step {
        units: (0..n).map(unit).collect(),
        groups: vec![Group { elems: 100, element_bytes: 4, is_trained: true, is_gathered: false }; n],
        micro_batches,
        shards_gradients: false,
        shards_optimizer: true,
        sharding: ShardingConfig { prefetch_elems: 100, max_live_elems: 1000, ..ShardingConfig::default() },
        bucket_elems: 1000,
        replicas_of: None,
        overlaps,
        n_blocks: n,
        accumulate: 0.0,
        norm: 0.5,
        update: 0.25,
        rest: 0.125,
    }
}

/// Half a second for each collective on a region.
fn half(call: Call) -> f64 {
    if call.operation == CallKind::Values { 0.0 } else { 0.5 }
}

fn nothing(_: Call) -> f64 {
    0.0
}

#[test]
fn collectives_take_time_from_what_is_computed_beside_them_and_not_from_waiting() {
    let tenth = |call: Call| half(call) / 5.0;
    let ddp = Step { shards_optimizer: false, ..plain_step(4, 1, true) };
    // Of four reductions three are beside a backward pass; the last is waited for.
    let longer = ddp.run(&half, &tenth).seconds - ddp.run(&half, &nothing).seconds;
    assert!((longer - 0.3).abs() < 1e-12, "{longer}");
    let blocking = Step { overlaps: false, ..ddp };
    assert_eq!(blocking.run(&half, &tenth), blocking.run(&half, &nothing));
}

#[test]
fn a_step_takes_the_longer_of_computation_and_communication_where_they_overlap() {
    let seconds = |step: &Step| step.run(&half, &nothing).seconds;
    let (passes, rest) = (4.0 * 3.0, 0.875);
    // ZeRO-1: 4 reductions after the passes, and 4 gathers after the update.
    let blocking = plain_step(4, 1, false).run(&half, &nothing);
    assert_eq!(blocking.seconds, passes + 2.0 + rest + 2.0);
    assert_eq!((blocking.communication, blocking.exposed), (4.0, 4.0));
    // What is frozen is neither reduced nor gathered.
    let mut frozen = plain_step(4, 1, false);
    frozen.groups[2].is_trained = false;
    assert_eq!(frozen.run(&half, &nothing).seconds, passes + 1.5 + rest + 1.5);
    // Three reductions are hidden behind the backward passes of other units; the last is not. Of the gathers the first is not,
    // but for the rest of the step before.
    assert_eq!(seconds(&plain_step(4, 1, true)), passes + 0.5 + rest + 0.5 - 0.125);
    // DDP reduces everywhere, once for two micro-batches, and has nothing to show afterward.
    let ddp = Step { shards_optimizer: false, ..plain_step(4, 2, false) };
    assert_eq!(seconds(&ddp), 2.0 * passes + 2.0 + rest);
    // ZeRO-2 reduces in each of them, and adds what it has received.
    let zero2 = Step { shards_gradients: true, accumulate: 0.01, ..plain_step(4, 2, false) };
    assert_eq!(seconds(&zero2), 2.0 * (passes + 2.0 + 4.0) + rest + 2.0);
    // ZeRO-3 gathers forward and backward; the last unit stays from forward to backward.
    let gathered = |step: Step| {
        let groups = step.groups.iter().map(|group| Group { is_gathered: true, ..*group }).collect();
        Step { groups, shards_gradients: true, ..step }
    };
    let zero3 = gathered(plain_step(4, 1, false)).run(&half, &nothing);
    let gathers = zero3.calls.iter().filter(|call| call.operation == CallKind::AllGather).count();
    assert_eq!((gathers, zero3.seconds), (7, passes + 3.5 + 2.0 + rest));
    // Of all of that, two collectives are not hidden: the first gather and the last reduction.
    assert_eq!(seconds(&gathered(plain_step(4, 1, true))), passes + 1.0 + rest);
    // A link that is slower than the computation sets the pace: 7 gathers and 4 reductions one after the other, of which the
    // last waits for the last unit.
    let slow = |call: Call| 20.0 * half(call);
    let bound = gathered(plain_step(4, 1, true)).run(&slow, &nothing);
    assert!((110.0..110.0 + passes).contains(&(bound.seconds - rest)), "{bound:?}");
    // FSDP's SHARD_GRAD_OP gathers once.
    let mut kept = gathered(plain_step(4, 1, false));
    kept.sharding.lifetime = Lifetime::ForwardToBackward;
    assert_eq!(seconds(&kept), passes + 2.0 + 2.0 + rest);
}

fn llama(hidden: usize, n_layers: usize, vocab: usize, len: usize) -> Decoder {
    let config = DecoderConfig::llama(vocab, hidden, n_layers, len).with_layers(|layer| {
        layer.mlp.intermediate_size = hidden * 3;
        let attention = &mut layer.attention;
        (attention.n_heads, attention.n_kv_heads, attention.head_dim) = (hidden / 16, hidden / 32, 16);
    });
    Decoder::new(DecoderConfig { tie_embeddings: true, ..config }, len).unwrap()
}

const LEN: usize = 16;

/// Facts of a model of `n_layers` layers, with 16 sequences in a step.
fn facts(dtype: DType, hidden: usize, n_layers: usize, persistence_elems: usize) -> Facts {
    let model = llama(hidden, n_layers, 200, LEN);
    let device = Device::dry(oarlock_tensor::cpu::Isa::detect(), oarlock_tensor::Par::threads(1).unwrap());
    let mut micro_batches = Vec::new();
    for recompute in [false, true] {
        for batch in [1, 2, 4] {
            let shape =
                StepShape { batch, len: LEN, documents: false, eval_batch: None, longest: None, parts: 1 };
            let mut model = llama(hidden, n_layers, 200, LEN);
            if recompute {
                model.set_recompute(oarlock_config::config::Recompute::Units { every: 1 });
            }
            let run = decoder_step(&model, dtype, &device, shape, &dry_pass(&NextToken::PLAIN)).unwrap();
            micro_batches.push(MicroBatch { batch, recompute, run, program: 1 << 20 });
        }
    }
    Facts {
        size: ModelSize::of(&model, dtype),
        settings: Settings {
            sharding: ShardingConfig { dtype, persistence_elems, ..ShardingConfig::default() },
            ..Settings::new(dtype, Stage::Optimizer, 1)
        },
        written: choice(Stage::Optimizer, 2, 4),
        global_batch: 16,
        len: LEN,
        hidden_size: hidden,
        steps: Some(1000),
        ranks: 2,
        bucket_elems: 500_000_000,
        partition: PartitionMethod::Parameters,
        unit_weights: unit_weights(&model).unwrap(),
        micro_batches,
    }
}

fn choice(stage: Stage, batch: usize, accumulation: usize) -> Choice {
    Choice { stage, by_machine: false, stages: 1, recompute: false, batch, accumulation }
}

/// Round numbers: a sequence takes 10 ms in the blocks and 2 ms in the ends, forward, and twice that backward.
fn profile(ranks: usize) -> Profile {
    let halves = |x: f64| Halves { ends: 2e-3 * x, blocks: 10e-3 * x };
    let of = |recompute: bool| {
        move |batch: usize| PassTimes {
            batch,
            recompute,
            forward: halves(batch as f64),
            backward: halves(batch as f64 * if recompute { 3.0 } else { 2.0 }),
        }
    };
    let line = |fixed: f64, each: f64| Line { fixed, each };
    Profile {
        subject: Subject {
            model: "llama".into(),
            data: "16 tokens".into(),
            training: "Full, AdamW".into(),
            dtype: "f32".into(),
            ranks,
            threads: 1,
            kernels: "portable".into(),
        },
        passes: [1, 2, 4].into_iter().flat_map(|batch| [of(false)(batch), of(true)(batch)]).collect(),
        norm: line(1e-5, 1e-10),
        update: line(1e-5, 1e-9),
        accumulate: 1e-10,
        reduce_scatter: line(1e-5, 1e-9),
        all_reduce: line(1e-5, 2e-9),
        message: line(2e-5, 1e-10),
        rest: 1e-4,
        watts: Some(50.0),
    }
}

fn cluster(machines: usize, ranks: usize) -> Cluster {
    let network = (machines > 1).then_some(Network { latency: 1e-4, bandwidth: 125e6, overhead: 0.0 });
    Cluster { machines, ranks, network, memory: 1 << 30 }
}

fn predicted(facts: &Facts, cluster: &Cluster, choice: Choice) -> Prediction {
    predict(facts, &profile(cluster.ranks), cluster, choice, Some(50.0)).unwrap()
}

/// What each rank of a real training step calls, with what is sharded.
fn counted(
    options: ShardingConfig,
    ranks: usize,
    n_layers: usize,
    micro: usize,
) -> BTreeMap<(&'static str, u64), u64> {
    let rank = |comm: Communicator| {
        // Each has memory of its own, and collectives proceed beside the passes, as over MPI and Gloo.
        let link = Link { latency: std::time::Duration::ZERO, bandwidth: f64::INFINITY };
        let comm = comm.slowed(link).in_background();
        let config = AcceleratorConfig { shard: options.clone(), threads: Some(1), ..Default::default() };
        let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
        let model = llama(64, n_layers, 200, LEN);
        let adamw = optim::adamw(&model).weight_decay(0.0);
        let (model, optimizer) = accelerator.prepare((model, adamw)).unwrap();
        let ids: Vec<i32> = (0..LEN).map(|i| i as i32).collect();
        let labels = ids.clone();
        let batch = Batch { input_ids: ids, labels, rows: 1, len: LEN, n_targets: LEN, ..Batch::default() };
        comm.record(Recorded::default());
        let window = vec![batch; micro];
        train_step(&accelerator, &NextToken::PLAIN, &model, &optimizer, &window, 1.0, &mut PhaseTimer::new())
            .unwrap();
        // Those that a step has begun to gather are there when somebody looks at them.
        parameters(model.module()).iter().for_each(|named| drop(named.param.weight()));
        let recorded = comm.recorded();
        comm.finish();
        recorded.into_iter().map(|one| ((one.operation.name(), one.bytes), one.calls)).collect()
    };
    oarlock_comm::shm::on_threads(ranks, rank).unwrap().pop().unwrap()
}

/// The operation of a few values.
const VALUES: &str = "all_reduce_f64";

#[test]
fn the_traffic_of_a_step_is_what_engines_count() {
    let (ranks, n_layers) = (2, 3);
    let (once, kept) = (Lifetime::OneUse, Lifetime::ForwardToBackward);
    let layers = || Wrap::Transformer(vec!["LlamaDecoderLayer".to_owned()]);
    for (dtype, stage, placements, persistence, lifetime, overlap, reduce_dtype, wrap) in [
        (DType::F32, Stage::Whole, Placements::WHOLE, 0, once, true, DType::F32, Wrap::Declared),
        (DType::BF16, Stage::Optimizer, Placements::OPTIMIZER, 0, once, true, DType::F32, Wrap::Declared),
        (DType::F32, Stage::Optimizer, Placements::OPTIMIZER, 0, once, false, DType::BF16, Wrap::Declared),
        (DType::BF16, Stage::Gradients, Placements::GRADIENTS, 0, once, true, DType::F32, Wrap::Declared),
        (DType::F32, Stage::Parameters, Placements::PARAMETERS, 3000, once, true, DType::F32, Wrap::Declared),
        (DType::BF16, Stage::Parameters, Placements::PARAMETERS, 0, kept, false, DType::F32, Wrap::Declared),
        // What no unit holds is reduced once a step.
        (DType::F32, Stage::Gradients, Placements::GRADIENTS, 0, once, true, DType::F32, layers()),
        (DType::F32, Stage::Parameters, Placements::PARAMETERS, 0, once, false, DType::F32, layers()),
    ] {
        for micro in [1, 2] {
            let options = ShardingConfig {
                dtype,
                placements,
                persistence_elems: persistence,
                lifetime,
                overlap,
                reduce_dtype: Some(reduce_dtype),
                prefetch_elems: 20_000,
                max_live_elems: 60_000,
                reduce_bucket_elems: 10_000,
                wrap: wrap.clone(),
                ..ShardingConfig::default()
            };
            let mut facts = facts(dtype, 64, n_layers, persistence);
            facts.size = ModelSize::wrapped(&llama(64, n_layers, 200, LEN), dtype, &wrap);
            let settings = &mut facts.settings;
            settings.sharding = options.clone();
            facts.bucket_elems = 10_000;
            let prediction = predicted(&facts, &cluster(ranks, 1), choice(stage, 1, micro));
            let mut calls = BTreeMap::new();
            for Call { operation, bytes, .. } in &prediction.calls {
                // Numbers count as themselves, not as their bytes.
                let bytes = if *operation == CallKind::Values { 0 } else { *bytes };
                *calls.entry((operation.operation().name(), bytes)).or_insert(0) += 1;
            }
            let mut counted = counted(options, ranks, n_layers, micro);
            let values: u64 =
                counted.iter().filter(|((operation, _), _)| *operation == VALUES).map(|(_, n)| n).sum();
            counted.retain(|(operation, _), _| *operation != VALUES);
            counted.insert((VALUES, 0), values);
            assert_eq!(calls, counted, "{stage:?} in {dtype}, {wrap:?}, {micro} micro-batch(es)");
        }
    }
}

#[test]
fn predictions_are_those_computed_by_hand() {
    let facts = facts(DType::F32, 64, 4, 0);
    // One rank: 8 micro-batches of 2 sequences, each 24 ms forward and 48 ms backward.
    let alone = predicted(&facts, &cluster(1, 1), choice(Stage::Optimizer, 2, 8));
    let elems: usize = facts.size.unit_groups(None).iter().flatten().map(|group| group.elems).sum();
    let expected = 8.0 * 72e-3 + (1e-5 + 1e-10 * elems as f64) + (1e-5 + 1e-9 * elems as f64) + 1e-4;
    assert!((alone.seconds - expected).abs() < 1e-9, "{} {expected}", alone.seconds);
    assert!((alone.tokens_per_second - 256.0 / expected).abs() < 1e-6);
    assert_eq!((alone.sent, alone.exposed), (0.0, 0.0));
    assert_eq!(alone.to_the_end, Some(1000.0 * alone.seconds));
    assert_eq!(alone.energy, Some(50.0 * 1000.0 * alone.seconds));
    // The passes take as long where no part of the model is a unit.
    let size = ModelSize::wrapped(&llama(64, 4, 200, LEN), DType::F32, &Wrap::None);
    let whole = predicted(&Facts { size, ..facts.clone() }, &cluster(1, 1), choice(Stage::Optimizer, 2, 8));
    assert!((whole.seconds - alone.seconds).abs() < 1e-4, "{} {}", whole.seconds, alone.seconds);
    // Two machines halve the passes; their gradients go over the link once, and so do the new weights.
    let two = predicted(&facts, &cluster(2, 1), choice(Stage::Optimizer, 2, 4));
    let values =
        8.0 * facts.size.unit_groups(None).iter().flatten().map(|group| group.n_blocks).sum::<usize>() as f64;
    assert_eq!(two.sent, 4.0 * elems as f64 + values + 16.0);
    assert!(two.seconds > 4.0 * 72e-3 && two.seconds < alone.seconds);
    assert_eq!(two.energy, Some(2.0 * 50.0 * 1000.0 * two.seconds));
    // Recomputation takes the forward pass of the blocks once more.
    let again =
        predicted(&facts, &cluster(1, 1), Choice { recompute: true, ..choice(Stage::Optimizer, 2, 8) });
    assert!((again.seconds - alone.seconds - 8.0 * 24e-3).abs() < 1e-9);
    assert!(again.memory < alone.memory);
}

#[test]
fn a_pipeline_costs_its_slowest_stage_and_the_idle_time() {
    let facts = facts(DType::F32, 64, 4, 0);
    let one = predicted(&facts, &cluster(1, 1), choice(Stage::Optimizer, 1, 16));
    let piped = |accumulation, batch| {
        let choice = Choice { stages: 2, ..choice(Stage::Optimizer, batch, accumulation) };
        predicted(&facts, &cluster(1, 2), choice)
    };
    // It cannot be faster than half of what one rank takes, and more micro-batches leave less idle.
    let (many, few) = (piped(16, 1), piped(4, 4));
    assert!(many.seconds > one.seconds / 2.0 && many.idle > 0.0);
    assert!(few.idle / few.seconds > many.idle / many.seconds);
    assert!(many.memory < one.memory, "a stage holds a part of the state");
    // Between machines activations and their gradients are sent, 16 of 16 x 64 f32, and the gradients of the embedding of 200
    // tokens, which both stages hold.
    let choice = Choice { stages: 2, ..choice(Stage::Optimizer, 1, 16) };
    let apart = predicted(&facts, &cluster(2, 1), choice);
    assert_eq!(apart.sent, 2.0 * 16.0 * (16 * 64 * 4) as f64 + (200 * 64 * 4) as f64);
}

#[test]
fn shards_take_less_memory_than_what_they_are_shards_of() {
    let facts = facts(DType::BF16, 64, 12, 0);
    let mut facts = facts;
    facts.settings.sharding.prefetch_elems = 0;
    for cluster in [cluster(1, 4), cluster(4, 1), cluster(2, 2)] {
        let memory = Stage::ALL.map(|stage| predicted(&facts, &cluster, choice(stage, 1, 4)).memory);
        assert!(memory.windows(2).all(|two| two[1] <= two[0]), "{cluster:?}: {memory:?}");
    }
    let small = Cluster { memory: 1 << 20, ..cluster(1, 2) };
    assert!(!predicted(&facts, &small, choice(Stage::Gradients, 1, 8)).fits);
}

#[test]
fn all_choices_have_the_batch_of_the_configuration_and_one_is_recommended() {
    let facts = facts(DType::F32, 64, 4, 0);
    for cluster in [cluster(1, 1), cluster(1, 2), cluster(2, 2), cluster(4, 1)] {
        let all = choices(&facts, &cluster, &[1, 2, 4]);
        let sequences = |one: &Choice| one.batch * one.accumulation * cluster.n_ranks() / one.stages;
        assert!(all.iter().all(|one| sequences(one) == 16), "{cluster:?}");
        assert!(all.iter().enumerate().all(|(index, one)| !all[..index].contains(one)));
        assert_eq!(all.iter().any(|one| one.by_machine), cluster == self::cluster(2, 2));
        let of = |one: &Choice| predicted(&facts, &cluster, *one);
        let predictions: Vec<Prediction> = all.iter().map(of).collect();
        let best = recommended(&facts, &predictions).unwrap();
        let fastest = predictions.iter().map(|one| one.seconds).fold(f64::INFINITY, f64::min);
        assert!(best.seconds <= 1.02 * fastest && !best.choice.recompute, "{best:?}");
    }
    // Three ranks cannot divide 16 sequences, but can be stages, and seven are more stages than there are units.
    assert!(choices(&facts, &cluster(1, 3), &[1, 2, 4]).iter().all(|one| one.stages == 3));
    assert_eq!(choices(&facts, &cluster(1, 7), &[1, 2, 4]), []);
    // What is written stays where nothing is better by more than can be predicted.
    let same = predicted(&facts, &cluster(1, 2), facts.written);
    let other = Prediction {
        choice: choice(Stage::Whole, 2, 4),
        seconds: same.seconds * 0.99,
        memory: 1,
        ..same.clone()
    };
    assert_eq!(recommended(&facts, &[other.clone(), same.clone()]), Some(&same));
    let better = Prediction { seconds: same.seconds * 0.9, ..other };
    assert_eq!(recommended(&facts, &[better.clone(), same.clone()]), Some(&better));
    assert_eq!(recommended(&facts, &[Prediction { fits: false, ..same }]), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A link that is no slower in any way never makes a step slower, whatever is chosen.
    #[test]
    fn a_better_link_is_never_slower(
        stage in 0usize..4, overlap in any::<bool>(), per_machine in 1usize..3, latency in 0.0..0.01f64,
        bandwidth in 1e5..1e10f64, factor in 1.0..100.0f64,
    ) {
        let mut facts = SMALL.with(Clone::clone);
        facts.settings.sharding.overlap = overlap;
        let slow = cluster(2, per_machine);
        let with = |network: Network| Cluster { network: Some(network), ..slow };
        let choice = choice(Stage::ALL[stage], 2, 8 / (2 * per_machine));
        let seconds = |network| predicted(&facts, &with(network), choice).seconds;
        let first = seconds(Network { latency, bandwidth, overhead: 1e-10 });
        let (wider, nearer) = (bandwidth * factor, latency / factor);
        let wider = seconds(Network { latency, bandwidth: wider, overhead: 1e-10 });
        let nearer = seconds(Network { latency: nearer, bandwidth, overhead: 1e-10 });
        prop_assert!(wider <= first + 1e-12 && nearer <= first + 1e-12);
        // Nor is it ever faster than the computation, or slower than everything one after the other.
        let Prediction { communication, seconds, exposed, .. } =
            predicted(&facts, &with(Network { latency, bandwidth, overhead: 1e-10 }), choice);
        prop_assert!(exposed <= communication + 1e-12);
        prop_assert!(seconds >= exposed && seconds >= choice.accumulation as f64 * 72e-3);
    }

    /// Lines go through what they are drawn through, as far as times grow.
    #[test]
    fn lines_never_fall(x in 1.0..1e6f64, more in 1.0..1e6f64, at_x in 0.0..1.0f64, at_y in 0.0..1.0f64) {
        let line = Line::through((x, at_x), (x + more, at_y));
        prop_assert!(line.fixed >= 0.0 && line.each >= 0.0);
        prop_assert!((line.at(x + more) - at_y).abs() <= 1e-9);
        if at_x <= at_y && at_x * (x + more) >= at_y * x {
            prop_assert!((line.at(x) - at_x).abs() <= 1e-9);
        }
    }
}

thread_local! {
    static SMALL: Facts = facts(DType::F32, 64, 3, 0);
}

#[test]
fn a_profile_is_read_as_it_was_written_and_no_other_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profile.json");
    let profile = profile(2);
    profile.save(&path).unwrap();
    assert_eq!(Profile::load(&path, &profile.subject).unwrap(), profile);
    let other = Subject { ranks: 4, dtype: "bf16".into(), ..profile.subject.clone() };
    let error = Profile::load(&path, &other).unwrap_err().to_string();
    assert!(error.contains("dtype: f32, not bf16; ranks: 2, not 4"), "{error}");
    let negative = Profile { rest: -1.0, ..profile.clone() };
    negative.save(&path).unwrap();
    assert!(Profile::load(&path, &profile.subject).unwrap_err().to_string().contains("at least 0"));
    std::fs::write(&path, "{}").unwrap();
    let error = Profile::load(&path, &profile.subject).unwrap_err().to_string();
    assert!(error.contains("expected a profile of `oarlock plan`"), "{error}");
}

#[test]
fn an_account_of_nothing_is_nothing() {
    let step = Step { norm: 0.0, update: 0.0, rest: 0.0, ..plain_step(0, 1, true) };
    let Account { seconds, exposed, .. } = step.run(&half, &nothing);
    assert_eq!((seconds, exposed), (0.0, 0.0));
}
