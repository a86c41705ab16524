//! Parameter groups of custom training loops, compared with torch and DeepSpeed, in every placement, through checkpoints.

use std::path::{Path, PathBuf};

use oarlock::config::{DeepSpeedShape, Shape, Warmup, WarmupType};
use oarlock::deepspeed::{self, Config, InitializeArgs};
use oarlock::lr_scheduler::Scheduler;
use oarlock::nn::{self, Forward, Linear, Module, Unit};
use oarlock::optim::{self, Optim, Parameters};
use oarlock::shard::{Gather, Offload, Placements};
use oarlock::{
    Accelerator, AcceleratorConfig, DummyOptim, DummyScheduler, Prepared, PreparedOptimizer,
    PreparedScheduler, Result, ShardingConfig, Tensor, lr_scheduler,
};
use oarlock_tensor::ops::optimizer::{AdafactorArgs, AdjustLr, Rule};
use serde_json::{Value, json};

use crate::ranks::on_ranks;

const ROWS: usize = 8;

#[derive(Module)]
struct Net {
    up: Unit<Linear>,
    down: Unit<Linear>,
}

impl Net {
    fn new() -> Result<Net> {
        Ok(Net { up: Unit::new(Linear::new(4, 16)?), down: Unit::new(Linear::new(16, 2)?) })
    }

    fn biases(&self) -> Parameters {
        Parameters::of(self).filter(|named| named.name.ends_with("bias"))
    }

    fn head(&self) -> Parameters {
        Parameters::of(&self.down).filter(|named| named.name == "weight")
    }
}

impl Forward<Tensor> for Net {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.down.forward(&self.up.forward(x)?.tanh()?)
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/param_groups").join(name)
}

