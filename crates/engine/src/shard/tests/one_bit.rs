//! The 1-bit optimizers against DeepSpeed's algorithms in numpy (`bench/golden/make_one_bit.py`), what they send, and what
//! becomes of a run that is saved between two exchanges.

use std::collections::BTreeMap;

use oarlock_comm::Traffic;
use oarlock_tensor::cpu::difference::largest_magnitude;
use oarlock_tensor::ops::optimizer::{OneBit, OneBitKind};

use super::*;
use crate::shard::{MASTER, Slice};

const SIZES: [usize; 3] = [35, 37, 3];
const DECAYS: [f64; 3] = [0.1, 0.1, 0.0];

fn rate(step: usize) -> f64 {
    0.01 * (1 + step % 3) as f64
}

fn values(salt: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + salt * 104_729) % 2003) as f32 / 1000.0 - 1.0).collect()
}

/// Three parameters whose gradients are what the loss multiplies them with.
struct Net {
    device: Device,
    params: Vec<Linear>,
}

impl Net {
    fn new() -> Net {
        let device = Device::cpu(Isa::detect(), Par::threads(1).unwrap());
        let params = SIZES.map(|n| Linear::normal(1, n, false, 0.1).unwrap()).into();
        Net { device, params }
    }

    /// A loss whose gradients are `gradients`.
    fn backward(&self, engine: &Engine, gradients: &[Vec<f32>]) {
        let tape = Tape::new();
        tape.enter_unit(engine.pass_hook());
        let one = tape.input(&Tensor::from_slice(&[1f32], [1, 1], &self.device).unwrap());
        let term = |(param, gradient): (&Linear, &Vec<f32>)| {
            let factor = Tensor::from_slice(gradient, [1, gradient.len()], &self.device).unwrap();
            ops::sum_all(&ops::mul(&param.forward(&one).unwrap(), &factor).unwrap()).unwrap()
        };
        let terms = self.params.iter().zip(gradients).map(term);
        let loss = terms.reduce(|a, b| ops::add(&a, &b).unwrap()).unwrap();
        tape.backward(&loss, 1.0).unwrap();
    }
}

impl Module for Net {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("params", &self.params);
    }
}

fn rule(name: &str) -> Rule {
    let kind = match name {
        "onebit_adam" => OneBitKind::Adam { freeze_step: 6 },
        "zero_one_adam" => OneBitKind::ZeroOneAdam {
            var_freeze_step: 12,
            var_update_scaler: 2,
            local_step_scaler: 4,
            local_step_clipper: 4,
        },
        _ => OneBitKind::Lamb {
            freeze_step: 6,
            max_coeff: 10.0,
            min_coeff: 0.01,
            coeff_beta: 0.9,
            factor_max: 4.0,
            factor_min: 0.5,
            factor_threshold: 0.1,
        },
    };
    Rule::OneBit(OneBit { beta1: 0.9, beta2: 0.99, eps: 1e-6, kind })
}

struct Run<'a> {
    comm: &'a Communicator,
    net: Net,
    engine: Engine,
    rule: Rule,
    step: usize,
}

impl<'a> Run<'a> {
    fn new(comm: &'a Communicator, rule: &Rule) -> Run<'a> {
        let net = Net::new();
        let options = ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() };
        // The last parameter has no weight decay.
        let param_group = |named: &NamedParam| usize::from(named.param.shape().n_elems() == SIZES[2]);
        let role = &OptimizerConfig::role;
        let mut engine =
            Engine::new(&net, comm, &net.device, options, rule.clone(), &param_group, role).unwrap();
        for (index, n) in SIZES.into_iter().enumerate() {
            let slice = Run::slice(&engine, index, MASTER);
            engine.write_state(&slice, &values(7 + index, n)).unwrap();
        }
        engine.finish_load(0).unwrap();
        Run { comm, net, engine, rule: rule.clone(), step: 0 }
    }

