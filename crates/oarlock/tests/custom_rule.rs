//! A custom rule of an optimizer: AdamW, written by the trait, is bitwise identical to the built-in one wherever its
//! states are.

use std::path::Path;

use oarlock::nn::{self, Forward, Linear, Module, Unit};
use oarlock::optim::{self, CustomRule, Optim, Update};
use oarlock::shard::{Gather, Offload, Placements};
use oarlock::{
    Accelerator, AcceleratorConfig, DType, Prepared, PreparedOptimizer, PreparedScheduler, Result,
    ShardingConfig, Tensor, lr_scheduler,
};

use crate::ranks::net::ALL;
use crate::ranks::on_ranks;

#[derive(Clone, Debug)]
struct AdamW {
    betas: [f64; 2],
}

impl CustomRule<2> for AdamW {
    fn name(&self) -> &'static str {
        "adamw_by_hand"
    }

    fn states(&self) -> [&'static str; 2] {
        ["exp_avg", "exp_avg_sq"]
    }

    fn update(&self, update: Update<'_, 2>) {
        let Update { weights, grad, states: [first, second], step, lr, weight_decay, .. } = update;
        let [correction1, correction2] = self.betas.map(|beta| 1.0 - beta.powf(step as f64));
        let (keep, step_size) = ((1.0 - lr * weight_decay) as f32, (lr / correction1) as f32);
        let (root, beta2) = (correction2.sqrt() as f32, self.betas[1] as f32);
        let [rest1, rest2] = self.betas.map(|beta| (1.0 - beta) as f32);
        for (((w, m), v), g) in weights.iter_mut().zip(first).zip(second).zip(grad) {
            *m += rest1 * (g - *m);
            *v = *v * beta2 + rest2 * g * g;
            *w = *w * keep - step_size * *m / (v.sqrt() / root + 1e-8);
        }
    }

    fn betas(&self) -> Option<[f64; 2]> {
        Some(self.betas)
    }

    fn with_betas(self, betas: [f64; 2]) -> AdamW {
        AdamW { betas }
    }
}

#[derive(Module)]
struct Net {
    up: Unit<Linear>,
    down: Unit<Linear>,
}

impl Forward<Tensor> for Net {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.down.forward(&self.up.forward(x)?.tanh()?)
    }
}

type Loop = (Prepared<Net>, PreparedOptimizer, PreparedScheduler);

/// A model of which a rank owns more than a block, with an optimizer in three groups.
fn prepare(accelerator: &Accelerator, by_hand: bool) -> Result<Loop> {
    let net = Net { up: Unit::new(Linear::new(40, 130)?), down: Unit::new(Linear::new(130, 20)?) };
    let optimizer: Optim = match by_hand {
        true => optim::custom(&net, AdamW { betas: [0.9, 0.999] }).weight_decay(0.01),
        false => optim::adamw(&net),
    };
    let optimizer = optimizer
        .lr(0.01)
        .group(&net.down, |group| group.lr(0.05).betas(0.8, 0.95))
        .no_decay_of_vectors(&net.up);
    let scheduler = lr_scheduler::linear(&optimizer, 2, 12);
    accelerator.prepare((net, optimizer, scheduler))
}

/// Steps on the same rows on all ranks, so that the mean over ranks is bitwise identical on 1 and 2.
fn steps(accelerator: &Accelerator, model: &Loop, steps: std::ops::Range<usize>) -> Result<()> {
    let (net, optimizer, scheduler) = model;
    for step in steps {
        let x: Vec<f32> = (0..4 * 40).map(|i| ((i + 160 * step) as f32).sin()).collect();
        let x = Tensor::from_slice(&x, [4, 40], accelerator.device())?;
        let loss = (net.forward(&x)? - 1.0)?.square()?.mean_all()?;
        accelerator.backward(&loss)?;
        accelerator.clip_grad_norm(optimizer, 0.25)?;
        optimizer.step()?;
        scheduler.step();
    }
    Ok(())
}

