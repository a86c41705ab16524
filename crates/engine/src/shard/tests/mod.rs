//! What moves in a step, how much stays in memory, and what happens where ranks do not do the same.

mod experts;
mod one_bit;
mod overlap;
mod quantized;
mod rules;

use oarlock_comm::{Communicator, Operation, shm};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::difference::largest_difference;
use oarlock_tensor::ops::optimizer::Rule;
use oarlock_tensor::{DType, Device, Par, Tape, Tensor, UnitHook, ops};

use crate::nn::{Linear, Module, NamedParam, Unit, Visitor};
use crate::optim::OptimizerConfig;
use crate::shard::placement::{on_device, updates_beside};
use crate::shard::{
    Engine, Gather, Lifetime, ParamGroup, Placements, SeededInit, ShardingConfig, Untouched, check_sharding,
};

const DIM: usize = 96;

/// Units in a row, any of which a step may leave out; their weights are as many blocks as ranks can divide.
struct Chain {
    device: Device,
    links: Vec<Unit<Linear>>,
    /// The weights of link 0 again.
    tied: Option<Unit<Linear>>,
}

impl Chain {
    fn new(n: usize, tied: bool) -> Chain {
        let links: Vec<_> = (0..n).map(|_| Unit::new(Linear::normal(DIM, DIM, true, 0.1).unwrap())).collect();
        let tied = tied.then(|| Unit::new(Linear::with_weight(links[0].module().weight.clone())));
        let device = Device::cpu(Isa::detect(), Par::threads(1).unwrap());
        Chain { device, links, tied }
    }

    /// The mean of the squares of what comes out of the links that `uses` lets through.
    fn loss(&self, x: &Tensor, uses: impl Fn(usize) -> bool) -> Tensor {
        let mut x = x.clone();
        for (index, link) in self.links.iter().enumerate() {
            if uses(index) {
                x = link.run(&x, |link| link.forward(&x)).unwrap();
            }
        }
        if let Some(tied) = &self.tied {
            x = tied.run(&x, |link| link.forward(&x)).unwrap();
        }
        ops::mean_all(&ops::mul(&x, &x).unwrap()).unwrap()
    }
}

impl Module for Chain {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("links", &self.links);
        visitor.child("tied", &self.tied);
    }
}

fn on_ranks<T: Send>(n: usize, f: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    shm::on_threads(n, |comm| f(&comm)).unwrap()
}

fn engine(model: &Chain, comm: &Communicator, options: ShardingConfig) -> Engine {
    engine_with(model, comm, options, OptimizerConfig::default().rule)
}

fn engine_with(model: &Chain, comm: &Communicator, options: ShardingConfig, rule: Rule) -> Engine {
    let (param_group, role) =
        (&|named: &NamedParam| usize::from(named.param.shape().sizes().len() < 2), &OptimizerConfig::role);
    let mut engine = Engine::new(model, comm, &model.device, options, rule, param_group, role).unwrap();
    engine.initialize(&mut SeededInit::new(1, &model.device)).unwrap();
    engine
}

/// The hyperparameters of the two parameter groups of a training run.
fn hyperparameters(rule: Rule) -> Vec<ParamGroup> {
    [0.1, 0.0].map(|weight_decay| ParamGroup { rule: rule.clone(), lr: 1e-2, weight_decay }).to_vec()
}

fn step(engine: &mut Engine) -> f64 {
    let norm = engine.grad_norm().unwrap().norm;
    engine.step(&hyperparameters(engine.rule().clone()), 1.0).unwrap();
    norm
}

fn input(salt: usize, device: &Device) -> Tensor {
    let values: Vec<f32> = (0..8 * DIM).map(|i| ((i * 37 + salt * 11) % 101) as f32 / 50.0 - 1.0).collect();
    Tensor::from_slice(&values, [8, DIM], device).unwrap()
}

fn backward(engine: &Engine, model: &Chain, salt: usize, uses: impl Fn(usize) -> bool) {
    backward_from(engine, model, salt, 1.0, uses);
}

fn backward_from(engine: &Engine, model: &Chain, salt: usize, seed: f32, uses: impl Fn(usize) -> bool) {
    let tape = Tape::new();
    let hook: std::sync::Arc<dyn UnitHook> = engine.pass_hook();
    tape.enter_unit(hook);
    let loss = model.loss(&tape.input(&input(salt, &model.device)), uses);
    tape.backward(&loss, seed).unwrap();
}

