//! Windows of micro-batches: what `zero_grad` drops, beside Accelerate, what a loss scale follows, and what becomes of
//! ranks that step by themselves when one of them fails.

use oarlock::config::LossScale;
use oarlock::dataloader::DataLoader;
use oarlock::deepspeed::Config;
use oarlock::deepspeed::zero::gathered_parameters;
use oarlock::optim::Optim;
use oarlock::shard::Placements;
use oarlock::{
    Accelerator, AcceleratorConfig, DType, DeepSpeedPlugin, DivideBy, Error, GradientAccumulation, LocalSgd,
    Prepared, PreparedOptimizer, Result, ShardingConfig, Tensor, optim,
};
use oarlock_tensor::cpu::difference::largest_difference;
use oarlock_tensor::ops::optimizer::Rule;
use serde_json::{Value, json};

use crate::ranks::net;
use crate::ranks::on_ranks;
use net::{ALL, Net, net};

/// The weights that bench/golden/make_zero_grad.py begins with.
fn begin(net: &Prepared<Net>, columns: usize, seed: usize) -> Result<()> {
    gathered_parameters(net, net, Some(0), |whole| {
        for (place, weight) in whole.values_mut("layer.weight")?.iter_mut().enumerate() {
            let (i, j) = (place / columns, place % columns);
            *weight = ((seed + i * 3 + j * 2) as f64).cos() as f32 / 2.0;
        }
        Ok(())
    })
}

fn weights(net: &Prepared<Net>) -> Result<Vec<f32>> {
    gathered_parameters(net, net, None, |whole| Ok(whole.values("layer.weight")?.to_vec()))
}

/// This rank's rows of a micro-batch of two.
fn rows(accelerator: &Accelerator, seed: usize, columns: usize) -> Result<Tensor> {
    let n = 2 / accelerator.num_processes();
    let first = accelerator.process_index() * n;
    let of_row = |i: usize| (0..columns).map(move |j| ((1 + seed * 7 + i * 3 + j * 5) as f64).sin() as f32);
    let values: Vec<f32> = (first..first + n).flat_map(of_row).collect();
    Ok(Tensor::from_slice(&values, [n, columns], accelerator.device())?)
}

fn config(placements: Placements, steps: usize, divide_by: DivideBy) -> AcceleratorConfig {
    AcceleratorConfig {
        shard: ShardingConfig { placements, persistence_elems: 0, ..ShardingConfig::default() },
        gradient_accumulation: GradientAccumulation { divide_by, ..GradientAccumulation::steps(steps) },
        threads: Some(1),
        ..AcceleratorConfig::default()
    }
}

/// With a DeepSpeed configuration of this stage.
fn deepspeed(stage: u8, steps: usize, rows: usize) -> AcceleratorConfig {
    let plugin = DeepSpeedPlugin {
        hf_ds_config: Some(
            Config::from_value(&json!({
                "train_micro_batch_size_per_gpu": rows,
                "gradient_accumulation_steps": steps,
            "gradient_clipping": 0.0,
                "zero_optimization": { "stage": stage },
            }))
            .unwrap(),
        ),
        ..DeepSpeedPlugin::default()
    };
    AcceleratorConfig { deepspeed_plugin: Some(plugin), ..config(ALL[0], steps, DivideBy::NumSteps) }
}

fn golden(key: &str) -> Vec<Value> {
    let golden: Value = serde_json::from_str(include_str!("golden/zero_grad.json")).unwrap();
    golden[key].as_array().unwrap().clone()
}