fn runs(kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(golden("golden.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all[kind].as_array().unwrap().clone()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64], allowed: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= allowed, "{what} [{index}]: got {got}, want {want}");
    }
}

fn sgd(momentum: f64) -> Rule {
    Rule::Sgd { momentum, dampening: 0.0, nesterov: false }
}

/// The groups of the golden runs.
fn optimizer(rule: &str, net: &Net) -> Optim {
    match rule {
        "adamw" => optim::adamw(net)
            .lr(0.01)
            .weight_decay(0.1)
            .group(net.head(), |group| group.lr(0.05).weight_decay(0.3).betas(0.8, 0.95))
            .no_decay(net.biases()),
        _ => Optim::new(net, sgd(0.9), 0.02, 0.1)
            .group(net.head(), |group| group.lr(0.05).weight_decay(0.3).rule(sgd(0.5)))
            .no_decay(net.biases()),
    }
}

fn schedule(name: &str, optimizer: &Optim) -> Scheduler {
    let warmup = |max_lr| Warmup { min_lr: 0.0, max_lr, num_steps: Some(4), warmup_type: WarmupType::Log };
    let shaped = |shape| Scheduler::shaped(optimizer, Shape::DeepSpeed(shape), 0, 12);
    match name {
        "none" => Scheduler::lambda(optimizer, |_| 1.0),
        "lambda" => Scheduler::lambda(optimizer, |step| 1.0 / (1 + step) as f64),
        "lambdas" => Scheduler::lambda_by_group(optimizer, |step, group| match group {
            0 => 1.0 / (1 + step) as f64,
            1 => 0.5f64.powi(step as i32),
            _ => 1.0,
        }),
        "linear" => lr_scheduler::linear(optimizer, 3, 12),
        "polynomial" => Scheduler::shaped(optimizer, Shape::Polynomial { lr_end: 0.004, power: 1.0 }, 2, 12),
        "WarmupLR" => shaped(DeepSpeedShape::WarmupLr(warmup(None))),
        "WarmupLR to one rate" => shaped(DeepSpeedShape::WarmupLr(warmup(Some(0.03)))),
        "WarmupLR between lists" => {
            let shapes = [(0.001, 0.03), (0.0, 0.02), (0.002, 0.01)].map(|(min_lr, max_lr)| {
                Shape::DeepSpeed(DeepSpeedShape::WarmupLr(Warmup { min_lr, ..warmup(Some(max_lr)) }))
            });
            let message =
                Scheduler::shaped_by_group(optimizer, &shapes[..2], 0, 12).err().unwrap().to_string();
            assert!(message.contains("2 shapes") && message.contains("3 parameter groups"), "{message}");
            Scheduler::shaped_by_group(optimizer, &shapes, 0, 12).unwrap()
        }
        "WarmupCosineLR" => shaped(DeepSpeedShape::WarmupCosineLr {
            warmup_min_ratio: 0.0,
            warmup_num_steps: Some(3),
            warmup_type: WarmupType::Log,
            cos_min_ratio: 1e-4,
            total_num_steps: Some(12),
        }),
        other => panic!("no schedule {other}"),
    }
}

fn alone() -> Result<Accelerator> {
    let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
    Accelerator::over(oarlock_comm::Communicator::solo(), &config)
}

/// The rows of a rank of a batch.
fn batch(accelerator: &Accelerator, step: usize) -> Result<Tensor> {
    let rows = ROWS / accelerator.num_processes();
    let first = step * ROWS + accelerator.process_index() * rows;
    let x: Vec<f32> = (first * 4..(first + rows) * 4).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
    Ok(Tensor::from_slice(&x, [rows, 4], accelerator.device())?)
}

fn loss_of(net: &Prepared<Net>, x: &Tensor) -> Result<Tensor> {
    let y = net.forward(x)?;
    let ones = vec![1.0f32; y.shape().n_elems()];
    let ones = Tensor::from_slice(&ones, *y.shape(), x.device())?;
    Ok(y.sub(&ones)?.square()?.mean_all()?)
}

/// All weights by name.
fn weights(accelerator: &Accelerator, net: &Prepared<Net>) -> Result<Vec<(String, Vec<f32>)>> {
    let weights = accelerator.get_state_dict(net)?;
    weights.iter().map(|(name, weight)| Ok((name.clone(), weight.to_vec::<f32>()?))).collect()
}

fn assert_weights(got: &[(String, Vec<f32>)], want: &Value, what: &str) {
    assert_eq!(got.len(), want.as_object().unwrap().len(), "{what}");
    for (name, weight) in got {
        let weight: Vec<f64> = weight.iter().map(|x| f64::from(*x)).collect();
        assert_close(&weight, &numbers(&want[name]), 2e-6, &format!("{what}: {name}"));
    }
}

#[test]
fn groups_and_their_schedules_are_those_of_torch_transformers_and_deepspeed() {
    let runs = runs("loops");
    for run in &runs {
        let (rule, name) = (run["rule"].as_str().unwrap(), run["schedule"].as_str().unwrap());
        let what = format!("{rule} {name}");
        let accelerator = alone().unwrap();
        let net = Net::new().unwrap();
        let optimizer = optimizer(rule, &net);
        let scheduler = schedule(name, &optimizer);
        let (net, optimizer, scheduler) = accelerator.prepare((net, optimizer, scheduler)).unwrap();
        accelerator.load_model(&net, golden("net.safetensors")).unwrap();
        let mut losses = Vec::new();
        for (step, rates) in run["rates"].as_array().unwrap().iter().enumerate() {
            assert_close(&optimizer.group_lrs(), &numbers(rates), 1e-15, &format!("{what} at {step}"));
            assert_eq!(scheduler.last_lrs(), optimizer.group_lrs());
            assert_eq!(
                (scheduler.last_lr(), optimizer.lr()),
                (scheduler.last_lrs()[0], scheduler.last_lrs()[0])
            );
            let loss = loss_of(&net, &batch(&accelerator, step).unwrap()).unwrap();
            accelerator.backward(&loss).unwrap();
            optimizer.step().unwrap();
            scheduler.step();
            losses.push(loss.item::<f64>().unwrap());
        }
        assert_close(&losses, &numbers(&run["losses"]), 2e-6, &what);
        assert_weights(&weights(&accelerator, &net).unwrap(), &run["end"], &what);
    }
    assert_eq!(runs.len(), 18);
}

#[test]
fn an_engine_keeps_the_groups_of_the_code_and_of_model_parameters_as_deepspeed_does() {
    let runs = runs("engines");
    for run in &runs {
        let title = run["title"].as_str().unwrap();
        let accelerator = alone().unwrap();
        let net = Net::new().unwrap();
        let (client, model_parameters) = match run["client"].as_bool().unwrap() {
            true => (Some(optimizer("adamw", &net)), None),
            false => {
                let head = net.head();
                let groups = DummyOptim::new(&net)
                    .group(head, |group| group.lr(0.05).weight_decay(0.3).betas(0.8, 0.95))
                    .group(net.biases(), |group| group.weight_decay(0.0));
                (None, Some(groups))
            }
        };
        let config = Config::from_value(&run["config"]).unwrap();
        let args = InitializeArgs {
            accelerator: Some(accelerator.clone()),
            optimizer: client,
            model_parameters,
            ..InitializeArgs::new(net, config)
        };
        let (engine, ()) = deepspeed::initialize(args).unwrap();
        accelerator.load_model(engine.model(), golden("net.safetensors")).unwrap();
        let mut losses = Vec::new();
        for (step, rates) in run["rates"].as_array().unwrap().iter().enumerate() {
            let lrs = engine.group_lrs().unwrap();
            assert_close(&lrs, &numbers(rates), 1e-15, &format!("{title} at {step}"));
            let loss = loss_of(engine.model(), &batch(&accelerator, step).unwrap()).unwrap();
            engine.backward(&loss).unwrap();
            engine.step().unwrap();
            losses.push(loss.item::<f64>().unwrap());
        }
        assert_close(&losses, &numbers(&run["losses"]), 2e-6, title);
        assert_weights(&weights(&accelerator, engine.model()).unwrap(), &run["end"], title);
    }
    assert_eq!(runs.len(), 5);
}

/// What Accelerate 1.15 with DeepSpeed 0.19 does: an `"auto"` is the optimizer's one rate.
#[test]
fn a_stand_in_has_groups_and_an_auto_peak_takes_all_of_them_to_one_rate() {
    let config = json!({
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": { "stage": 2 },
        "optimizer": { "type": "AdamW", "params": { "lr": "auto", "weight_decay": "auto" } },
        "scheduler": { "type": "WarmupLR", "params": {
            "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
        } },
    });
    let run = |config: &Value| {
        let settings = AcceleratorConfig {
            deepspeed_plugin: Some(Config::from_value(config).unwrap().into()),
            threads: Some(1),
            ..AcceleratorConfig::default()
        };
        let accelerator = Accelerator::over(oarlock_comm::Communicator::solo(), &settings).unwrap();
        let net = Net::new().unwrap();
        let optimizer = DummyOptim::new(&net).lr(0.01).group(net.head(), |group| group.lr(0.05));
        let scheduler = DummyScheduler::new(&optimizer, 10, 2);
        let (net, optimizer, scheduler) = accelerator.prepare((net, optimizer, scheduler)).unwrap();
        let mut lrs = Vec::new();
        for step in 0..4 {
            lrs.push(optimizer.group_lrs());
            let loss = loss_of(&net, &batch(&accelerator, step).unwrap()).unwrap();
            accelerator.backward(&loss).unwrap();
            optimizer.step().unwrap();
            scheduler.step();
        }
        lrs
    };
    assert_eq!(run(&config), [[0.0, 0.0], [0.0, 0.0], [0.01, 0.01], [0.01, 0.01]]);
    let mut silent = config.clone();
    silent["scheduler"]["params"] = json!({ "warmup_num_steps": 2 });
    assert_eq!(run(&silent), [[0.0, 0.0], [0.0, 0.0], [0.01, 0.05], [0.01, 0.05]]);
}

fn rules() -> Vec<Rule> {
    let (beta1, beta2, eps) = (0.9, 0.99, 1e-8);
    vec![
        Rule::AdamW { beta1, beta2, eps },
        Rule::Adam { beta1, beta2, eps },
        sgd(0.9),
        Rule::Adagrad { lr_decay: 0.1, initial_accumulator_value: 0.1, eps: 1e-10 },
        Rule::Lion { beta1, beta2 },
        Rule::Lamb {
            beta1,
            beta2,
            eps: 1e-6,
            eps_inside_sqrt: false,
            bias_correction: true,
            max_coeff: 10.0,
            min_coeff: 0.01,
        },
        Rule::Adafactor(AdafactorArgs::TORCH),
        Rule::Muon {
            momentum: 0.95,
            nesterov: true,
            ns_coefficients: [3.4445, -4.775, 2.0315],
            ns_steps: 5,
            eps: 1e-7,
            adjust_lr: AdjustLr::MatchRmsAdamW,
            adam_lr_ratio: 0.5,
            adam_beta1: beta1,
            adam_beta2: beta2,
            adam_eps: eps,
        },
    ]
}

/// The bits of all weights after some steps on `world` ranks. All have the same rows, so that the mean over ranks has the
/// same bits on 1, 2 and 4.
fn train(
    world: usize,
    shard: &ShardingConfig,
    optimizer: impl Fn(&Net) -> Optim + Sync,
) -> Vec<(String, Vec<u32>)> {
    let config = AcceleratorConfig { shard: shard.clone(), threads: Some(1), ..AcceleratorConfig::default() };
    let mut ranks = on_ranks(world, config, move |accelerator| {
        let net = Net::new()?;
        let optimizer = optimizer(&net);
        let scheduler = lr_scheduler::linear(&optimizer, 0, 9);
        let (optimizer, net, scheduler) = accelerator.prepare((optimizer, net, scheduler))?;
        accelerator.load_model(&net, golden("net.safetensors"))?;
        for step in 0..4 {
            let x: Vec<f32> = (0..16).map(|i| ((i + 16 * step) as f32).sin()).collect();
            let x = Tensor::from_slice(&x, [4, 4], accelerator.device())?;
            accelerator.backward(&loss_of(&net, &x)?)?;
            accelerator.clip_grad_norm(&optimizer, 0.25)?;
            optimizer.step()?;
            scheduler.step();
        }
        weights(accelerator, &net)
    });
    let first = ranks.remove(0).unwrap();
    first.into_iter().map(|(name, weight)| (name, weight.iter().map(|x| x.to_bits()).collect())).collect()
}

/// All ways to hold a model; the last ones have the state in files, updated in small pieces.
fn ways() -> Vec<ShardingConfig> {
    let all = [Placements::WHOLE, Placements::OPTIMIZER, Placements::GRADIENTS, Placements::PARAMETERS];
    let mut ways = all.map(|placements| ShardingConfig { placements, ..ShardingConfig::default() }).to_vec();
    let copied = ShardingConfig {
        gather: Gather::Copy,
        persistence_elems: 0,
        placements: all[3],
        ..ShardingConfig::default()
    };
    let file = Offload { dir: Some(std::env::temp_dir()), sub_group_elems: 24, buffers: 3 };
    ways.push(copied.clone());
    ways.push(ShardingConfig { offload_optimizer: Some(file.clone()), ..copied.clone() });
    ways.push(ShardingConfig { offload_optimizer: Some(file.clone()), offload_params: Some(file), ..copied });
    ways
}

#[test]
fn every_rule_has_the_same_bits_with_groups_in_every_placement() {
    for rule in rules() {
        let of_group = rule.clone();
        let grouped = move |net: &Net| {
            Optim::new(net, of_group.clone(), 0.01, 0.1)
                .group(net.head(), |group| group.lr(0.04).weight_decay(0.3).betas(0.8, 0.95))
                .no_decay(net.biases())
        };
        let expected = train(1, &ShardingConfig::default(), grouped.clone());
        let plain = rule.clone();
        let plain =
            train(1, &ShardingConfig::default(), move |net| Optim::new(net, plain.clone(), 0.01, 0.1));
        assert_ne!(expected, plain);
        for world in [1, 2, 4] {
            for options in ways() {
                assert_eq!(train(world, &options, grouped.clone()), expected, "{rule:?} {world} {options:?}");
            }
        }
    }
}

#[test]
fn a_group_at_rest_stays_and_groups_that_say_nothing_change_nothing() {
    let start = train(1, &ShardingConfig::default(), |net| optim::sgd(net).lr(0.0));
    for rule in rules() {
        let new = {
            let rule = rule.clone();
            move |net: &Net, lr, weight_decay| Optim::new(net, rule.clone(), lr, weight_decay)
        };
        let [at_rest, alone, silent] = [(); 3].map(|()| new.clone());
        let resting = train(1, &ShardingConfig::default(), move |net| {
            at_rest(net, 0.01, 0.1).group(net.head(), |group| group.lr(0.0))
        });
        for ((name, ended), (_, began)) in resting.iter().zip(&start) {
            assert_eq!(ended == began, name == "down.weight", "{rule:?}: {name}");
        }
        let plain = train(1, &ShardingConfig::default(), move |net| alone(net, 0.01, 0.1));
        let silent = train(1, &ShardingConfig::default(), move |net| {
            silent(net, 1.0, 0.7).group(net.head(), |group| group).lr(0.01).weight_decay(0.1)
        });
        assert_eq!(plain, silent, "{rule:?}");
    }
}

type Loop = (Prepared<Net>, PreparedOptimizer, PreparedScheduler);

fn prepare(accelerator: &Accelerator, optimizer: impl Fn(&Net) -> Optim) -> Result<Loop> {
    let net = Net::new()?;
    let optimizer = optimizer(&net);
    let scheduler = lr_scheduler::cosine(&optimizer, 2, 12);
    accelerator.prepare((net, optimizer, scheduler))
}

fn steps(accelerator: &Accelerator, (net, optimizer, scheduler): &Loop, steps: usize) -> Result<()> {
    for step in 0..steps {
        accelerator.backward(&loss_of(net, &batch(accelerator, step)?)?)?;
        optimizer.step()?;
        scheduler.step();
    }
    Ok(())
}

#[test]
fn a_run_with_groups_goes_on_to_the_bit_and_not_with_others() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let accelerator = alone().unwrap();
    let first = prepare(&accelerator, |net| optimizer("adamw", net)).unwrap();
    steps(&accelerator, &first, 3).unwrap();
    // A rate that no schedule says.
    first.1.set_group_lr(2, 1.0 / 3.0).unwrap();
    accelerator.save_state(Some(&dir)).unwrap();
    let lrs = first.1.group_lrs();
    steps(&accelerator, &first, 4).unwrap();
    let expected = weights(&accelerator, &first.0).unwrap();

    let accelerator = alone().unwrap();
    let again = prepare(&accelerator, |net| optimizer("adamw", net)).unwrap();
    accelerator.load_state(Some(&dir)).unwrap();
    assert_eq!(again.1.group_lrs(), lrs);
    assert_eq!(lrs[2], 1.0 / 3.0);
    steps(&accelerator, &again, 4).unwrap();
    assert_eq!(weights(&accelerator, &again.0).unwrap(), expected);

    let accelerator = alone().unwrap();
    let fewer = prepare(&accelerator, |net| optim::adamw(net).no_decay(net.biases())).unwrap();
    let before = (fewer.1.group_lrs(), weights(&accelerator, &fewer.0).unwrap());
    let message = accelerator.load_state(Some(&dir)).unwrap_err().to_string();
    assert!(message.contains("with 3 parameter groups, and this one has 2"), "{message}");
    assert_eq!((fewer.1.group_lrs(), weights(&accelerator, &fewer.0).unwrap()), before);
}

#[test]
fn an_engine_without_a_schedule_goes_on_at_the_rates_that_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let engine = |grouped: bool| {
        let net = Net::new().unwrap();
        let optimizer = if grouped { optimizer("adamw", &net) } else { optim::adamw(&net) };
        let config = Config::from_text("ds.json", r#"{"train_batch_size": 8}"#).unwrap();
        let args = InitializeArgs {
            accelerator: Some(alone().unwrap()),
            optimizer: Some(optimizer),
            ..InitializeArgs::new(net, config)
        };
        deepspeed::initialize(args).unwrap().0
    };
    let first = engine(true);
    first.set_lr(0.25).unwrap();
    first.save_checkpoint(folder.path(), Some("tag"), &()).unwrap();
    let again = engine(true);
    assert_eq!(again.group_lrs().unwrap(), [0.01, 0.05, 0.01]);
    again.load_checkpoint::<()>(folder.path(), Some("tag")).unwrap();
    assert_eq!(again.group_lrs().unwrap(), [0.25; 3]);
    let message = engine(false).load_checkpoint::<()>(folder.path(), Some("tag")).unwrap_err().to_string();
    assert!(message.contains("with 3 parameter groups, and this one has 1"), "{message}");
}