    fn slice(engine: &Engine, index: usize, kind: &str) -> Slice {
        let name = format!("params.{index}.weight");
        engine.needed_slices().into_iter().find(|slice| slice.name == name && slice.kind == kind).unwrap()
    }

    fn step(&mut self) {
        self.step += 1;
        let rank = self.comm.rank();
        let gradient = |param: usize| values(31 * param + 7 * rank + 101 * self.step + 1, SIZES[param]);
        self.net.backward(&self.engine, &[0, 1, 2].map(gradient));
        let hyperparameters = [DECAYS[0], DECAYS[2]].map(|weight_decay| ParamGroup {
            rule: self.rule.clone(),
            lr: rate(self.step),
            weight_decay,
        });
        assert!(self.engine.grad_norm().unwrap().norm > 1.0);
        self.engine.step(&hyperparameters, 1.0 / self.comm.world_size() as f32).unwrap();
    }

    fn weights(&self) -> Vec<f32> {
        let mut all = Vec::new();
        for (index, &size) in SIZES.iter().enumerate() {
            let slice = Run::slice(&self.engine, index, MASTER);
            let mut values = vec![0.0; size];
            self.engine.read_state(&slice, &mut values).unwrap();
            all.extend(values);
        }
        all
    }
}

#[test]
fn trajectories_are_those_of_deepspeed() {
    type Golden = BTreeMap<String, BTreeMap<usize, Vec<Vec<f32>>>>;
    let golden: Golden =
        serde_json::from_str(include_str!("../../../../oarlock/tests/golden/one_bit.json")).unwrap();
    assert_eq!(golden.len(), 8);
    for (name, expected) in &golden {
        let (name, n) = name.split_once(' ').unwrap();
        let n: usize = n.parse().unwrap();
        let steps: Vec<usize> = expected.keys().copied().collect();
        let ranks = on_ranks(n, |comm| {
            let mut run = Run::new(comm, &rule(name));
            let mut shown = BTreeMap::new();
            for step in 1..=30 {
                run.step();
                if steps.contains(&step) {
                    shown.insert(step, run.weights());
                }
            }
            shown
        });
        let mut largest = 0.0f32;
        for (step, golden) in expected {
            for (rank, golden) in [0, n - 1].into_iter().zip(golden) {
                let got = &ranks[rank][step];
                let size = largest_magnitude(golden.iter().copied()).unwrap() as f32;
                for (i, (got, golden)) in got.iter().zip(golden).enumerate() {
                    let off = (got - golden).abs() / size;
                    largest = largest.max(off);
                    assert!(
                        off < 1e-6,
                        "{name}, {n} ranks, rank {rank}, step {step}, weight {i}: {got} {golden}"
                    );
                }
            }
            let same = ranks.iter().all(|rank| rank[step] == ranks[0][step]);
            // Between two meetings of 0/1 Adam each rank has weights of its own: it meets at counts that its interval divides.
            let apart = name == "zero_one_adam" && [20, 29, 30].contains(step);
            assert_eq!(same, !apart || n == 1, "{name}, {n} ranks, step {step}");
        }
        println!("{name}, {n} ranks: largest relative difference {largest:.1e}");
    }
}

/// Bytes that a rank sends in steps `first..=last` of a run, and how often it called each operation.
fn sent(n: usize, rule: &Rule, last: usize) -> Vec<(f64, Vec<Traffic>)> {
    let ranks = on_ranks(n, |comm| {
        let mut run = Run::new(comm, rule);
        let mut of_steps = Vec::new();
        for _ in 0..last {
            let before = comm.traffic();
            run.step();
            let mut traffic = comm.traffic();
            for t in &mut traffic {
                if let Some(old) = before.iter().find(|old| old.operation == t.operation) {
                    (t.calls, t.bytes) = (t.calls - old.calls, t.bytes - old.bytes);
                }
            }
            traffic.retain(|t| t.bytes > 0);
            of_steps.push((traffic.iter().map(|t| t.sent_bytes(n)).sum(), traffic));
        }
        of_steps
    });
    assert!(ranks.iter().all(|rank| *rank == ranks[0]));
    ranks.into_iter().next().unwrap()
}

