//! Communication that proceeds while units compute: over a link slowed on purpose, with computation that takes its time by
//! sleeping, so that what is seen does not depend on how busy the machine is.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oarlock_comm::Link;
use oarlock_tensor::Result as TensorResult;

use super::*;
use crate::nn::parameters;

/// As [`on_ranks`], over a link with a progress thread.
fn on_link<T: Send>(n: usize, link: Link, f: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    on_ranks(n, |comm| f(&comm.clone().slowed(link).in_background()))
}

/// A link on which the gradients of one unit take `time` to be reduce-scattered over two ranks, and nothing else counts.
fn link(time: Duration) -> Link {
    let bytes = (4 * (DIM * DIM + DIM)) as f64 / 2.0;
    Link { latency: Duration::ZERO, bandwidth: bytes / time.as_secs_f64() }
}

/// DDP and all other placements.
fn all_ways() -> Vec<(&'static str, ShardingConfig)> {
    let whole = ("DDP", ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() });
    std::iter::once(whole).chain(ways()).collect()
}

/// A parameter: its name, where it begins, its bits.
type Bits = (String, usize, Vec<u32>);

/// Trains three steps of two micro-batches, in which ranks leave out different units; the norms, and the weights.
fn train(comm: &Communicator, options: &ShardingConfig) -> (Vec<u64>, Vec<Bits>) {
    let model = Chain::new(5, true);
    let mut engine = engine(&model, comm, options.clone());
    let uses = |micro: usize| {
        let rank = comm.rank();
        move |link: usize| !matches!((rank, link, micro), (_, 2, _) | (0, 1, _) | (1, 4, 1))
    };
    let norms = (0..3).map(|at| {
        backward(&engine, &model, at + 10 * comm.rank(), uses(0));
        backward_expected(&engine, &model, at + 20 * comm.rank(), uses(1));
        step(&mut engine).to_bits()
    });
    (norms.collect(), weights(&engine))
}

/// The last backward pass of a step.
fn backward_expected(engine: &Engine, model: &Chain, salt: usize, uses: impl Fn(usize) -> bool) {
    let tape = Tape::new();
    tape.enter_unit(engine.pass_hook());
    let loss = model.loss(&tape.input(&input(salt, &model.device)), uses);
    engine.expect_step();
    tape.backward(&loss, 1.0).unwrap();
}

#[test]
fn what_proceeds_in_the_background_has_the_same_bits() {
    for (way, options) in all_ways() {
        for reduce_dtype in [DType::F32, DType::BF16] {
            let options = ShardingConfig {
                reduce_dtype: Some(reduce_dtype),
                reduce_bucket_elems: 5000,
                ..options.clone()
            };
            let plain = on_ranks(2, |comm| train(comm, &options));
            for overlap in [true, false] {
                let options = ShardingConfig { overlap, ..options.clone() };
                let found = on_link(2, link(Duration::from_micros(300)), |comm| train(comm, &options));
                for (plain, found) in plain.iter().zip(&found) {
                    assert!(plain.0 == found.0, "{way}, {reduce_dtype}, overlap {overlap}");
                    let (mut plain, mut found) = (plain.1.clone(), found.1.clone());
                    plain.sort();
                    found.sort();
                    assert!(plain == found, "{way}, {reduce_dtype}, overlap {overlap}: weights");
                }
            }
        }
    }
}

/// When each unit's forward and backward pass was over.
#[derive(Default)]
struct Times {
    forward: Vec<Instant>,
    /// In the order of the units.
    backward: Vec<Option<Instant>>,
}

/// Computation of a unit: it takes a while in the backward pass, and notes the end.
struct Slow {
    unit: usize,
    time: Duration,
    times: Arc<Mutex<Times>>,
}

impl UnitHook for Slow {
    fn before_forward(&self, _trains: bool) -> TensorResult<()> {
        Ok(())
    }
    fn after_forward(&self, _trains: bool) -> TensorResult<()> {
        Ok(())
    }
    fn before_backward(&self) -> TensorResult<()> {
        Ok(())
    }
    fn after_backward(&self) -> TensorResult<()> {
        std::thread::sleep(self.time);
        self.times.lock().unwrap().backward[self.unit] = Some(Instant::now());
        Ok(())
    }
}