/// The bits of all master weights that a rank updates.
fn weights(engine: &Engine) -> Vec<(String, usize, Vec<u32>)> {
    let slices = engine.needed_slices().into_iter().filter(|slice| slice.kind == crate::shard::MASTER);
    slices
        .map(|slice| {
            let mut values = vec![0.0; slice.elements.len()];
            engine.read_state(&slice, &mut values).unwrap();
            (slice.name, slice.elements.start, values.into_iter().map(f32::to_bits).collect())
        })
        .collect()
}

/// All placements that move something, with a name.
fn ways() -> Vec<(&'static str, ShardingConfig)> {
    let placed = |placements| ShardingConfig { placements, ..ShardingConfig::default() };
    let copied =
        |placements| ShardingConfig { gather: Gather::Copy, persistence_elems: 0, ..placed(placements) };
    vec![
        ("ZeRO-1", placed(Placements::OPTIMIZER)),
        ("ZeRO-2", placed(Placements::GRADIENTS)),
        ("ZeRO-3", placed(Placements::PARAMETERS)),
        ("FULL_SHARD, copies", copied(Placements::PARAMETERS)),
        ("FULL_SHARD, no prefetch", ShardingConfig { prefetch_elems: 0, ..copied(Placements::PARAMETERS) }),
        (
            "SHARD_GRAD_OP, copies",
            ShardingConfig { lifetime: Lifetime::ForwardToBackward, ..copied(Placements::PARAMETERS) },
        ),
    ]
}

fn of_world(ranks: Vec<Vec<(String, usize, Vec<u32>)>>) -> Vec<(String, usize, Vec<u32>)> {
    let mut all: Vec<_> = ranks.into_iter().flatten().collect();
    all.sort();
    let mut joined: Vec<(String, usize, Vec<u32>)> = Vec::new();
    for (name, start, values) in all {
        match joined.last_mut() {
            Some(last) if last.0 == name && last.2.len() == start => last.2.extend(values),
            Some(last) if last.0 == name && start == 0 => assert_eq!(last.2, values, "{name}: ranks differ"),
            _ => joined.push((name, start, values)),
        }
    }
    joined
}

#[test]
fn ranks_may_leave_out_different_units_and_some_are_never_used() {
    // Rank 0 leaves out link 1, rank 1 link 3 and in its second micro-batch the last; nobody uses link 2.
    let uses = |rank: usize, micro: usize| {
        move |link: usize| match (rank, link) {
            (_, 2) | (0, 1) | (1, 3) => false,
            (1, 5) => micro == 0,
            _ => true,
        }
    };
    let train = |options: &ShardingConfig| {
        let ranks = on_ranks(2, |comm| {
            let model = Chain::new(6, true);
            let mut engine = engine(&model, comm, options.clone());
            let norms: Vec<u64> = (0..4)
                .map(|at| {
                    for micro in 0..2 {
                        backward(&engine, &model, at + 10 * comm.rank(), uses(comm.rank(), micro));
                    }
                    step(&mut engine).to_bits()
                })
                .collect();
            (norms, weights(&engine))
        });
        let norms = ranks[0].0.clone();
        (norms, of_world(ranks.into_iter().map(|rank| rank.1).collect()))
    };
    let whole = train(&ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() });
    let in_place = train(&ShardingConfig { placements: Placements::GRADIENTS, ..ShardingConfig::default() });
    for (way, options) in ways() {
        let expected = if options.placements == Placements::OPTIMIZER { &whole } else { &in_place };
        assert!(train(&options) == *expected, "{way}");
    }
    for (a, b) in whole.1.iter().zip(&in_place.1) {
        let values = |bits: &[u32]| bits.iter().map(|x| f32::from_bits(*x)).collect::<Vec<_>>();
        assert!(largest_difference(&values(&a.2), &values(&b.2)).unwrap() < 1e-5, "{}", a.0);
    }
}

#[test]
fn frozen_parameters_stay_as_they_are_and_have_no_state() {
    let train = |options: &ShardingConfig| {
        let ranks = on_ranks(2, |comm| {
            let model = Chain::new(3, false);
            model.links[1].module().weight.freeze();
            let mut engine = engine(&model, comm, options.clone());
            let before = weights(&engine);
            for at in 0..3 {
                backward(&engine, &model, at + 10 * comm.rank(), |_| true);
                step(&mut engine);
            }
            let after = weights(&engine);
            for (before, after) in before.iter().zip(&after) {
                assert_eq!(before == after, before.0 == "links.1.weight", "{}", before.0);
            }
            let frozen = engine.needed_slices().into_iter().filter(|slice| slice.name == "links.1.weight");
            assert!(frozen.into_iter().all(|slice| slice.kind == crate::shard::MASTER));
            after
        });
        of_world(ranks)
    };
    let whole = train(&ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() });
    for (way, options) in ways() {
        assert!(train(&options) == whole, "{way}");
    }
}

