//! A custom training loop and a custom model: the same results in every placement and on any number of ranks.

use oarlock::nn::{self, Forward, Linear, Module};
use oarlock::shard::{Gather, Lifetime, Placements};
use oarlock::{
    Accelerator, AcceleratorConfig, GradientAccumulation, Prepared, Result, ShardingConfig, Tensor,
    lr_scheduler, optim,
};
use oarlock_tensor::ops::{HeadOptions, Labels, head_loss};

use crate::ranks::on_ranks;

#[derive(Module)]
struct Net {
    up: nn::Unit<Linear>,
    down: nn::Unit<Linear>,
}

impl Forward<Tensor> for Net {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let h = self.up.run(x, |up| up.forward(x))?.tanh()?;
        self.down.run(&h, |down| down.forward(&h))
    }
}

/// How a batch becomes a loss.
type LossOf = fn(&Prepared<Net>, &Tensor, &Tensor) -> Result<Tensor>;

fn of_one_pass(net: &Prepared<Net>, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    Ok(net.forward(x)?.sub(y)?.square()?.mean_all()?)
}

/// The same loss through two passes that meet.
fn of_two_passes(net: &Prepared<Net>, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let half = net.forward(x)?.sub(y)?;
    Ok(half.mul(&net.forward(x)?.sub(y)?)?.mean_all()?)
}

/// Losses of each rank of `world`, which divide each batch of 8 rows among them.
fn train(world: usize, shard: &ShardingConfig, accumulation: usize, loss: LossOf) -> Vec<Vec<f32>> {
    let config = AcceleratorConfig {
        shard: shard.clone(),
        gradient_accumulation: GradientAccumulation::steps(accumulation),
        threads: Some(1),
        ..AcceleratorConfig::default()
    };
    let ranks = on_ranks(world, config, move |accelerator| rank(accelerator, accumulation, loss));
    ranks.into_iter().map(Result::unwrap).collect()
}

fn net() -> Result<Net> {
    Ok(Net {
        up: nn::Unit::new(Linear::normal(4, 16, true, 0.3)?),
        down: nn::Unit::new(Linear::normal(16, 1, true, 0.3)?),
    })
}

fn rank(accelerator: &Accelerator, accumulation: usize, loss_of: LossOf) -> Result<Vec<f32>> {
    let net = net()?;
    let optimizer = optim::adamw(&net).lr(0.05);
    let scheduler = lr_scheduler::linear(&optimizer, 0, 20);
    let (scheduler, net, optimizer) = accelerator.prepare((scheduler, net, optimizer))?;
    let (rank, world) = (accelerator.process_index(), accelerator.num_processes());
    let mut losses = Vec::new();
    for step in 0..10 {
        let mut sum = 0.0;
        let rows = 8 / (world * accumulation);
        for micro in 0..accumulation {
            let first = step * 8 + (micro * world + rank) * rows;
            let x: Vec<f32> =
                (first * 4..(first + rows) * 4).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
            let y: Vec<f32> = x.chunks(4).map(|row| row.iter().sum::<f32>().sin()).collect();
            let x = Tensor::from_slice(&x, [rows, 4], accelerator.device())?;
            let y = Tensor::from_slice(&y, [rows, 1], accelerator.device())?;
            accelerator.accumulate(|| {
                let loss = loss_of(&net, &x, &y)?;
                accelerator.backward(&loss)?;
                accelerator.clip_grad_norm(&optimizer, 1.0)?;
                optimizer.step()?;
                scheduler.step();
                optimizer.zero_grad()?;
                sum += loss.item::<f32>()?;
                Ok(())
            })?;
        }
        let mut sums = [f64::from(sum) / (accumulation * world) as f64];
        accelerator.reduce_sum(&mut sums)?;
        losses.push(sums[0] as f32);
    }
    assert_eq!(scheduler.steps(), 10);
    Ok(losses)
}

/// All ways to hold a model.
fn ways() -> Vec<ShardingConfig> {
    let all = [Placements::WHOLE, Placements::OPTIMIZER, Placements::GRADIENTS, Placements::PARAMETERS];
    let in_place = all.map(|placements| ShardingConfig { placements, ..ShardingConfig::default() });
    let copied = in_place.clone().map(|options| ShardingConfig {
        gather: Gather::Copy,
        persistence_elems: 0,
        ..options
    });
    let kept = ShardingConfig { lifetime: Lifetime::ForwardToBackward, ..copied[3].clone() };
    in_place.into_iter().chain(copied).chain([kept]).collect()
}

#[test]
fn a_loop_trains_alike_in_every_placement_and_on_any_number_of_ranks() {
    let expected = train(1, &ShardingConfig::default(), 1, of_one_pass).remove(0);
    assert!(expected[9] < 0.5 * expected[0], "{expected:?}");
    for options in ways() {
        for (world, accumulation) in [(1, 4), (2, 1), (2, 2), (4, 1), (4, 2)] {
            for loss in [of_one_pass, of_two_passes] {
                for losses in train(world, &options, accumulation, loss) {
                    for (ours, expected) in losses.iter().zip(&expected) {
                        assert!(
                            (ours - expected).abs() < 1e-5,
                            "{options:?} {world} {accumulation}: {losses:?}"
                        );
                    }
                }
            }
        }
    }
}

