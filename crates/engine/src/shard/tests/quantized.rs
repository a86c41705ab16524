//! ZeRO++ against its algorithm in numpy (`bench/golden/make_zero_pp.py`), what ranks send, and what a training run
//! becomes.

use std::time::Duration;

use oarlock_comm::Link;
use oarlock_tensor::Shape;
use oarlock_tensor::cpu::difference::{largest_difference, largest_magnitude};
use serde_json::Value;

use super::*;
use crate::shard::layout::{Grain, Layout};
use crate::shard::{Axis, ParamSlice, Quantized, WeightSource, check_sharding};

const SIZES: [usize; 2] = [3 * 4096 + 100, 5000];

fn values(salt: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + salt * 104_729) % 2003) as f32 / 1000.0 - 1.0).collect()
}

/// Two units y = w + b, whose loss is the sum of factor · y².
struct Net {
    device: Device,
    units: Vec<Unit<Linear>>,
}

impl Net {
    fn new() -> Net {
        let device = Device::cpu(Isa::detect(), Par::threads(1).unwrap());
        let unit = |n| Unit::new(Linear::normal(1, n, true, 0.1).unwrap());
        Net { device, units: SIZES.map(unit).into() }
    }

    fn backward(&self, engine: &Engine, factors: [Vec<f32>; 2]) {
        let tape = Tape::new();
        tape.enter_unit(engine.pass_hook());
        let one = tape.input(&Tensor::from_slice(&[1f32], [1, 1], &self.device).unwrap());
        let term = |(unit, factor): (&Unit<Linear>, Vec<f32>)| {
            let squares = unit.call(&one, |layer, x| {
                let y = layer.forward(x)?;
                ops::mul(&y, &y)
            });
            let factor = Tensor::from_slice(&factor, [1, factor.len()], &self.device).unwrap();
            ops::sum_all(&ops::mul(&squares.unwrap(), &factor).unwrap()).unwrap()
        };
        let terms = self.units.iter().zip(factors).map(term);
        let loss = terms.reduce(|a, b| ops::add(&a, &b).unwrap()).unwrap();
        tape.backward(&loss, 1.0).unwrap();
    }
}

impl Module for Net {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("units", &self.units);
    }
}

/// The first weights of the trajectories.
struct Start;

impl WeightSource for Start {
    fn has(&self, _: &str) -> bool {
        true
    }

    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> crate::Result<()> {
        let unit = usize::from(slice.name.starts_with("units.1"));
        let salt = 7 + 2 * unit + usize::from(slice.name.ends_with("bias"));
        out.copy_from_slice(&values(salt, slice.shape.n_elems())[slice.elements.clone()]);
        Ok(())
    }
}

const SGD: Rule = Rule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false };

/// ZeRO-3 in which everything is gathered.
fn sharded(quantized: Quantized) -> ShardingConfig {
    ShardingConfig {
        placements: Placements::PARAMETERS,
        persistence_elems: 0,
        quantized,
        ..ShardingConfig::default()
    }
}

struct Run {
    net: Net,
    engine: Engine,
    step: usize,
}

impl Run {
    fn new(comm: &Communicator, options: ShardingConfig, freeze: bool) -> Run {
        let net = Net::new();
        if freeze {
            net.units[0].module().weight.freeze();
        }
        net.units.iter().for_each(|unit| unit.unit_run().set_recompute(options.secondary.is_some()));
        let role = &OptimizerConfig::role;
        let mut engine = Engine::new(&net, comm, &net.device, options, SGD, &|_| 0, role).unwrap();
        engine.initialize(&mut Start).unwrap();
        Run { net, engine, step: 0 }
    }

    fn step(&mut self, rank: usize, scale: f32) {
        self.step += 1;
        let factor = |unit: usize| values(31 * unit + 7 * rank + 101 * self.step + 1, SIZES[unit]);
        self.net.backward(&self.engine, [0, 1].map(factor));
        let hyperparameters = [ParamGroup { rule: SGD, lr: 0.03125, weight_decay: 0.0 }];
        self.engine.step(&hyperparameters, scale).unwrap();
    }
}

