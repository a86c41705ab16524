//! A model with a frozen part, parts that a step does not touch, a shared weight and a buffer, in every placement.

use oarlock::nn::{self, Buffer, Forward, Linear, Module, Unit, Wrap};
use oarlock::optim::{self, Optim};
use oarlock::shard::{Gather, Offload, Placements, Untouched};
use oarlock::{Accelerator, AcceleratorConfig, GradientAccumulation, Result, ShardingConfig, Tensor};
use oarlock_comm::Operation;
use oarlock_tensor::ops::optimizer::Rule;

use super::{alone, assert_close, floats, golden, ints, json, weight};
use crate::ranks;

#[derive(Module)]
struct Parts {
    frozen: Unit<Linear>,
    a: Unit<Linear>,
    b: Unit<Linear>,
    first: Unit<Linear>,
    second: Unit<Linear>,
    unused: Unit<Linear>,
    table: Buffer,
}

impl Parts {
    fn new() -> Result<Parts> {
        let first = Linear::new(6, 6)?.no_bias();
        let parts = Parts {
            frozen: Unit::new(Linear::new(4, 6)?),
            a: Unit::new(Linear::new(6, 6)?),
            b: Unit::new(Linear::new(6, 6)?),
            second: Unit::new(Linear::with_weight(first.weight.clone())),
            first: Unit::new(first),
            unused: Unit::new(Linear::new(6, 3)?),
            table: Buffer::from_fn([6], |_| 0.0)?,
        };
        nn::freeze(&parts.frozen);
        Ok(parts)
    }
}

/// Rows and the branch that they take; 2 is the part that training never comes to.
impl Forward<(Tensor, usize)> for Parts {
    type Output = Tensor;
    fn forward(&self, (x, branch): &(Tensor, usize)) -> nn::Result<Tensor> {
        let h = self.frozen.forward(x)?.tanh()?;
        let h = match branch {
            0 => self.a.forward(&h)?,
            1 => self.b.forward(&h)?,
            _ => return self.unused.forward(&h),
        };
        let h = self.first.forward(&h.tanh()?)?.tanh()?;
        self.second.forward(&h)?.add(&self.table.on(x.device())?)
    }
}

/// Batch `index` of the golden runs.
fn batch(accelerator: &Accelerator, index: usize) -> Result<Tensor> {
    let x: Vec<f32> = (index * 16..(index + 1) * 16).map(|i| (i as f32).sin()).collect();
    Ok(Tensor::from_slice(&x, [4, 4], accelerator.device())?)
}

fn rule(name: &str, parts: &Parts) -> Optim {
    match name {
        "adamw" => optim::adamw(parts).lr(0.05).weight_decay(0.1),
        _ => Optim::new(parts, Rule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: false }, 0.1, 0.1),
    }
}

#[test]
fn untouched_parameters_are_as_in_torch_with_zero_gradients_and_with_none() {
    let golden_runs = json("own_model/steps.json");
    let branches = ints(&golden_runs["branches"]);
    for name in ["adamw skip", "adamw zero", "sgd skip", "sgd zero"] {
        let (rule_name, untouched) = name.split_once(' ').unwrap();
        let untouched = if untouched == "skip" { Untouched::Skip } else { Untouched::Zero };
        let shard = ShardingConfig { untouched, ..ShardingConfig::default() };
        let accelerator = alone(&AcceleratorConfig { shard, ..AcceleratorConfig::default() });
        let parts = Parts::new().unwrap();
        let optimizer = rule(rule_name, &parts);
        let (parts, optimizer) = accelerator.prepare((parts, optimizer)).unwrap();
        accelerator.load_model(&parts, golden("own_model/steps.safetensors")).unwrap();
        let expected = &golden_runs["runs"][name];
        let mut losses = Vec::new();
        for (step, &branch) in branches.iter().enumerate() {
            let x = batch(&accelerator, step).unwrap();
            let y = parts.forward(&(x, branch as usize)).unwrap();
            let loss = y.square().unwrap().mean_all().unwrap();
            accelerator.backward(&loss).unwrap();
            optimizer.step().unwrap();
            losses.push(loss.item::<f32>().unwrap());
        }
        assert_close(&losses, &floats(&expected["losses"]), 1e-5, name);
        for (param, end) in expected["end"].as_object().unwrap() {
            assert_close(&weight(&parts, param), &floats(end), 2e-5, &format!("{name}: {param}"));
        }
    }
}

