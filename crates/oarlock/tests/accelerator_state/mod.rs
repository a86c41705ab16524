//! Checkpoints of custom training loops: what comes back, on which ranks, what is refused, and what a dead run leaves.

mod adapters;
mod project;
mod refused;
mod resume;
mod weights;

use std::sync::Arc;

use oarlock::checkpoint::{CheckpointError, Problem};
use oarlock::nn::{self, Buffer, Dropout, Forward, Linear, Module};
use oarlock::shard::{Gather, Placements};
use oarlock::{
    Accelerator, AcceleratorConfig, Checkpointed, Error, GradientAccumulation, Prepared, PreparedOptimizer,
    PreparedScheduler, Result, ShardingConfig, Tensor, lr_scheduler, optim,
};
use oarlock_comm::shm;

#[derive(Module)]
struct Net {
    up: nn::Unit<Linear>,
    down: nn::Unit<Linear>,
    dropout: Dropout,
    /// How often the loop has counted; no parameter.
    counted: Buffer,
    ids: Buffer,
    table: Buffer,
}

impl Net {
    fn new(inputs: usize, hidden: usize) -> Net {
        Net::dropping(inputs, hidden, 0.0)
    }

    fn dropping(inputs: usize, hidden: usize, p: f32) -> Net {
        let linear = |inputs, outputs| nn::Unit::new(Linear::new(inputs, outputs).unwrap());
        Net {
            up: linear(inputs, hidden),
            down: linear(hidden, inputs),
            dropout: Dropout::new(p),
            counted: Buffer::new([2], vec![0.0f32, f32::NEG_INFINITY]).unwrap(),
            ids: Buffer::new([3], vec![7i32, 8, 9]).unwrap(),
            table: Buffer::new([1], vec![0.5f32]).unwrap().not_persistent(),
        }
    }
}

impl Forward<Tensor> for Net {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let h = self.dropout.forward(&self.up.run(x, |up| up.forward(x))?.tanh()?)?;
        self.down.run(&h, |down| down.forward(&h))
    }
}

/// Runs `f` on each of `n` ranks and returns what they return.
fn on_ranks<T: Send>(n: usize, config: &AcceleratorConfig, f: impl Fn(&Accelerator) -> T + Sync) -> Vec<T> {
    let config = AcceleratorConfig { threads: Some(1), ..config.clone() };
    shm::on_threads(n, |comm| f(&Accelerator::over(comm, &config).unwrap())).unwrap()
}

/// Two models that one loop trains, each with its own optimizer and schedule.
struct Loop {
    nets: [Prepared<Net>; 2],
    optimizers: [PreparedOptimizer; 2],
    schedulers: [PreparedScheduler; 2],
    best: Arc<Checkpointed<Option<f32>>>,
}

impl Loop {
    fn new(accelerator: &Accelerator) -> Result<Loop> {
        let (first, second) = (Net::new(4, 150), Net::new(4, 9));
        let (adam, sgd) = (optim::adamw(&first).lr(0.01), optim::sgd(&second).lr(0.1));
        let (linear, cosine) = (lr_scheduler::linear(&adam, 2, 12), lr_scheduler::cosine(&sgd, 0, 12));
        let (a, b, sgd, second, first, adam) =
            accelerator.prepare((linear, cosine, sgd, second, first, adam))?;
        let best = Arc::new(Checkpointed::new(None));
        accelerator.register_for_checkpointing(best.clone());
        Ok(Loop { nets: [first, second], optimizers: [adam, sgd], schedulers: [a, b], best })
    }

    /// The losses of both models in these steps of 8 rows, the same on all ranks.
    fn train(&self, accelerator: &Accelerator, steps: std::ops::Range<usize>) -> Result<Vec<f64>> {
        let (rank, world) = (accelerator.process_index(), accelerator.num_processes());
        let mut losses = Vec::new();
        for step in steps {
            let mut sums = [0.0; 2];
            let rows = 4 / world;
            for micro in 0..2 {
                let first = step * 8 + (micro * world + rank) * rows;
                let x: Vec<f32> =
                    (first * 4..(first + rows) * 4).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
                let x = Tensor::from_slice(&x, [rows, 4], accelerator.device())?;
                accelerator.accumulate(|| {
                    for (index, net) in self.nets.iter().enumerate() {
                        let loss = net.forward(&x)?.sub(&x.tanh()?)?.square()?.mean_all()?;
                        accelerator.backward(&loss)?;
                        self.optimizers[index].step()?;
                        self.schedulers[index].step();
                        sums[index] += loss.item::<f64>()? / (2 * world) as f64;
                    }
                    Ok(())
                })?;
            }
            accelerator.reduce_sum(&mut sums)?;
            *self.best.lock() = Some(sums[0] as f32);
            self.nets[1].module().counted.set(vec![(step + 1) as f32, f32::NEG_INFINITY])?;
            losses.extend(sums);
        }
        Ok(losses)
    }
}

fn config(placements: Placements, gather: Gather) -> AcceleratorConfig {
    AcceleratorConfig {
        // Small parameters are divided as well.
        shard: ShardingConfig { placements, gather, persistence_elems: 0, ..ShardingConfig::default() },
        gradient_accumulation: GradientAccumulation::steps(2),
        ..AcceleratorConfig::default()
    }
}

const WAYS: [(Placements, Gather); 5] = [
    (Placements::WHOLE, Gather::InPlace),
    (Placements::OPTIMIZER, Gather::InPlace),
    (Placements::GRADIENTS, Gather::InPlace),
    (Placements::PARAMETERS, Gather::InPlace),
    (Placements::PARAMETERS, Gather::Copy),
];

fn problem(error: Error) -> Problem {
    match error {
        Error::Checkpoint(CheckpointError::NotLoaded { problem, .. }) => problem,
        other => panic!("{other}"),
    }
}