fn floats(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn assert_near(ours: &[f32], expected: &[f32], what: &str) {
    let far = largest_difference(ours, expected).unwrap();
    assert!(far < 2e-6, "{what}: {ours:?} instead of {expected:?}");
}

/// The loop of the script: weights after 10 micro-batches, of which the last window may be short.
fn run(accelerator: &Accelerator, place: &str) -> Result<Vec<f32>> {
    let net = net(3, 2)?;
    let rule = Rule::Sgd { momentum: 0.5, dampening: 0.0, nesterov: false };
    let optimizer = Optim::new(&net, rule, 0.1, 0.0);
    let n = 2 / accelerator.num_processes();
    let loader =
        DataLoader::new((0..20).collect::<Vec<usize>>(), n).collate(|ids: Vec<usize>, _| Ok(ids[0] / 2));
    let (net, optimizer, loader) = accelerator.prepare((net, optimizer, loader))?;
    begin(&net, 3, 0)?;
    let zero_grad = |here: &str| if here == place { optimizer.zero_grad() } else { Ok(()) };
    for index in loader.iter()? {
        let index = index?;
        accelerator.accumulate(|| {
            zero_grad("top")?;
            let y = rows(accelerator, index + 50, 2)?;
            let loss = net.forward(&rows(accelerator, index, 3)?)?.sub(&y)?.square()?.mean_all()?;
            zero_grad("before_backward")?;
            accelerator.backward(&loss)?;
            zero_grad("before_step")?;
            optimizer.step()?;
            zero_grad("after")
        })?;
    }
    weights(&net)
}

#[test]
fn zero_grad_drops_what_accelerates_drops_wherever_it_stands() {
    for case in golden("loops") {
        let steps = case["steps"].as_u64().unwrap() as usize;
        let place = case["place"].as_str().unwrap().to_owned();
        for world in [1, 2] {
            let configs: Vec<AcceleratorConfig> = match case["deepspeed"].as_bool().unwrap() {
                true => (0..4).map(|stage| deepspeed(stage, steps, 2 / world)).collect(),
                false => ALL.map(|placements| config(placements, steps, DivideBy::NumSteps)).to_vec(),
            };
            for config in configs {
                let what =
                    format!("{place}, {steps} micro-batches, {world} ranks, {:?}", config.shard.placements);
                let place = place.clone();
                let forgets = config.deepspeed_plugin.is_none() || steps == 1;
                for ours in on_ranks(world, config, move |accelerator| run(accelerator, &place)) {
                    if case["place"] == "before_step" && forgets {
                        // There a step without gradients does nothing.
                        let error = ours.unwrap_err().to_string();
                        assert!(error.contains("without gradients"), "{what}: {error}");
                    } else {
                        assert_near(&ours.unwrap(), &floats(&case["weights"]), &what);
                    }
                }
            }
        }
    }
}

#[test]
fn a_mean_over_micro_batches_is_over_those_that_are_left() {
    let of = |divide_by, steps, place: &'static str| {
        let ranks = on_ranks(2, config(ALL[2], steps, divide_by), move |accelerator| run(accelerator, place));
        ranks.into_iter().next().unwrap().unwrap()
    };
    let all_of_two = of(DivideBy::MicroBatches, 2, "after");
    assert_near(&of(DivideBy::NumSteps, 2, "after"), &all_of_two, "full windows");
    assert!(of(DivideBy::MicroBatches, 2, "top") != of(DivideBy::NumSteps, 2, "top"));
}

/// The script's generator and discriminator; their weights after three steps.
fn gan(accelerator: &Accelerator, steps: usize, phases: bool) -> Result<[Vec<f32>; 2]> {
    let (generator, discriminator) = (net(2, 3)?, net(3, 1)?);
    let optimizers = (optim::sgd(&generator).lr(0.1), optim::sgd(&discriminator).lr(0.1));
    let (generator, discriminator, (of_generator, of_discriminator)) =
        accelerator.prepare((generator, discriminator, optimizers))?;
    begin(&generator, 2, 1)?;
    begin(&discriminator, 3, 2)?;
    let toward = |x: &Tensor, aim: f32| -> Result<Tensor> {
        let judged = discriminator.forward(x)?;
        let aims = vec![aim; judged.n_elems()];
        let aims = Tensor::from_slice(&aims, *judged.shape(), accelerator.device())?;
        Ok(judged.sub(&aims)?.square()?.mean_all()?)
    };
    let discriminate = |index: usize| -> Result<()> {
        let fake = generator.forward(&rows(accelerator, index, 2)?)?.detach();
        let real = rows(accelerator, index + 50, 3)?;
        accelerator.backward(&toward(&real, 1.0)?)?;
        accelerator.backward(&toward(&fake, 0.0)?)?;
        of_discriminator.step()?;
        of_discriminator.zero_grad()
    };
    let generate = |index: usize| -> Result<()> {
        let fake = generator.forward(&rows(accelerator, index, 2)?)?;
        accelerator.backward(&toward(&fake, 1.0)?)?;
        of_generator.step()?;
        of_generator.zero_grad()?;
        of_discriminator.zero_grad()
    };
    for step in 0..3 {
        let window = step * steps..(step + 1) * steps;
        if phases {
            window.clone().try_for_each(|index| accelerator.accumulate(|| discriminate(index)))?;
            window.clone().try_for_each(|index| accelerator.accumulate(|| generate(index)))?;
        } else {
            window.clone().try_for_each(|index| {
                accelerator.accumulate(|| discriminate(index).and_then(|()| generate(index)))
            })?;
        }
    }
    Ok([weights(&generator)?, weights(&discriminator)?])
}