/// A forward and a backward pass in which each unit takes `time` for either.
fn slow_pass(engine: &Engine, model: &Chain, time: Duration) -> Times {
    let n = model.links.len();
    let times = Arc::new(Mutex::new(Times { forward: Vec::new(), backward: vec![None; n] }));
    let tape = Tape::new();
    tape.enter_unit(engine.pass_hook());
    let mut x = tape.input(&input(0, &model.device));
    for (unit, link) in model.links.iter().enumerate() {
        x = link
            .run(&x, |link| {
                tape.enter_unit(Arc::new(Slow { unit, time, times: times.clone() }));
                let y = link.forward(&x);
                std::thread::sleep(time);
                times.lock().unwrap().forward.push(Instant::now());
                y
            })
            .unwrap();
    }
    let loss = ops::mean_all(&ops::mul(&x, &x).unwrap()).unwrap();
    engine.expect_step();
    tape.backward(&loss, 1.0).unwrap();
    std::mem::take(&mut *times.lock().unwrap())
}

/// What was seen in a step: whether each unit's reduction began before the backward pass of the next unit was over, whether
/// each gather in the forward pass began before the unit before it was over, and how many collectives were waited for.
struct OverlapCounts {
    reductions: Vec<bool>,
    gathers: Vec<bool>,
    waited_for: u64,
}

fn seen(options: &ShardingConfig) -> OverlapCounts {
    let n = 4;
    let compute = Duration::from_millis(40);
    let ranks = on_link(2, link(Duration::from_millis(2)), |comm| {
        let model = Chain::new(n, false);
        let mut engine = engine(&model, comm, options.clone());
        // The first step allocates buffers.
        slow_pass(&engine, &model, Duration::ZERO);
        step(&mut engine);
        // Its new weights are not part of what is seen.
        parameters(&model).iter().for_each(|named| drop(named.param.weight()));
        comm.barrier().unwrap();
        let before = comm.communication_time().unwrap();
        comm.start_trace();
        let times = slow_pass(&engine, &model, compute);
        engine.reduce_grads().unwrap();
        let (events, time) = (comm.take_trace(), comm.communication_time().unwrap().since(&before));
        step(&mut engine);
        let starts = |of: &[Operation]| -> Vec<Instant> {
            events.iter().filter(|event| of.contains(&event.operation)).map(|event| event.start).collect()
        };
        let reductions = starts(&[Operation::ReduceScatter, Operation::AllReduce]);
        assert_eq!(reductions.len(), n, "one of each unit");
        let gathers = starts(&[Operation::AllGather]);
        OverlapCounts {
            // Units in reverse; behind the last of them nothing is left to compute.
            reductions: (1..n).map(|at| reductions[at - 1] < times.backward[n - 1 - at].unwrap()).collect(),
            gathers: gathers.iter().take(n).skip(1).zip(&times.forward).map(|(at, end)| at < end).collect(),
            waited_for: time.waited_for,
        }
    });
    ranks.into_iter().next().unwrap()
}

#[test]
fn reductions_and_gathers_begin_while_units_compute() {
    for (way, options) in all_ways() {
        let with = seen(&options);
        assert!(with.reductions == [true; 3], "{way}: {:?}", with.reductions);
        assert!(with.gathers.iter().all(|early| *early) || way.ends_with("no prefetch"), "{way}");
        assert!(way != "FULL_SHARD, copies" || with.gathers.len() == 3, "{way}");
        let without = seen(&ShardingConfig { overlap: false, ..options.clone() });
        let whole = options.placements.gradients == crate::shard::Placement::Whole;
        // A sharded gradient is reduced where its unit ends, and waited for there.
        assert!(without.reductions == [!whole; 3], "{way}: {:?}", without.reductions);
        // At most the first gather and the last reduction are waited for, and without overlap all are.
        assert!(with.waited_for < without.waited_for || way.ends_with("no prefetch"), "{way}");
        assert!(without.waited_for >= 4 || whole, "{way}: {}", without.waited_for);
    }
}