#[test]
fn frozen_weights_do_not_travel_again_after_a_step() {
    for (way, options) in ways().into_iter().take(3) {
        let gathers = on_ranks(2, |comm| {
            let model = Chain::new(3, false);
            model.links[1].module().weight.freeze();
            let mut engine = engine(&model, comm, options.clone());
            let count =
                || comm.traffic().iter().find(|t| t.operation == Operation::AllGather).map(|t| t.calls);
            let before = count().unwrap();
            backward(&engine, &model, 0, |_| true);
            step(&mut engine);
            weights(&engine);
            count().unwrap() - before
        });
        // Two whole links, and the bias of the one between.
        assert_eq!(gathers, [3, 3], "{way}");
    }
}

#[test]
fn a_step_waits_for_a_save_also_where_it_changes_nothing() {
    for (way, options) in ways().into_iter().take(3) {
        for frozen in [true, false] {
            let ranks = on_ranks(2, |comm| {
                let model = Chain::new(3, false);
                if frozen {
                    model.links[2].module().weight.freeze();
                }
                let options = ShardingConfig { untouched: Untouched::Skip, ..options.clone() };
                let mut engine = engine(&model, comm, options);
                let before = weights(&engine);
                backward(&engine, &model, 0, |link| link < 2);
                let mut snapshot = engine.snapshot();
                // The last unit, which the step leaves alone, is read last.
                let save = std::thread::spawn(move || {
                    let mut saved = Vec::new();
                    for unit in 0..snapshot.units() {
                        for slice in snapshot.slices(unit) {
                            let mut bits: Vec<u32> = Vec::new();
                            let shown = snapshot.with_bytes(&slice, &mut |bytes| {
                                std::thread::sleep(std::time::Duration::from_millis(4));
                                bits.extend(
                                    bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())),
                                );
                                Ok(())
                            });
                            shown.unwrap();
                            if slice.kind == crate::shard::MASTER {
                                saved.push((slice.name, slice.elements.start, bits));
                            }
                        }
                        snapshot.release(unit);
                    }
                    saved
                });
                let stepped = engine
                    .step(&hyperparameters(engine.rule().clone()), 1.0)
                    .map_err(|error| error.to_string());
                (stepped, before, save.join().unwrap())
            });
            for (stepped, before, saved) in ranks {
                assert_eq!(stepped, Ok(()), "{way}, frozen: {frozen}");
                assert!(saved == before, "{way}, frozen: {frozen}");
            }
        }
    }
}

/// Collectives that a step of `micro` micro-batches makes: (gathers, reductions).
fn traffic(options: &ShardingConfig, units: usize, micro: usize) -> (u64, u64) {
    let counts = on_ranks(2, |comm| {
        let model = Chain::new(units, false);
        let mut engine = engine(&model, comm, options.clone());
        let count = || {
            let of =
                |operation| comm.traffic().iter().find(|t| t.operation == operation).map_or(0, |t| t.calls);
            let reductions = of(Operation::ReduceScatter) + of(Operation::AllReduce);
            (of(Operation::AllGather), reductions)
        };
        let mut run = || {
            let before = count();
            (0..micro).for_each(|at| backward(&engine, &model, at, |_| true));
            step(&mut engine);
            (count().0 - before.0, count().1 - before.1)
        };
        run();
        run()
    });
    assert_eq!(counts[0], counts[1]);
    counts[0]
}

#[test]
fn the_number_of_collectives_follows_from_the_placement() {
    let (u, m) = (5, 3);
    let all = ways();
    let of =
        |way: &str| traffic(&all.iter().find(|(name, _)| *name == way).unwrap().1, u as usize, m as usize);
    assert_eq!(
        traffic(&ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() }, 5, 3),
        (0, u)
    );
    assert_eq!(of("ZeRO-1"), (u, u));
    assert_eq!(of("ZeRO-2"), (u, m * u));
    assert_eq!(of("ZeRO-3"), (u, m * u));
    // The last unit stays open from forward to backward.
    assert_eq!(of("FULL_SHARD, copies"), (m * (2 * u - 1), m * u));
    assert_eq!(of("FULL_SHARD, no prefetch"), (m * (2 * u - 1), m * u));
    assert_eq!(of("SHARD_GRAD_OP, copies"), (m * u, m * u));
    // The second to last unit as well, if it is used again before so many elements are.
    let full = &all.iter().find(|(name, _)| *name == "FULL_SHARD, copies").unwrap().1;
    let reused = ShardingConfig { reuse_elems: 3 * (DIM * DIM + DIM), ..full.clone() };
    assert_eq!(traffic(&reused, 5, 3), (m * (2 * u - 2), m * u));
}