#[test]
fn a_gan_that_accumulates_drops_what_the_others_loss_left() {
    for case in golden("gans") {
        let steps = case["steps"].as_u64().unwrap() as usize;
        let phases = case["kind"] == "phases";
        for (world, placements) in ALL.into_iter().flat_map(|placements| [(1, placements), (2, placements)]) {
            for divide_by in [DivideBy::NumSteps, DivideBy::MicroBatches] {
                let config = config(placements, steps, divide_by);
                for ours in on_ranks(world, config, move |accelerator| gan(accelerator, steps, phases)) {
                    let what = format!("{} {steps}, {world} ranks, {placements:?}", case["kind"]);
                    let [generator, discriminator] = ours.unwrap();
                    assert_near(&generator, &floats(&case["generator"]), &what);
                    assert_near(&discriminator, &floats(&case["discriminator"]), &what);
                }
            }
        }
    }
}

/// In f16, with a scale that falls with every overflow.
fn f16(steps: usize) -> AcceleratorConfig {
    AcceleratorConfig { mixed_precision: Some(DType::F16), ..config(ALL[1], steps, DivideBy::MicroBatches) }
}

const SCALE: LossScale = LossScale::Dynamic {
    initial_power: 8,
    growth_interval: 1000,
    hysteresis: 1,
    consecutive_hysteresis: false,
    min_scale: 1.0,
};

/// Two models, each with an optimizer that steps by its mean gradient.
struct Pair {
    nets: [Prepared<Net>; 2],
    optimizers: [PreparedOptimizer; 2],
}

impl Pair {
    fn new(accelerator: &Accelerator) -> Result<Pair> {
        let (first, second) = (net(2, 2)?, net(2, 2)?);
        let sgd = |net: &Net| optim::sgd(net).lr(1.0).loss_scale(SCALE);
        let (of_first, of_second) = (sgd(&first), sgd(&second));
        let (first, second, of_first, of_second) =
            accelerator.prepare((first, second, of_first, of_second))?;
        begin(&first, 2, 0)?;
        begin(&second, 2, 1)?;
        Ok(Pair { nets: [first, second], optimizers: [of_first, of_second] })
    }

    /// A backward pass of the mean output, or of a loss whose gradients overflow.
    fn backward(&self, accelerator: &Accelerator, which: usize, overflows: bool) -> Result<()> {
        let x = Tensor::from_slice(&[if overflows { 6e4f32 } else { 0.5 }; 4], [2, 2], accelerator.device())?;
        let out = self.nets[which].forward(&x.cast(DType::F16)?)?;
        let out = if overflows { out.square()? } else { out };
        accelerator.backward(&out.cast(DType::F32)?.mean_all()?)
    }

    /// A backward pass from the mean of what the second makes of the first one's output.
    fn backward_through_both(&self, accelerator: &Accelerator) -> Result<()> {
        let x = Tensor::from_slice(&[0.5f32; 4], [2, 2], accelerator.device())?.cast(DType::F16)?;
        let out = self.nets[1].forward(&self.nets[0].forward(&x)?)?;
        accelerator.backward(&out.cast(DType::F32)?.mean_all()?)
    }

    /// How far a step moves each weight, and whether it was skipped.
    fn step(&self, which: usize) -> Result<(f32, bool)> {
        let before = weights(&self.nets[which])?;
        self.optimizers[which].step()?;
        let moved = before[0] - weights(&self.nets[which])?[0];
        Ok((moved, self.optimizers[which].step_was_skipped()))
    }
}