#[test]
fn steps_send_what_the_formula_says() {
    for n in [2, 4] {
        // Padded to chunks that are multiples of 8 elements: a byte of signs.
        let chunks = |n_elems: usize| n_elems.next_multiple_of(8 * n) / n / 8;
        let block = |signs: usize, items: usize| (signs.next_multiple_of(4) + 4 * items) as f64;
        let apart = block(SIZES.iter().map(|&n_elems| chunks(n_elems)).sum(), SIZES.len());
        let together = block(chunks(SIZES.iter().sum()), 1);
        for (name, block, signs) in [
            ("onebit_adam", apart, vec![6, 7, 30]),
            ("zero_one_adam", apart, vec![4, 13, 16]),
            ("onebit_lamb", together, vec![6, 7, 30]),
        ] {
            let of_steps = sent(n, &rule(name), 30);
            for step in signs {
                let (bytes, traffic) = &of_steps[step - 1];
                let operations: Vec<_> = traffic.iter().map(|t| (t.operation, t.calls)).collect();
                assert_eq!(
                    operations,
                    [(Operation::AllGather, 1), (Operation::AllToAll, 1)],
                    "{name}, step {step}"
                );
                assert!((bytes - 2.0 * (n as f64 - 1.0) * block).abs() < 1e-9, "{name}: {bytes} of {block}");
            }
            // Before the freeze gradients are summed, 4 bytes each, padded to 16 elements.
            let padded: usize = SIZES.iter().map(|n_elems| n_elems.next_multiple_of(16)).sum();
            let adam = 2.0 * (n as f64 - 1.0) / n as f64 * 4.0 * padded as f64;
            assert!((of_steps[0].0 - adam).abs() < 1e-9, "{name}: {} of {adam}", of_steps[0].0);
        }
        // Local steps send nothing.
        let of_steps = sent(n, &rule("zero_one_adam"), 30);
        assert_eq!(of_steps.iter().filter(|(bytes, _)| *bytes == 0.0).count(), 10, "{n} ranks");
    }
}

#[test]
fn a_larger_model_sends_a_thirtieth_of_adam() {
    let n_elems = 96 * 96;
    let bytes = on_ranks(2, |comm| {
        let model = Chain::new(2, false);
        let options = ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() };
        let rule = Rule::OneBit(OneBit {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            kind: OneBitKind::Adam { freeze_step: 2 },
        });
        let mut engine = engine_with(&model, comm, options, rule);
        let mut of_steps = Vec::new();
        for at in 0..3 {
            let total = || comm.traffic().iter().map(|t| t.sent_bytes(2)).sum::<f64>();
            let before = total();
            backward(&engine, &model, at + 10 * comm.rank(), |_| true);
            engine.step(&hyperparameters(engine.rule().clone()), 0.5).unwrap();
            of_steps.push(total() - before);
        }
        of_steps
    });
    let [summed, _, signs] = bytes[0][..] else { unreachable!() };
    assert!(summed >= (2 * 4 * n_elems) as f64);
    assert!(signs < summed / 30.0, "{signs} of {summed} bytes");
}

#[test]
fn collectives_in_the_background_change_no_bits() {
    let train = |comm: &Communicator, name: &str| {
        let options = ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() };
        let model = Chain::new(3, false);
        let mut engine = engine_with(&model, comm, options, rule(name));
        // Sums with reductions that leave early, then signs; each rank leaves out a unit.
        let uses = |link: usize| link != 1 + comm.rank();
        for at in 0..16 {
            let tape = Tape::new();
            tape.enter_unit(engine.pass_hook());
            let loss = model.loss(&tape.input(&input(at + 10 * comm.rank(), &model.device)), uses);
            engine.expect_step();
            tape.backward(&loss, 1.0).unwrap();
            step(&mut engine);
        }
        weights(&engine)
    };
    for name in ["onebit_adam", "zero_one_adam", "onebit_lamb"] {
        let plain = on_ranks(2, |comm| train(comm, name));
        let found = on_ranks(2, |comm| train(&comm.clone().in_background(), name));
        assert!(plain == found, "{name}");
    }
}

