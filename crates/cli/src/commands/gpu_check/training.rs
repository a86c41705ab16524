//! Training runs of a tiny decoder on the GPU and on the CPU, as a program would write them.

use oarlock::config::Offload;
use oarlock::model::{Decoder, DecoderConfig, Recompute};
use oarlock::shard::Placements;
use oarlock::{Accelerator, AcceleratorConfig, Result, ShardingConfig, distributed, optim};
use oarlock_tensor::cpu::difference::largest_difference;
use oarlock_tensor::ops::{Labels, Mask};
use oarlock_tensor::{DType, DeviceKind, Tensor};
use serde_json::json;

use super::finding::{Finding, number};
use super::part::Part;
use crate::console::Outcome;

/// The largest difference of losses on two devices.
const TOLERANCES: [(DType, f64); 2] = [(DType::F32, 1e-3), (DType::BF16, 5e-3)];

const VOCAB: usize = 256;
/// Sequences of a step, of all ranks together.
const ROWS: usize = 2;

/// What a training run keeps elsewhere while the GPU does not need it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Offloaded {
    Nothing,
    OptimizerToMemory,
    OptimizerToFiles,
    Parameters,
    Activations,
}

impl Offloaded {
    fn options(self, placements: Placements) -> ShardingConfig {
        let files = || Offload { dir: Some(std::env::temp_dir()), ..Offload::TO_MEMORY };
        let options = ShardingConfig { placements, ..ShardingConfig::default() };
        match self {
            Offloaded::Nothing | Offloaded::Activations => options,
            Offloaded::OptimizerToMemory => {
                ShardingConfig { offload_optimizer: Some(Offload::TO_MEMORY), ..options }
            }
            Offloaded::OptimizerToFiles => ShardingConfig { offload_optimizer: Some(files()), ..options },
            // Small parameters stay on the GPU otherwise.
            Offloaded::Parameters => {
                ShardingConfig { offload_params: Some(Offload::TO_MEMORY), persistence_elems: 0, ..options }
            }
        }
    }
}

/// What is trained, and where.
#[derive(Clone, Copy)]
pub(super) struct Training {
    pub device: DeviceKind,
    pub dtype: DType,
    pub placements: Placements,
    pub offloaded: Offloaded,
    pub n_ranks: usize,
    pub n_steps: usize,
    pub n_tokens: usize,
}

impl Training {
    /// On one rank and the GPU.
    pub fn new(dtype: DType, quick: bool) -> Training {
        Training {
            device: DeviceKind::Cuda(0),
            dtype,
            placements: Placements::WHOLE,
            offloaded: Offloaded::Nothing,
            n_ranks: 1,
            n_steps: if quick { 3 } else { 30 },
            n_tokens: if quick { 8 } else { 128 },
        }
    }

    /// The loss of each step, and one after the last.
    pub fn losses(&self) -> Result<Vec<f64>> {
        let ranks = distributed::spawn(self.n_ranks, |_| self.rank())?;
        Ok(ranks.into_iter().next().unwrap_or_default())
    }

