//! Steps of training, one model after the other: tokens per second, memory, and the share of the measured peak.

use std::time::{Duration, Instant};

use oarlock::optim::Parameters;
use oarlock::report::speed::{flops_per_token, utilisation};
use oarlock::{Accelerator, AcceleratorConfig, Options, distributed, optim};
use oarlock_cuda::blas;
use oarlock_tensor::ops::update::peak_flops;
use oarlock_tensor::ops::{Labels, Mask};
use oarlock_tensor::{Device, DeviceKind, Tensor};
use serde_json::{Map, Value};

use super::finding::Finding;
use super::part::Part;
use super::shapes::{self, DTYPE, Shape};
use crate::console::Outcome;

/// How many steps are made.
struct Steps {
    /// Before those that are timed: they compile kernels and choose algorithms.
    warm: usize,
    least: u32,
    /// More follow until they took so long, unless all of it is slow.
    time: Duration,
}

const LONG: Steps = Steps { warm: 3, least: 3, time: Duration::from_secs(3) };
/// It has every product; gradients that are added to later have the same shapes.
const ONCE: Steps = Steps { warm: 0, least: 1, time: Duration::ZERO };
const TOO_LONG: Duration = Duration::from_secs(20);

pub(super) fn check(part: &mut Part<'_>, device: &Device, quick: bool) -> Outcome {
    let mut peak = None;
    for shape in shapes::all(quick) {
        part.check(&shape.title(), || {
            let peak = *peak.get_or_insert_with(|| peak_flops(device, DTYPE));
            // The training opens the GPU anew.
            device.arena().trim();
            training(&shape, peak, if quick { &ONCE } else { &LONG })
        })?;
    }
    Ok(())
}

/// What a training has found.
struct Measured {
    n_params: usize,
    /// Of attention, for the operations of a token.
    width: u64,
    seconds: f64,
    pool_bytes: usize,
    ops: Map<String, Value>,
    products: Vec<blas::Shape>,
    products_by: String,
    attention_by: String,
}

fn training(shape: &Shape, peak: f64, steps: &Steps) -> oarlock::Result<Finding> {
    let Measured { n_params, width, seconds, pool_bytes, ops, products_by, attention_by, .. } =
        measure(shape, steps)?;
    let rate = (shape.rows() * shape.seq) as f64 / seconds;
    let share = utilisation(rate, flops_per_token(n_params as u64, width), peak).unwrap_or(0.0);
    let detail = format!(
        "{rate:.0} tokens/s, {:.2} ms, MFU {:.1} % of {:.0} TFLOP/s, {:.2} GB, {:.1}M parameters",
        1e3 * seconds,
        100.0 * share,
        peak / 1e12,
        pool_bytes as f64 / 1e9,
        n_params as f64 / 1e6
    );
    let finding = Finding::ok(detail).with("tokens_per_second", rate).with("mfu", share);
    let finding = finding.with("milliseconds", 1e3 * seconds).with("parameters", n_params);
    let finding = finding.with("bytes", pool_bytes).with("peak_flops", peak).with("products_by", products_by);
    let finding = finding.with("attention_by", attention_by);
    // One step op by op, each of which the host waited for.
    Ok(finding.with("milliseconds_of_ops", ops))
}

/// The matrix products of a step.
pub(super) fn products(shape: &Shape) -> oarlock::Result<Vec<blas::Shape>> {
    Ok(measure(shape, &ONCE)?.products)
}

impl Steps {
    /// Seconds of one.
    fn run(&self, step: &mut dyn FnMut() -> oarlock::Result<()>) -> oarlock::Result<f64> {
        let begin = Instant::now();
        for _ in 0..self.warm {
            step()?;
        }
        let (start, mut n_steps) = (Instant::now(), 0);
        while n_steps < self.least || start.elapsed() < self.time && begin.elapsed() < TOO_LONG {
            step()?;
            n_steps += 1;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(n_steps))
    }
}

fn measure(shape: &Shape, steps: &Steps) -> oarlock::Result<Measured> {
    let ranks = distributed::spawn(1, |_| {
        let config = AcceleratorConfig {
            shard: Options { dtype: DTYPE, ..Options::default() },
            device: DeviceKind::Cuda(0),
            ..AcceleratorConfig::default()
        };
        let accelerator = Accelerator::new(&config)?;
        let model = shape.model()?;
        let n_params = Parameters::of(&model).iter().map(|named| named.param.n_weights()).sum();
        let width = model.config().attention_width(shape.seq);
        let adamw = optim::adamw(&model).lr(1e-4);
        let (model, optimizer) = accelerator.prepare((model, adamw))?;
        let (rows, seq, vocab) = (shape.rows(), shape.seq, shape.vocab());
        let ids: Vec<i32> = (0..rows * seq).map(|i| (i * 7919 % vocab) as i32).collect();
        let labels = Labels::new(ids.iter().map(|id| (id + 1) % vocab as i32).collect::<Vec<_>>());
        let ids = Tensor::from_slice(&ids, [rows, seq], accelerator.device())?;
        let mut step = || {
            let loss = model.loss(&ids, |model, ids| model.loss(ids, &labels, &Mask::Causal))?;
            accelerator.backward(&loss)?;
            accelerator.clip_grad_norm(&optimizer, 1.0)?;
            optimizer.step()?;
            Ok::<_, oarlock::Error>(accelerator.device().synchronize()?)
        };
        let seconds = steps.run(&mut step)?;
        let (device, pool_bytes) = (accelerator.device(), accelerator.device().arena().bytes());
        device.profile().enable();
        step()?;
        let ops = device.profile().take();
        let times = ops.iter().map(|(name, op)| (name.to_string(), (1e3 * op.time.as_secs_f64()).into()));
        let (ops, products) = (times.collect(), device.gpu_products());
        let info = device.gpu_info()?;
        let (products_by, attention_by) =
            info.map(|info| (info.products, info.attention)).unwrap_or_default();
        Ok(Measured { n_params, width, seconds, pool_bytes, ops, products, products_by, attention_by })
    })?;
    let nobody = || oarlock::Error::Usage("a group of one rank has no rank".to_owned());
    ranks.into_iter().next().ok_or_else(nobody)
}