#[derive(Clone, Debug)]
struct Run {
    world: usize,
    micros: usize,
    options: ShardingConfig,
    rule: &'static str,
}

/// Losses of all micro-batches, and what all parts make of a batch in the end, as rank 0 has it; with the gathers that
/// it took.
fn train(run: &Run) -> (Vec<f32>, Vec<f32>, u64) {
    let config = AcceleratorConfig {
        shard: run.options.clone(),
        gradient_accumulation: GradientAccumulation::steps(run.micros / run.world),
        threads: Some(1),
        ..AcceleratorConfig::default()
    };
    let results = ranks::on_ranks(run.world, config, |accelerator| rank(accelerator, run));
    let mut results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    let end = results[0].1.clone();
    assert!(results.iter().all(|result| result.1 == end), "ranks differ: {run:?}");
    results.swap_remove(0)
}

fn rank(accelerator: &Accelerator, run: &Run) -> Result<(Vec<f32>, Vec<f32>, u64)> {
    let parts = Parts::new()?;
    let optimizer = rule(run.rule, &parts);
    let (optimizer, parts) = accelerator.prepare((optimizer, parts))?;
    accelerator.load_model(&parts, golden("own_model/steps.safetensors"))?;
    let (rank, world) = (accelerator.process_index(), accelerator.num_processes());
    let mut losses = Vec::new();
    for step in 0..5 {
        for round in 0..run.micros / world {
            let micro = round * world + rank;
            // Ranks take different branches in one step, and in one step nobody takes the first.
            let branch = if step == 3 { 1 } else { (step + micro / 2 + micro) % 2 };
            let x = batch(accelerator, step * run.micros + micro)?;
            accelerator.accumulate(|| {
                let loss = parts.forward(&(x, branch))?.square()?.mean_all()?;
                accelerator.backward(&loss)?;
                accelerator.clip_grad_norm(&optimizer, 0.7)?;
                optimizer.step()?;
                optimizer.zero_grad()?;
                losses.push(loss.item::<f32>()?);
                Ok(())
            })?;
        }
    }
    parts.eval();
    let mut end = Vec::new();
    for branch in 0..3 {
        end.extend(parts.forward(&(batch(accelerator, 0)?, branch))?.to_vec::<f32>()?);
    }
    let traffic = accelerator.communicator().traffic();
    let gathers = traffic.iter().filter(|traffic| traffic.operation == Operation::AllGather);
    Ok((losses, end, gathers.map(|traffic| traffic.calls).sum()))
}

fn placed(placements: Placements, gather: Gather) -> ShardingConfig {
    ShardingConfig { placements, gather, persistence_elems: 0, ..ShardingConfig::default() }
}

fn stages() -> Vec<ShardingConfig> {
    vec![
        placed(Placements::WHOLE, Gather::InPlace),
        placed(Placements::OPTIMIZER, Gather::InPlace),
        placed(Placements::GRADIENTS, Gather::InPlace),
        placed(Placements::PARAMETERS, Gather::InPlace),
        placed(Placements::OPTIMIZER, Gather::Copy),
        placed(Placements::GRADIENTS, Gather::Copy),
        placed(Placements::PARAMETERS, Gather::Copy),
    ]
}

/// Groups of ranks, and the optimizer's state in a file, in small pieces.
fn special(world: usize) -> Vec<ShardingConfig> {
    let parameters = placed(Placements::PARAMETERS, Gather::Copy);
    let file = Offload { dir: Some(std::env::temp_dir()), sub_group_elems: 32, buffers: 3 };
    let mut special = vec![ShardingConfig { offload_optimizer: Some(file), ..parameters.clone() }];
    if world == 4 {
        special.push(ShardingConfig { group: Some(2), ..parameters });
    }
    special
}

#[test]
fn every_stage_gives_the_same_bits_whoever_touches_what() {
    for (rule, untouched) in
        [("adamw", Untouched::Zero), ("adamw", Untouched::Skip), ("sgd", Untouched::Skip)]
    {
        for world in [1, 2, 4] {
            let mut expected: Option<(Vec<f32>, Vec<f32>)> = None;
            for options in stages().into_iter().chain(special(world)) {
                let run =
                    Run { world, micros: world, options: ShardingConfig { untouched, ..options }, rule };
                let (losses, end, _) = train(&run);
                assert_ne!(losses[0], losses[losses.len() - 1]);
                match &expected {
                    None => expected = Some((losses, end)),
                    Some(expected) => assert_eq!(&(losses, end), expected, "{run:?}"),
                }
            }
        }
    }
}