/// Number of ranks, and how a run of this name holds the model; whether the first weight is frozen.
fn way(name: &str) -> (usize, ShardingConfig, bool) {
    let machines_of = |machine| Quantized { gradients: true, machine: Some(machine), ..Quantized::NONE };
    let weights = Quantized { weights: true, ..Quantized::NONE };
    let (kind, n) = name.split_once(' ').unwrap();
    let n: usize = n.parse().unwrap();
    let options = match kind {
        "qwz" => sharded(weights),
        "frozen" => sharded(Quantized { frozen_weights: true, ..Quantized::NONE }),
        "qgz" => sharded(machines_of(n / 2)),
        _ => ShardingConfig { secondary: Some(2), ..sharded(Quantized { weights: true, ..machines_of(2) }) },
    };
    (n, options, kind == "frozen")
}

/// A parameter: its name, where it begins, its bits.
type Bits = (String, usize, Vec<u32>);

/// The weights after some steps.
fn train(
    comm: &Communicator,
    (n, options, freeze): &(usize, ShardingConfig, bool),
    shown: &[usize],
) -> Vec<Vec<Bits>> {
    let mut run = Run::new(comm, options.clone(), *freeze);
    let steps = 1..=shown.iter().copied().max().unwrap_or(0);
    let after = |step: usize| {
        run.step(comm.rank(), 1.0 / *n as f32);
        shown.contains(&step).then(|| weights(&run.engine))
    };
    steps.filter_map(after).collect()
}

#[test]
fn trajectories_are_those_of_the_algorithm_to_the_bit() {
    let golden: Value =
        serde_json::from_str(include_str!("../../../../oarlock/tests/golden/zero_pp.json")).unwrap();
    let golden = golden.as_object().unwrap();
    assert_eq!(golden.len(), 6);
    for (name, steps) in golden {
        let way = way(name);
        let mut ranks = on_ranks(way.0, |comm| train(comm, &way, &[1, 6, 12]));
        for (at, step) in ["1", "6", "12"].into_iter().enumerate() {
            let found = of_world(ranks.iter_mut().map(|rank| std::mem::take(&mut rank[at])).collect());
            // In the order of names biases come first.
            let order = ["units.0.weight", "units.0.bias", "units.1.weight", "units.1.bias"];
            for (param, expected) in order.iter().zip(steps[step].as_array().unwrap()) {
                let (_, _, bits) = found.iter().find(|(name, ..)| name == param).unwrap();
                for (got, expected) in bits.iter().step_by(997).zip(expected["some"].as_array().unwrap()) {
                    let (got, expected) = (f32::from_bits(*got), expected.as_f64().unwrap() as f32);
                    assert_eq!(got, expected, "{name}, step {step}, {param}");
                }
                let sum = bits
                    .iter()
                    .zip(1u64..)
                    .fold(0u64, |sum, (bits, i)| sum.wrapping_add(u64::from(*bits).wrapping_mul(i)));
                assert_eq!(sum.to_string(), expected["bits"], "{name}, step {step}, {param}: all bits");
            }
        }
    }
}

#[test]
fn bits_are_the_same_over_any_transport_and_for_any_placement_of_copies() {
    let link = Link { latency: Duration::ZERO, bandwidth: 1e12 };
    for name in ["qwz 2", "all 4"] {
        let found = |options: ShardingConfig, change: &(dyn Fn(&Communicator) -> Communicator + Sync)| {
            let way = (way(name).0, options, false);
            let ranks = on_ranks(way.0, |comm| train(&change(comm), &way, &[3]).remove(0));
            of_world(ranks)
        };
        let options = way(name).1;
        let same = |comm: &Communicator| comm.clone();
        let plain = found(options.clone(), &same);
        assert!(found(options.clone(), &same) == plain, "{name}: a second run");
        assert!(
            found(options.clone(), &|comm| comm.clone().slowed(link)) == plain,
            "{name}: no common memory"
        );
        let background = |comm: &Communicator| comm.clone().slowed(link).in_background();
        assert!(found(options.clone(), &background) == plain, "{name}: in the background");
        assert!(
            found(ShardingConfig { prefetch_elems: 0, ..options.clone() }, &background) == plain,
            "{name}: no prefetch"
        );
        assert!(
            found(ShardingConfig { overlap: false, ..options.clone() }, &background) == plain,
            "{name}: no overlap"
        );
        let kept = ShardingConfig { lifetime: Lifetime::ForwardToBackward, ..options.clone() };
        let is_same = found(kept, &same) == plain;
        // What stays from forward to backward is not rounded a second time.
        assert_eq!(is_same, options.secondary.is_none(), "{name}: kept from forward to backward");
    }
}