/// Overlap saves time: of five steps one at least is clearly shorter than computation and communication together, which no
/// step without overlap can be. It bounds no other step, since what else this machine does may make any of them longer; that
/// each collective begins in time is counted by `reductions_and_gathers_begin_while_units_compute`.
#[test]
fn a_step_can_take_less_than_computation_and_communication_together() {
    let (n, unit) = (6, Duration::from_millis(40));
    // The gradients of a unit travel as long as its backward pass takes.
    let time = |placements, overlap| {
        let options = ShardingConfig { placements, overlap, ..ShardingConfig::default() };
        let speed = if placements == Placements::WHOLE { unit / 2 } else { unit };
        let ranks = on_link(2, link(speed), |comm| {
            let model = Chain::new(n, false);
            let mut engine = engine(&model, comm, options.clone());
            slow_pass(&engine, &model, Duration::ZERO);
            step(&mut engine);
            let begin = Instant::now();
            slow_pass(&engine, &model, unit);
            engine.reduce_grads().unwrap();
            let took = begin.elapsed();
            step(&mut engine);
            took
        });
        ranks.into_iter().max().unwrap()
    };
    let (compute, communication) = (2 * unit * n as u32, unit * n as u32);
    for placements in [Placements::WHOLE, Placements::GRADIENTS] {
        // Nearer to the longer of both than to the sum: 5/6 is half way.
        let is_nearer = || {
            let (without, with) = (time(placements, false), time(placements, true));
            assert!(without >= compute + communication, "{placements:?}: {without:?}");
            assert!(with >= compute, "{placements:?}: {with:?}");
            6 * with < 5 * without
        };
        assert!((0..5).any(|_| is_nearer()), "{placements:?}: the sum of both");
    }
}

/// As `a_step_can_take_less_than_computation_and_communication_together`.
#[test]
fn new_weights_can_travel_while_the_next_step_begins() {
    let (n, unit) = (6, Duration::from_millis(40));
    // The new weights of a unit travel as long as its forward pass takes.
    let time = |overlap| {
        let options =
            ShardingConfig { placements: Placements::OPTIMIZER, overlap, ..ShardingConfig::default() };
        let ranks = on_link(2, link(unit), |comm| {
            let model = Chain::new(n, false);
            let mut engine = engine(&model, comm, options.clone());
            slow_pass(&engine, &model, Duration::ZERO);
            engine.reduce_grads().unwrap();
            let begin = Instant::now();
            step(&mut engine);
            slow_pass(&engine, &model, unit);
            begin.elapsed()
        });
        ranks.into_iter().max().unwrap()
    };
    let (compute, communication) = (2 * unit * n as u32, unit * n as u32);
    let is_nearer = || {
        let (without, with) = (time(false), time(true));
        assert!(without >= compute + communication, "{without:?}");
        // The first unit has nothing to compute before its weights are there.
        assert!(with >= compute + unit, "{with:?}");
        6 * with < 5 * without
    };
    assert!((0..5).any(|_| is_nearer()), "the sum of both");
}

#[test]
fn gradients_that_come_after_their_sum_was_begun_are_refused() {
    for placements in [Placements::WHOLE, Placements::OPTIMIZER] {
        on_link(2, link(Duration::from_micros(100)), |comm| {
            let options = ShardingConfig { placements, ..ShardingConfig::default() };
            let model = Chain::new(2, false);
            let mut engine = engine(&model, comm, options);
            backward_expected(&engine, &model, 0, |_| true);
            let tape = Tape::new();
            tape.enter_unit(engine.pass_hook());
            let loss = model.loss(&tape.input(&input(1, &model.device)), |_| true);
            let message = tape.backward(&loss, 1.0).err().unwrap().to_string();
            assert!(message.contains("links.1.") && message.contains("overlap_comm"), "{message}");
            // The step of what was said goes on.
            step(&mut engine);
            backward_expected(&engine, &model, 0, |_| true);
            step(&mut engine);
        });
    }
}

#[test]
fn a_model_that_is_recorded_twice_leaves_when_both_passes_are_over() {
    let train = |comm: &Communicator| {
        let model = Chain::new(3, false);
        let mut engine = engine(
            &model,
            comm,
            ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() },
        );
        let norms: Vec<u64> = (0..3)
            .map(|at| {
                let record = |salt: usize| {
                    let tape = Tape::new();
                    tape.enter_unit(engine.pass_hook());
                    let loss = model.loss(&tape.input(&input(salt, &model.device)), |_| true);
                    (tape, loss)
                };
                let passes = [record(at + comm.rank()), record(at + 7)];
                engine.expect_step();
                passes.into_iter().for_each(|(tape, loss)| drop(tape.backward(&loss, 1.0).unwrap()));
                step(&mut engine).to_bits()
            })
            .collect();
        (norms, weights(&engine))
    };
    assert!(on_ranks(2, train) == on_link(2, link(Duration::from_micros(100)), train));
}