#[test]
fn optimizers_of_an_accelerator_have_one_loss_scale_and_each_its_own_overflow() {
    for ranks in [1, 2] {
        for reported in on_ranks(ranks, f16(1), |accelerator| {
            let pair = Pair::new(accelerator)?;
            // Both backward passes at 256; the first one overflows, so the scale falls before the second steps.
            pair.backward(accelerator, 0, true)?;
            pair.backward(accelerator, 1, false)?;
            let mut reported = vec![pair.step(0)?, pair.step(1)?];
            // From here on both are at 128, and one loss goes through both models.
            pair.backward_through_both(accelerator)?;
            reported.extend([pair.step(0)?, pair.step(1)?]);
            // A window that is open keeps its scale while the other's step moves it.
            pair.backward(accelerator, 1, false)?;
            pair.backward(accelerator, 0, true)?;
            reported.push(pair.step(0)?);
            pair.backward(accelerator, 1, false)?;
            // One loss cannot have both scales; when one window has ended it has that of the other.
            pair.backward(accelerator, 0, false)?;
            let error = pair.backward_through_both(accelerator).unwrap_err().to_string();
            assert!(error.contains("have the loss scales 64 and 128 so far; end the window"), "{error}");
            pair.optimizers[0].zero_grad()?;
            reported.push(pair.step(1)?);
            Ok(reported)
        }) {
            let reported = reported.unwrap();
            let skipped: Vec<bool> = reported.iter().map(|(_, skipped)| *skipped).collect();
            assert_eq!(skipped, [true, false, false, false, true, false]);
            // d mean / dw is 0.5 / 2, whatever the scale; two losses of one window add up.
            assert_eq!((reported[0].0, reported[4].0), (0.0, 0.0));
            assert!((reported[1].0 - 0.25).abs() < 1e-3, "{reported:?}");
            assert!(reported[2].0 != 0.0 && reported[3].0 != 0.0, "{reported:?}");
            assert!((reported[5].0 - 0.5).abs() < 1e-3, "{reported:?}");
        }
    }
}

#[test]
fn a_rank_without_a_backward_pass_steps_with_the_scale_of_the_others() {
    let config = AcceleratorConfig {
        mixed_precision: Some(DType::F16),
        ..config(Placements::WHOLE, 1, DivideBy::MicroBatches)
    };
    for reported in on_ranks(2, config, |accelerator| {
        let pair = Pair::new(accelerator)?;
        if accelerator.is_main_process() {
            pair.backward(accelerator, 1, false)?;
        }
        // The scale falls while that gradient waits.
        pair.backward(accelerator, 0, true)?;
        Ok([pair.step(0)?, pair.step(1)?])
    }) {
        let [overflown, (moved, _)] = reported.unwrap();
        assert!(overflown.1 && (moved - 0.25).abs() < 1e-3, "{overflown:?} {moved}");
    }
}

/// What torch's `GradScaler` makes of the same overflows, each optimizer stepping and then updating the scale, as in
/// Accelerate: written by bench/golden/make_grad_scaler.py.
#[test]
fn the_scale_follows_overflows_as_torchs_one_scaler_for_two_optimizers() {
    for case in serde_json::from_str::<Vec<Value>>(include_str!("golden/grad_scaler.json")).unwrap() {
        let turns: Vec<[bool; 2]> = serde_json::from_value(case["overflows"].clone()).unwrap();
        for reported in on_ranks(1, f16(1), move |accelerator| {
            let pair = Pair::new(accelerator)?;
            let mut reported = Vec::new();
            for turn in &turns {
                for (which, overflows) in turn.iter().enumerate() {
                    pair.backward(accelerator, which, *overflows)?;
                    let (_, skipped) = pair.step(which)?;
                    // What the next loss is multiplied by.
                    let scale = pair.optimizers[1 - which].loss_scale()?;
                    reported.push(json!([skipped, scale]));
                }
            }
            Ok(reported)
        }) {
            assert_eq!(Value::Array(reported.unwrap()), case["steps"]);
        }
    }
}

/// A micro-batch of a rank that steps by itself.
fn local_step(accelerator: &Accelerator, net: &Prepared<Net>, optimizer: &PreparedOptimizer) -> Result<()> {
    let x = 0.1 + accelerator.process_index() as f32;
    let x = Tensor::from_slice(&[x, 0.5], [1, 2], accelerator.device())?;
    accelerator.backward(&net.forward(&x)?.square()?.mean_all()?)?;
    optimizer.step().map(|_| ())
}

/// What a rank's loop reported, if it failed, and what the model made of an input behind it, or why it did not.
type Ended = (Option<String>, std::result::Result<Vec<f32>, String>);