#[test]
fn one_split_trains_alike_on_any_number_of_ranks() {
    for untouched in [Untouched::Zero, Untouched::Skip] {
        let of = |world: usize, options: ShardingConfig| {
            train(&Run { world, micros: 4, options: ShardingConfig { untouched, ..options }, rule: "adamw" })
                .1
        };
        let expected = of(1, stages().remove(0));
        for world in [1, 2, 4] {
            for options in [stages().remove(0), stages().remove(6)] {
                assert_close(&of(world, options.clone()), &expected, 1e-5, &format!("{world} {options:?}"));
            }
        }
    }
}

#[test]
fn a_wrap_policy_changes_what_is_gathered_and_no_bit() {
    let of = |wrap: Wrap| {
        let options = ShardingConfig { wrap, ..placed(Placements::PARAMETERS, Gather::Copy) };
        train(&Run { world: 2, micros: 2, options, rule: "adamw" })
    };
    let declared = of(Wrap::Declared);
    let kinds = |kind: &str| Wrap::Transformer(vec![kind.to_owned()]);
    for (wrap, gathers) in [
        (kinds("Linear"), Some(declared.2)),
        // The frozen part and both branches have 30 and 42 elements, the shared weight 36, the unused part 21.
        (Wrap::Size(37), None),
        (Wrap::None, None),
    ] {
        let (losses, end, n) = of(wrap.clone());
        assert_eq!((&losses, &end), (&declared.0, &declared.1), "{wrap:?}");
        match gathers {
            Some(gathers) => assert_eq!(n, gathers, "{wrap:?}"),
            None => assert!(n < declared.2, "{wrap:?}: {n} gathers, {} with all units", declared.2),
        }
    }
}

#[test]
fn buffers_come_from_files_and_parameters_are_counted_once() {
    let accelerator = alone(&AcceleratorConfig::default());
    let parts = accelerator.prepare(Parts::new().unwrap()).unwrap();
    accelerator.load_model(&parts, golden("own_model/steps.safetensors")).unwrap();
    let table = parts.module().table.on(accelerator.device()).unwrap().to_vec::<f32>().unwrap();
    assert_close(&table, &[-1.0, -0.6, -0.2, 0.2, 0.6, 1.0], 1e-6, "table");
    let names: Vec<_> = nn::parameters(&**parts.module()).into_iter().map(|named| named.name).collect();
    assert!(names.contains(&"first.weight".to_owned()) && !names.contains(&"second.weight".to_owned()));
    assert!(nn::names_of(&**parts.module()).iter().any(|named| named.name == "second.weight"));
}

#[derive(Module)]
struct Outer {
    block: Unit<Pair>,
}

#[derive(Module)]
struct Pair {
    up: Unit<Linear>,
    down: Unit<Linear>,
}

impl Forward<Tensor> for Outer {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.block.call(x, |pair, x| pair.down.forward(&pair.up.forward(x)?.tanh()?))
    }
}

#[test]
fn units_inside_of_a_dissolved_unit_train_alike_though_it_was_to_be_computed_again() {
    let of = |wrap: Wrap| {
        let shard = ShardingConfig { wrap, ..placed(Placements::PARAMETERS, Gather::Copy) };
        let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
        let ranks = ranks::on_ranks(2, config, |accelerator| {
            let pair = Pair { up: Unit::new(Linear::new(4, 8)?), down: Unit::new(Linear::new(8, 2)?) };
            let outer = Outer { block: Unit::new(pair) };
            outer.block.unit_run().set_recompute(true);
            let optimizer = optim::adamw(&outer).lr(0.05);
            let (outer, optimizer) = accelerator.prepare((outer, optimizer))?;
            let mut losses = Vec::new();
            for step in 0..4 {
                let x = batch(accelerator, 2 * step + accelerator.process_index())?;
                let loss = outer.forward(&x)?.square()?.mean_all()?;
                accelerator.backward(&loss)?;
                optimizer.step()?;
                losses.push(loss.item::<f32>()?);
            }
            Ok(losses)
        });
        ranks.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    let declared = of(Wrap::Declared);
    assert_eq!(of(Wrap::Transformer(vec!["Linear".to_owned()])), declared);
    assert_eq!(of(Wrap::None), declared);
}