    fn rank(&self) -> Result<Vec<f64>> {
        let config = AcceleratorConfig {
            shard: self.offloaded.options(self.placements),
            mixed_precision: Some(self.dtype),
            device: self.device,
            ..AcceleratorConfig::default()
        };
        let accelerator = Accelerator::new(&config)?;
        let mut model = Decoder::new(config_of_model(), self.n_tokens)?;
        if self.offloaded == Offloaded::Activations {
            model.set_recompute(Recompute::Units { every: 1 });
            model.set_activation_offload(true);
        }
        // Three times as fast, the two batches undo each other's steps, and a rounding grows tenfold in ten steps.
        let adamw = optim::adamw(&model).lr(1e-3);
        let (model, optimizer) = accelerator.prepare((model, adamw))?;
        let (n_rows, first) = (ROWS / self.n_ranks, ROWS / self.n_ranks * accelerator.process_index());
        let mut losses = Vec::new();
        for step in 0..=self.n_steps {
            // Two batches in turns, which can be learned by heart.
            let token = |row: usize, i: usize| ((7 * i * i + 31 * row + 11 * (step % 2)) % VOCAB) as i32;
            let places = || (first..first + n_rows).flat_map(|row| (0..self.n_tokens).map(move |i| (row, i)));
            let ids: Vec<i32> = places().map(|(row, i)| token(row, i)).collect();
            let labels: Vec<i32> = places().map(|(row, i)| token(row, i + 1)).collect();
            let ids = Tensor::from_slice(&ids, [n_rows, self.n_tokens], accelerator.device())?;
            let labels = Labels::new(labels);
            let loss = model.loss(&ids, |model, ids| model.loss(ids, &labels, &Mask::Causal))?;
            let mut sums = [loss.sum()?, loss.n_targets as f64];
            accelerator.reduce_sum(&mut sums)?;
            losses.push(sums[0] / sums[1]);
            accelerator.backward(&loss)?;
            optimizer.step()?;
        }
        Ok(losses)
    }
}

/// Two layers with grouped heads of 32 elements.
fn config_of_model() -> DecoderConfig {
    DecoderConfig::llama(VOCAB, 64, 2, 1024).with_layers(|layer| {
        (layer.attention.n_heads, layer.attention.n_kv_heads, layer.attention.head_dim) = (2, 1, 32);
    })
}

pub(super) fn check(part: &mut Part<'_>, quick: bool) -> Outcome {
    for (dtype, allowed) in TOLERANCES {
        let training = Training::new(dtype, quick);
        let name = format!("{} steps {dtype}", training.n_steps);
        part.check(&name, || {
            let on_gpu = training.losses()?;
            let again = training.losses()?;
            let on_cpu = Training { device: DeviceKind::Cpu, ..training }.losses()?;
            let same = on_gpu.iter().map(|x| x.to_bits()).eq(again.iter().map(|x| x.to_bits()));
            Ok::<_, oarlock::Error>(compared(&on_gpu, &on_cpu, allowed, same))
        })?;
    }
    Ok(())
}

/// Losses beside those that they should be, and whether a second run was bitwise identical.
pub(super) fn compared(got: &[f64], want: &[f64], allowed: f64, same_bits: bool) -> Finding {
    let worst = largest_difference(got, want).unwrap_or(f64::INFINITY);
    let [first, last] = [got.first(), got.last()].map(|loss| loss.copied().unwrap_or(f64::NAN));
    let mut detail = format!("losses {first:.4} to {last:.4}, difference {worst:.1e} of {allowed:.1e}");
    if !same_bits {
        detail += "; a second run has other bits";
    }
    let is_good = worst <= allowed && same_bits && last < first;
    let lists = [got, want].map(|losses| losses.iter().map(|x| number(*x)).collect::<Vec<_>>());
    let [got, want] = lists;
    Finding::of(is_good, detail)
        .with("difference", number(worst))
        .with("allowed", allowed)
        .with("same_bits", same_bits)
        .with("losses", json!(got))
        .with("expected", json!(want))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::gpu_check::finding::Verdict;

    #[test]
    fn losses_that_differ_or_do_not_fall_fail() {
        let verdict = |got: &[f64], same| compared(got, &[5.0, 4.0], 1e-3, same).verdict;
        assert_eq!(verdict(&[5.0, 4.0005], true), Verdict::Ok);
        assert_eq!(verdict(&[5.0, 4.002], true), Verdict::Failed);
        assert_eq!(verdict(&[5.0, f64::NAN], true), Verdict::Failed);
        assert_eq!(verdict(&[5.0], true), Verdict::Failed);
        assert_eq!(verdict(&[5.0, 4.0], false), Verdict::Failed);
        assert_eq!(compared(&[4.0, 4.0], &[4.0, 4.0], 1e-3, true).verdict, Verdict::Failed);
    }
}