#[test]
fn a_save_ends_local_steps_and_a_load_forgets_errors() {
    let ends = on_ranks(2, |comm| {
        let mut run = Run::new(comm, &rule("zero_one_adam"));
        (0..29).for_each(|_| run.step());
        let apart = run.weights();
        run.engine.end_local_steps().unwrap();
        let met = run.weights();
        run.engine.end_local_steps().unwrap();
        assert_eq!(met, run.weights(), "nothing is left to end");
        // The states as a checkpoint has them.
        let state = |run: &Run| {
            let slices = run.engine.needed_slices();
            let read = |slice: Slice| {
                let mut values = vec![0.0; slice.elements.len()];
                run.engine.read_state(&slice, &mut values).unwrap();
                (slice, values)
            };
            slices.into_iter().map(read).collect::<Vec<_>>()
        };
        let mut other = Run::new(comm, &rule("zero_one_adam"));
        for (slice, values) in state(&run) {
            other.engine.write_state(&slice, &values).unwrap();
        }
        other.engine.finish_load(29).unwrap();
        other.step = 29;
        // The one that goes on does so without errors, too.
        let kept = state(&run);
        for (slice, values) in kept {
            run.engine.write_state(&slice, &values).unwrap();
        }
        run.engine.finish_load(29).unwrap();
        (0..8).for_each(|_| {
            run.step();
            other.step();
        });
        run.engine.end_local_steps().unwrap();
        other.engine.end_local_steps().unwrap();
        assert_eq!(run.weights(), other.weights());
        (apart, met)
    });
    assert_ne!(ends[0].0, ends[1].0);
    assert_eq!(ends[0].1, ends[1].1);
}

#[test]
fn a_mask_keeps_what_has_no_gradient_at_zero() {
    let ends = on_ranks(2, |comm| {
        let mut run = Run::new(comm, &rule("onebit_adam"));
        let mask: Vec<f32> = (0..SIZES[1]).map(|i| f32::from(u8::from(i < 30))).collect();
        run.engine.set_exp_avg_mask("params.1.weight", &mask).unwrap();
        assert!(run.engine.set_exp_avg_mask("params.1.weight", &mask[1..]).is_err());
        assert!(run.engine.set_exp_avg_mask("params.9.weight", &mask).is_err());
        (0..8).for_each(|_| run.step());
        let slice = Run::slice(&run.engine, 1, "exp_avg");
        let mut moment = vec![1.0; SIZES[1]];
        run.engine.read_state(&slice, &mut moment).unwrap();
        moment
    });
    assert!(ends[0][..30].iter().all(|m| *m != 0.0) && ends[0][30..].iter().all(|m| *m == 0.0), "{ends:?}");
}

#[test]
fn sharded_state_and_lone_steps_are_refused() {
    on_ranks(2, |comm| {
        let (net, role) = (Net::new(), &OptimizerConfig::role);
        let rule = rule("onebit_adam");
        let sharded =
            Engine::new(&net, comm, &net.device, ShardingConfig::default(), rule.clone(), &|_| 0, role);
        let message = sharded.err().unwrap().to_string();
        assert!(message.contains("onebit_adam is not compatible with ZeRO"), "{message}");
        let mut run = Run::new(comm, &rule);
        assert!(run.engine.set_local(true).unwrap_err().to_string().contains("onebit_adam"));
        assert!(run.engine.clip_grad_value(1.0, 1.0).unwrap_err().to_string().contains("clip by norm"));
    });
}