#[test]
fn all_ranks_see_the_same_rounded_weights() {
    let seen = |quantized: Quantized, dtype: DType| {
        on_ranks(4, |comm| {
            let model = Chain::new(2, false);
            let engine = engine(&model, comm, ShardingConfig { dtype, ..sharded(quantized) });
            let x = ops::cast(&input(1, &model.device), dtype).unwrap();
            let y = model.links[1].run(&x, |link| link.forward(&x)).unwrap();
            drop(engine);
            y.to_f32_vec().unwrap()
        })
    };
    for dtype in [DType::F32, DType::BF16] {
        let plain = seen(Quantized::NONE, dtype);
        let rounded = seen(Quantized { weights: true, ..Quantized::NONE }, dtype);
        assert!(rounded.iter().all(|rank| *rank == rounded[0]) && rounded[0] != plain[0]);
        // Nothing is frozen.
        assert_eq!(seen(Quantized { frozen_weights: true, ..Quantized::NONE }, dtype), plain);
        let off = largest_difference(&rounded[0], &plain[0]).unwrap();
        let largest = largest_magnitude(plain[0].iter().copied()).unwrap();
        assert!(off < 0.02 * largest, "{off} of {largest}");
    }
}

/// What one step covers: bytes of gathers, of exchanges, of reductions.
fn covered(name: &str, options: &ShardingConfig) -> [u64; 3] {
    let (n, _, freeze) = way(name);
    let ranks = on_ranks(n, |comm| {
        let mut run = Run::new(comm, options.clone(), freeze);
        let count = |run: &Run| {
            // A part of the ranks is a communicator of its own.
            let mesh = run.engine.core.mesh();
            let axes = [Axis::Secondary, Axis::InsideMachine, Axis::AcrossMachines];
            let others = axes.iter().filter_map(|axis| mesh.get(*axis));
            let comms: Vec<_> = std::iter::once(mesh.shard()).chain(others).collect();
            [Operation::AllGather, Operation::AllToAll, Operation::ReduceScatter].map(|operation| {
                let of = |comm: &Communicator| {
                    comm.traffic().iter().find(|t| t.operation == operation).map_or(0, |t| t.bytes)
                };
                comms.iter().map(|comm| of(comm)).sum::<u64>()
            })
        };
        let before = count(&run);
        run.step(comm.rank(), 1.0);
        let after = count(&run);
        [0, 1, 2].map(|i| after[i] - before[i])
    });
    assert!(ranks.iter().all(|rank| *rank == ranks[0]));
    ranks[0]
}

/// The words of the gradients of a weight that the rank with the most owns.
fn most_words(n_elems: usize, n: usize) -> usize {
    let shape = Shape::new(&[n_elems, 1]).unwrap();
    let layout = Layout::new([(String::new(), shape, 0)], Grain::Blocks);
    let of = |rank| {
        let owned = layout.owned(rank, n);
        let real = owned.end.min(n_elems).saturating_sub(owned.start);
        real.div_ceil(8) + real.div_ceil(512)
    };
    (0..n).map(of).max().unwrap()
}