#[test]
fn what_stays_in_memory_follows_from_the_placement() {
    let (units, unit) = (4, DIM * DIM + DIM);
    let p = units * unit;
    // What ranks own differs by a block at most, and buffers end at a multiple of 64 bytes.
    let near = |found: usize, elem: usize, n: usize| found.abs_diff(elem * n) <= units * (elem * 4096 + 64);
    for (way, options) in ways() {
        for ranks in [1, 2, 4] {
            let found = on_ranks(ranks, |comm| {
                let model = Chain::new(units, false);
                let mut engine = engine(&model, comm, options.clone());
                for at in 0..2 {
                    backward(&engine, &model, at, |_| true);
                    step(&mut engine);
                }
                engine.resident()
            });
            for found in found {
                let copied = options.gather == Gather::Copy;
                let parameters = if copied { p / ranks } else { p };
                assert!(near(found.parameters, 4, parameters), "{way}, {ranks} ranks: {found:?}");
                assert!(near(found.optimizer, 8, p / ranks), "{way}, {ranks} ranks: {found:?}");
                let divided = options.placements.gradients == crate::shard::Placement::Sharded;
                let gradients = if divided { p / ranks } else { p };
                assert!(near(found.gradients, 4, gradients), "{way}, {ranks} ranks: {found:?}");
                assert_eq!(found.leaving, if divided { 4 * unit } else { 0 }, "{way}, {ranks} ranks");
                let windows = match (copied, options.lifetime, options.prefetch_elems) {
                    (false, ..) => 0,
                    (_, Lifetime::OneUse, 0) => 2,
                    _ => units,
                };
                assert!(found.gathered <= windows * 4 * unit, "{way}, {ranks} ranks: {found:?}");
            }
        }
    }
}

#[test]
fn options_that_contradict_themselves_are_refused() {
    let refused = |options: ShardingConfig| {
        let error = check_sharding(&options, 4).unwrap_err().to_string();
        assert!(!error.is_empty());
    };
    let full = || ShardingConfig { placements: Placements::PARAMETERS, ..ShardingConfig::default() };
    refused(ShardingConfig { group: Some(3), ..full() });
    refused(ShardingConfig { group: Some(2), secondary: Some(2), ..full() });
    refused(ShardingConfig { group: Some(2), ..ShardingConfig::default() });
    refused(ShardingConfig { reduce_bucket_elems: 0, ..full() });
    refused(ShardingConfig { dtype: DType::I32, ..full() });
    let offload = || Some(crate::shard::Offload { dir: Some("x".into()), sub_group_elems: 1, buffers: 3 });
    refused(ShardingConfig { offload_params: offload(), placements: Placements::GRADIENTS, ..full() });
    refused(ShardingConfig { offload_optimizer: offload(), placements: Placements::WHOLE, ..full() });
    assert!(check_sharding(&full(), 4).is_ok());
}

#[test]
fn a_cpu_has_in_main_memory_what_is_offloaded_there() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let memory = || Some(crate::shard::Offload::TO_MEMORY);
    let file = Some(crate::shard::Offload { dir: Some("x".into()), ..crate::shard::Offload::TO_MEMORY });
    let options = ShardingConfig {
        offload_optimizer: memory(),
        offload_params: file.clone(),
        ..ShardingConfig::default()
    };
    let on_cpu = on_device(options, &device);
    assert!(on_cpu.offload_optimizer.is_none() && !updates_beside(&on_cpu, &device));
    assert_eq!(on_cpu.offload_params, file);
}

#[test]
fn gradients_reduced_in_16_bits_stay_near() {
    let norms = |placements, reduce_dtype| {
        let options =
            ShardingConfig { placements, reduce_dtype: Some(reduce_dtype), ..ShardingConfig::default() };
        on_ranks(3, |comm| {
            let model = Chain::new(3, false);
            let mut engine = engine(&model, comm, options.clone());
            (0..3)
                .map(|at| {
                    backward(&engine, &model, at + 10 * comm.rank(), |_| true);
                    step(&mut engine)
                })
                .collect::<Vec<f64>>()
        })
        .swap_remove(0)
    };
    let exact = norms(Placements::OPTIMIZER, DType::F32);
    let rounded = norms(Placements::OPTIMIZER, DType::BF16);
    for placements in [Placements::WHOLE, Placements::GRADIENTS, Placements::PARAMETERS] {
        assert_eq!(norms(placements, DType::BF16), rounded, "{placements:?}");
    }
    for (exact, rounded) in exact.iter().zip(&rounded) {
        assert!(exact != rounded && (exact / rounded - 1.0).abs() < 1e-2, "{exact} {rounded}");
    }
}