/// The discriminator's weights after a turn of each, in which the generator's loss has gone through it.
fn after_two_turns(evaluates: bool, forgets: bool) -> Result<Vec<f32>> {
    let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::new(&config)?;
    let (generator, discriminator) = (Linear::normal(4, 4, true, 0.3)?, Linear::normal(4, 1, true, 0.3)?);
    let optimizers = (optim::sgd(&generator).lr(0.1), optim::sgd(&discriminator).lr(0.1));
    let (generator, discriminator, (of_generator, of_discriminator)) =
        accelerator.prepare((generator, discriminator, optimizers))?;
    let x = Tensor::from_slice(&[0.5f32, -0.25, 1.0, 0.75], [1, 4], accelerator.device())?;
    if evaluates {
        discriminator.eval();
    }
    let fooled = discriminator.forward(&generator.forward(&x)?.tanh()?)?.square()?.mean_all()?;
    accelerator.backward(&fooled)?;
    of_generator.step()?;
    discriminator.train();
    if forgets {
        of_discriminator.zero_grad()?;
    }
    accelerator.backward(&discriminator.forward(&x)?.square()?.mean_all()?)?;
    of_discriminator.step()?;
    Ok(accelerator.get_state_dict(&discriminator)?["weight"].to_vec()?)
}

#[test]
fn a_model_that_evaluates_takes_part_in_another_ones_loss_as_one_that_trains() {
    for forgets in [false, true] {
        assert_eq!(after_two_turns(true, forgets).unwrap(), after_two_turns(false, forgets).unwrap());
    }
    assert_ne!(after_two_turns(true, false).unwrap(), after_two_turns(true, true).unwrap());
}

#[test]
fn losses_of_one_micro_batch_add_up_and_micro_batches_are_averaged() {
    let norm = |accumulation: usize, split: bool| {
        let config = AcceleratorConfig {
            gradient_accumulation: GradientAccumulation::steps(accumulation),
            threads: Some(1),
            ..AcceleratorConfig::default()
        };
        let accelerator = Accelerator::over(oarlock_comm::Communicator::solo(), &config).unwrap();
        let net = net().unwrap();
        let optimizer = optim::sgd(&net);
        let (net, optimizer) = accelerator.prepare((net, optimizer)).unwrap();
        let mut norm = None;
        for _ in 0..accumulation {
            let mut micro_batch = || {
                let x = Tensor::from_slice(&[0.5f32, -0.25, 1.0, 0.75], [1, 4], accelerator.device())?;
                let (first, second) = (net.forward(&x)?.square()?.mean_all()?, net.forward(&x)?.mean_all()?);
                if split {
                    accelerator.backward(&first)?;
                    accelerator.backward(&second)?;
                } else {
                    accelerator.backward(&first.add(&second)?)?;
                }
                norm = accelerator.clip_grad_norm(&optimizer, 0.0)?;
                Ok(())
            };
            if accumulation > 1 {
                accelerator.accumulate(micro_batch).unwrap()
            } else {
                micro_batch().unwrap()
            }
        }
        norm.unwrap()
    };
    let expected = norm(1, false);
    for (accumulation, split) in [(1, true), (2, false), (2, true), (3, true)] {
        let norm = norm(accumulation, split);
        assert!((norm - expected).abs() < 1e-6 * expected, "{accumulation} {split}: {norm}, not {expected}");
    }
}

#[test]
fn a_summed_loss_gives_the_same_gradients_when_it_makes_them_in_the_forward_pass() {
    let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
    let norms = [true, false].map(|in_forward| {
        let norms = on_ranks(2, config.clone(), move |accelerator| {
            let head = Linear::new(4, 9)?.no_bias();
            let optimizer = optim::sgd(&head);
            let (head, optimizer) = accelerator.prepare((head, optimizer))?;
            // Two targets on one rank, one on the other: each of the three weighs the same.
            let labels = [3, if accelerator.is_main_process() { 5 } else { nn::IGNORE_INDEX }];
            let batch = (
                Tensor::from_slice(
                    &[0.5f32, -0.25, 1.0, 0.75, 0.1, 0.2, -0.3, 0.4],
                    [2, 4],
                    accelerator.device(),
                )?,
                Tensor::from_slice(&labels, [2], accelerator.device())?,
            );
            let loss = |head: &Linear, (x, labels): &(Tensor, Tensor)| {
                head_loss(x, &head.weight, &Labels::from_tensor(labels)?, HeadOptions::default())
            };
            let loss = if in_forward { head.loss(&batch, loss)? } else { head.call(&batch, loss)? };
            assert_eq!(loss.loss.tape().unwrap().seed(), in_forward.then_some(1.0));
            accelerator.backward(&loss)?;
            let norm = accelerator.clip_grad_norm(&optimizer, 0.0)?;
            optimizer.step()?;
            Ok(norm.unwrap())
        });
        norms.into_iter().map(Result::unwrap).collect::<Vec<f64>>()
    });
    assert!(norms[0][0] > 0.0 && (norms[0][0] - norms[1][0]).abs() < 1e-6, "{norms:?}");
}