fn weights(accelerator: &Accelerator, net: &Prepared<Net>) -> Result<Vec<(String, Vec<u32>)>> {
    let bits = |(name, weight): (&String, &Tensor)| {
        Ok((name.clone(), weight.to_f32_vec()?.into_iter().map(f32::to_bits).collect()))
    };
    accelerator.get_state_dict(net)?.iter().map(bits).collect()
}

fn config(shard: ShardingConfig) -> AcceleratorConfig {
    AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() }
}

/// The bits of rank 0 after ten steps.
fn train(world: usize, shard: &ShardingConfig, by_hand: bool) -> Vec<(String, Vec<u32>)> {
    let mut ranks = on_ranks(world, config(shard.clone()), move |accelerator| {
        let model = prepare(accelerator, by_hand)?;
        steps(accelerator, &model, 0..10)?;
        weights(accelerator, &model.0)
    });
    ranks.remove(0).unwrap()
}

#[test]
fn it_has_the_bits_of_the_built_in_rule_in_every_placement() {
    let expected = train(1, &ShardingConfig::default(), false);
    let file = Offload { dir: Some(std::env::temp_dir()), sub_group_elems: 1000, buffers: 2 };
    let mut ways = ALL.map(|placements| ShardingConfig { placements, ..ShardingConfig::default() }).to_vec();
    let copied = ShardingConfig { gather: Gather::Copy, persistence_elems: 0, ..ways[3].clone() };
    ways.push(ShardingConfig { offload_optimizer: Some(file), ..copied });
    for world in [1, 2] {
        for options in &ways {
            assert_eq!(train(world, options, true), expected, "{world} {options:?}");
        }
    }
}

#[test]
fn it_has_the_bits_of_the_built_in_rule_with_16_bit_weights_and_a_loss_scale() {
    for dtype in [DType::BF16, DType::F16] {
        let options =
            ShardingConfig { dtype, placements: Placements::GRADIENTS, ..ShardingConfig::default() };
        assert_eq!(train(2, &options, true), train(2, &options, false), "{dtype}");
    }
}

#[test]
fn its_states_are_saved_and_go_on_on_another_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let save = |dir: &Path, by_hand: bool| {
        let dir = dir.to_path_buf();
        let shard = ShardingConfig { placements: Placements::PARAMETERS, ..ShardingConfig::default() };
        let saved = on_ranks(2, config(shard), move |accelerator| {
            let model = prepare(accelerator, by_hand)?;
            steps(accelerator, &model, 0..5)?;
            accelerator.save_state(Some(&dir)).map(|_| ())
        });
        saved.into_iter().for_each(|saved| saved.unwrap());
    };
    save(&dir, true);
    let go_on = |options: ShardingConfig, world| {
        let dir = dir.clone();
        let mut ranks = on_ranks(world, config(options), move |accelerator| {
            let model = prepare(accelerator, true)?;
            accelerator.load_state(Some(&dir))?;
            steps(accelerator, &model, 5..10)?;
            weights(accelerator, &model.0)
        });
        ranks.remove(0).unwrap()
    };
    let expected = train(1, &ShardingConfig::default(), false);
    for placements in ALL {
        for world in [1, 2] {
            let options = ShardingConfig { placements, ..ShardingConfig::default() };
            assert_eq!(go_on(options, world), expected, "{world} {placements:?}");
        }
    }

    // The name of the rule says whose states they are.
    let other = folder.path().join("other");
    save(&other, false);
    let message = on_ranks(1, config(ShardingConfig::default()), move |accelerator| {
        let _model = prepare(accelerator, true)?;
        accelerator.load_state(Some(&other)).map(|_| ())
    });
    let message = message[0].as_ref().unwrap_err().to_string();
    assert!(message.contains("adamw_by_hand") && message.contains("adamw"), "{message}");
}