/// A loop of three local steps with an average behind every second, in which the ranks that `fails` tells fail before
/// their step of that number; what the loop says, and what the model does then.
fn failing(world: usize, fails: fn(usize) -> Option<usize>) -> Vec<Ended> {
    let ranks = on_ranks(world, config(ALL[0], 1, DivideBy::MicroBatches), move |accelerator| {
        let net = net(2, 1)?;
        let optimizer = optim::sgd(&net).lr(0.1);
        let (net, optimizer) = accelerator.prepare((net, optimizer))?;
        let rank = accelerator.process_index();
        let ended =
            accelerator.local_sgd(&net, LocalSgd { local_sgd_steps: 2, ..LocalSgd::default() }, |local| {
                for step in 0..3 {
                    if fails(rank) == Some(step) {
                        return Err(Error::Usage(format!("rank {rank} has no data")));
                    }
                    local_step(accelerator, &net, &optimizer)?;
                    local.step()?;
                }
                Ok(())
            });
        // The loop goes on, in spite of what it was told.
        let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2], accelerator.device())?;
        let used = local_step(accelerator, &net, &optimizer).and_then(|()| {
            net.eval();
            Ok(net.forward(&x)?.to_vec()?)
        });
        net.eval();
        let used = used.and_then(|used| net.forward(&x).map(|_| used)).map_err(|error| error.to_string());
        Ok((ended.err().map(|error| error.to_string()), used))
    });
    ranks.into_iter().map(|rank| rank.unwrap()).collect()
}

#[test]
fn after_an_error_on_all_ranks_local_sgd_ends_with_the_mean() {
    for reported in [failing(2, |_| None), failing(2, |_| Some(1)), failing(3, |_| Some(0))] {
        let first = reported[0].1.clone().unwrap();
        assert!(reported.iter().all(|(_, used)| used.as_ref() == Ok(&first)), "{reported:?}");
    }
    let reported = failing(2, |_| Some(1));
    assert_eq!(reported[1].0.as_deref(), Some("rank 1 has no data"));
}

#[test]
fn where_the_ranks_cannot_meet_after_local_sgd_the_model_says_so_at_its_next_use() {
    let apart = |why: &str| {
        format!(
            "Net has different weights on the ranks, since a `local_sgd` ended without their mean: {why}; build it again and \
             prepare that, with the weights of a checkpoint"
        )
    };
    // One rank fails where the others go on to their next average.
    let reported = failing(3, |rank| (rank == 1).then_some(1));
    let why = "local_sgd: the loop of rank 1 has ended with an error (rank 1 has no data) while rank 0 is inside of its \
               own; all ranks do as many steps";
    for (rank, (ended, used)) in reported.iter().enumerate() {
        assert_eq!(ended.as_deref(), Some(if rank == 1 { "rank 1 has no data" } else { why }));
        assert_eq!(*used, Err(apart(why)));
    }
    // One rank fails where the others come to their end, one step ahead.
    for (rank, (ended, used)) in failing(2, |rank| (rank == 0).then_some(2)).iter().enumerate() {
        assert!(rank == 1 || ended.as_deref() == Some("rank 0 has no data"));
        let used = used.as_ref().unwrap_err();
        assert!(used.contains("rank 0 has 2, rank 1 has 3"), "{used}");
    }
}

#[test]
fn a_panic_inside_of_local_sgd_leaves_no_model_that_looks_whole() {
    let reported = on_ranks(1, config(ALL[0], 1, DivideBy::MicroBatches), |accelerator| {
        let net = net(2, 1)?;
        let optimizer = optim::sgd(&net);
        let (net, optimizer) = accelerator.prepare((net, optimizer))?;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = accelerator.local_sgd(&net, LocalSgd::default(), |_| -> Result<()> { panic!("out") });
        }));
        assert!(panicked.is_err());
        net.eval();
        let forward = net.forward(&Tensor::from_slice(&[1.0f32; 2], [1, 2], accelerator.device())?);
        let used = [local_step(accelerator, &net, &optimizer), forward.map(|_| ())];
        Ok(used.map(|used| used.unwrap_err().to_string()))
    });
    for reported in reported.into_iter().flat_map(|reported| reported.unwrap()) {
        assert!(reported.contains("this rank has left it in the middle"), "{reported}");
    }
}
