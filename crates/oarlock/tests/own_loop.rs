//! A loop and a model of one's own: the same training in every placement and on any number of ranks.

use oarlock::nn::{self, Forward, Linear, Module};
use oarlock::shard::Placements;
use oarlock::{
    Accelerator, AcceleratorConfig, GradientAccumulation, Options, Result, Tensor, lr_scheduler, optim,
};

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

/// Losses of each rank of `world`, which divide each batch of 8 rows among them.
fn train(world: usize, placements: Placements, accumulation: usize) -> Vec<Vec<f32>> {
    let config = AcceleratorConfig {
        shard: Options { placements, ..Options::default() },
        gradient_accumulation: GradientAccumulation::steps(accumulation),
        threads: Some(1),
        ..AcceleratorConfig::default()
    };
    let ranks: Vec<_> = oarlock_comm::shm::threads(world)
        .unwrap()
        .into_iter()
        .map(|comm| {
            let config = config.clone();
            std::thread::spawn(move || {
                let losses = rank(&Accelerator::over(comm.clone(), &config).unwrap(), accumulation).unwrap();
                comm.finish();
                losses
            })
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn rank(accelerator: &Accelerator, accumulation: usize) -> Result<Vec<f32>> {
    let net = Net {
        up: nn::Unit::new(Linear::normal(4, 16, true, 0.3)?),
        down: nn::Unit::new(Linear::normal(16, 1, true, 0.3)?),
    };
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
                let loss = net.forward(&x)?.sub(&y)?.square()?.mean_all()?;
                accelerator.backward(&loss)?;
                accelerator.clip_grad_norm(&optimizer, 1.0)?;
                optimizer.step()?;
                scheduler.step();
                optimizer.zero_grad()?;
                sum += loss.item()?;
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

#[test]
fn a_loop_trains_alike_in_every_placement_and_on_any_number_of_ranks() {
    let expected = train(1, Placements::WHOLE, 1).remove(0);
    assert!(expected[9] < 0.5 * expected[0], "{expected:?}");
    for placements in
        [Placements::WHOLE, Placements::OPTIMIZER, Placements::GRADIENTS, Placements::PARAMETERS]
    {
        for (world, accumulation) in [(1, 4), (2, 1), (2, 2), (4, 1), (4, 2)] {
            for losses in train(world, placements, accumulation) {
                for (ours, expected) in losses.iter().zip(&expected) {
                    assert!(
                        (ours - expected).abs() < 1e-5,
                        "{placements:?} {world} {accumulation}: {losses:?}"
                    );
                }
            }
        }
    }
}