#[test]
fn steps_send_what_the_formula_says() {
    let [first, last] = SIZES;
    let padded = |n: usize| n.next_multiple_of(16);
    let words = |n: usize| n.div_ceil(4) + n.div_ceil(4096);
    // Two forward passes, and the backward pass of the unit that did not stay; weight and bias.
    let gathered = |of: &dyn Fn(usize) -> usize| (4 * (2 * 2 * of(first) + 2 * of(last))) as u64;
    let reduced = |of_weights: bool| {
        let n_params = if of_weights { 2 } else { 1 };
        (4 * n_params * (padded(first) + padded(last))) as u64
    };
    for (name, machine) in [("qwz 2", 0), ("qwz 4", 0), ("qgz 2", 1), ("qgz 4", 2), ("all 4", 2)] {
        let (n, options, _) = way(name);
        let Quantized { weights, gradients, .. } = options.quantized;
        let [gathers, exchanges, reductions] =
            covered(name, &ShardingConfig { gather: Gather::Copy, ..options });
        let expected = if weights { gathered(&words) } else { gathered(&padded) };
        assert_eq!(gathers, expected, "{name}: gathers");
        assert_eq!(reductions, reduced(!gradients), "{name}: reductions");
        // A block for each rank of the world in the first exchange, for each machine in the second.
        let blocks = if gradients { n + n / machine } else { 0 };
        let block: usize = SIZES.iter().map(|&n_elems| most_words(n_elems, n)).sum();
        assert_eq!(exchanges, (4 * blocks * block) as u64, "{name}: exchanges");
    }
    // In large: a quarter and an eighth of f32, and 1/4096 and 1/512 of it for scales.
    let n = 1 << 20;
    assert_eq!(words(n) as f64 / n as f64, 0.25 + 1.0 / 4096.0);
    let share = 4.0 * most_words(n, 4) as f64 / n as f64;
    assert_eq!(share, 0.125 + 1.0 / 512.0);
}

#[test]
fn a_training_stays_near_the_unquantized_one() {
    let train = |quantized: Quantized| {
        on_ranks(4, |comm| {
            let model = Chain::new(3, false);
            let mut engine = engine(&model, comm, sharded(quantized));
            let mut losses = Vec::new();
            for at in 0..30 {
                let tape = Tape::new();
                tape.enter_unit(engine.pass_hook());
                let x = tape.input(&input(at % 3 + 10 * comm.rank(), &model.device));
                let loss = model.loss(&x, |_| true);
                losses.push(loss.item::<f32>().unwrap());
                tape.backward(&loss, 1.0).unwrap();
                step(&mut engine);
            }
            losses
        })
        .swap_remove(0)
    };
    let plain = train(Quantized::NONE);
    let all = Quantized { weights: true, gradients: true, machine: Some(2), ..Quantized::NONE };
    let rounded = train(all);
    println!("{plain:?}\n{rounded:?}");
    assert!(plain[29] < 0.3 * plain[0]);
    for (plain, rounded) in plain.iter().zip(&rounded) {
        assert!((plain - rounded).abs() < 0.05 * plain.max(0.1), "{plain} {rounded}");
    }
    assert_ne!(plain, rounded);
}

#[test]
fn one_machine_reduces_gradients_as_they_are_and_one_rank_sends_nothing() {
    let gradients = Quantized { gradients: true, ..Quantized::NONE };
    let all = Quantized { weights: true, ..gradients };
    for (n, quantized) in [(2, gradients), (1, all)] {
        let found = |quantized| {
            let way = (n, sharded(quantized), false);
            of_world(on_ranks(n, |comm| train(comm, &way, &[2]).remove(0)))
        };
        assert!(found(quantized) == found(Quantized::NONE), "{n} ranks");
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_found() {
    let (n, options, _) = way("qgz 4");
    let found = on_ranks(n, |comm| {
        let mut run = Run::new(comm, options.clone(), false);
        let mut factors = [0, 1].map(|unit| values(unit, SIZES[unit]));
        if comm.rank() == 3 {
            factors[1][4500] = f32::INFINITY;
        }
        run.net.backward(&run.engine, factors);
        run.engine.grad_norm().unwrap()
    });
    for norm in found {
        assert!(!norm.norm.is_finite());
        assert_eq!(norm.first_bad.unwrap().1, "units.1.weight");
    }
}

#[test]
fn what_cannot_be_quantized_is_refused() {
    let all = Quantized { weights: true, gradients: true, ..Quantized::NONE };
    for placements in [Placements::WHOLE, Placements::OPTIMIZER, Placements::GRADIENTS] {
        let options = ShardingConfig { placements, quantized: all, ..ShardingConfig::default() };
        assert!(
            check_sharding(&options, 4).unwrap_err().to_string().contains("need sharded parameters (ZeRO-3)")
        );
    }
    on_ranks(4, |comm| {
        let net = Net::new();
        let options = sharded(Quantized { machine: Some(3), ..all });
        let made = Engine::new(&net, comm, &net.device, options, SGD, &|_| 0, &OptimizerConfig::role);
        let message = made.err().unwrap().to_string();
        assert!(message.contains("4 ranks cannot be split into machines of 3"), "{message}");
    });
}
