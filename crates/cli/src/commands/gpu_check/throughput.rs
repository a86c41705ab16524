//! Steps of training, one model after the other: tokens per second, memory, and the share of the measured peak.

use std::time::{Duration, Instant};

use oarlock::estimate::{self, GpuMemory, ModelSize, OnGpu, Settings, Stage, StepShape, decoder_step};
use oarlock::optim::Parameters;
use oarlock::train::objective::{NextToken, dry_pass};
use oarlock::{Accelerator, AcceleratorConfig, ShardingConfig, distributed, optim};
use oarlock_cuda::blas;
use oarlock_engine::report::speed::{flops_per_token, utilization};
use oarlock_tensor::ops::{Labels, Mask};
use oarlock_tensor::{Device, DeviceKind, OpTime, Tensor};
use serde_json::{Map, Value};

use super::finding::Finding;
use super::part::Part;
use super::roofline::{Ceilings, Work};
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

/// The ops that a table of a step has: those that take most of it.
const DEAREST: usize = 10;

pub(super) fn check(part: &mut Part<'_>, device: &Device, quick: bool) -> Outcome {
    let mut ceilings = None;
    for shape in shapes::all(quick) {
        let mut table = None;
        part.check(&shape.title(), || {
            let ceilings = match ceilings {
                Some(ceilings) => ceilings,
                None => *ceilings.insert(Ceilings::measure(device, quick)?),
            };
            // The run opens the GPU anew.
            device.arena().trim();
            let measured = measure(&shape, if quick { &ONCE } else { &LONG })?;
            table = Some(dearest(&measured.ops, &ceilings));
            finding(&shape, &measured, &ceilings)
        })?;
        if let Some(table) = table {
            part.record(&format!("dearest ops of {}", shape.title()), table.clone(), table.join("\n  "))?;
        }
    }
    Ok(())
}

/// The dearest ops of a step that the host waited for op by op: a line for each, with the ceiling that it is under.
fn dearest(ops: &[(String, OpTime)], ceilings: &Ceilings) -> Vec<String> {
    let seconds = |op: &OpTime| op.time.as_secs_f64();
    let whole: f64 = ops.iter().map(|(_, op)| seconds(op)).sum();
    let mut sorted: Vec<_> = ops.iter().collect();
    sorted.sort_by_key(|(_, op)| std::cmp::Reverse(op.time));
    let head = format!(
        "{:32}{:>7}{:>10}{:>7}  reached of what the GPU can",
        "the dearest ops", "calls", "ms", "share"
    );
    let line = |(name, op): &&(String, OpTime)| {
        let work = Work { seconds: seconds(op), flops: op.flops, bytes: op.bytes };
        let (ms, share) = (1e3 * work.seconds, 100.0 * work.seconds / whole);
        format!("{name:32}{:7}{ms:10.2}{share:6.1}%  {}", op.calls, ceilings.line(&work))
    };
    std::iter::once(head).chain(sorted.iter().take(DEAREST).map(line)).collect()
}

/// What a training run has found.
struct Measured {
    n_params: usize,
    /// Of attention, for the operations of a token.
    width: u64,
    seconds: f64,
    pool_bytes: usize,
    /// What a run of these shapes is predicted to take, of its pool and of the rest.
    predicted_bytes: u64,
    ops: Vec<(String, OpTime)>,
    products: Vec<blas::Shape>,
    products_by: String,
    attention_by: String,
}

fn finding(shape: &Shape, measured: &Measured, ceilings: &Ceilings) -> oarlock::Result<Finding> {
    let &Measured { n_params, width, seconds, pool_bytes, predicted_bytes, .. } = measured;
    let rate = (shape.rows() * shape.seq) as f64 / seconds;
    let share = utilization(rate, flops_per_token(n_params as u64, width), ceilings.flops).unwrap_or(0.0);
    let detail = format!(
        "{rate:.0} tokens/s, {:.2} ms, MFU {:.1} % of {:.0} TFLOP/s, {:.2} GB ({:.2} predicted), {:.1}M parameters",
        1e3 * seconds,
        100.0 * share,
        ceilings.flops / 1e12,
        pool_bytes as f64 / 1e9,
        predicted_bytes as f64 / 1e9,
        n_params as f64 / 1e6
    );
    let finding = Finding::ok(detail).with("tokens_per_second", rate).with("mfu", share);
    let finding = finding.with("milliseconds", 1e3 * seconds).with("parameters", n_params);
    let finding = finding.with("bytes", pool_bytes).with("predicted_bytes", predicted_bytes);
    let finding = finding.with("peak_flops", ceilings.flops).with("peak_bytes", ceilings.bytes);
    let finding = finding.with("products_by", measured.products_by.as_str());
    let finding = finding.with("attention_by", measured.attention_by.as_str());
    let numbers = |(name, op): &(String, OpTime)| {
        let work = Work { seconds: op.time.as_secs_f64(), flops: op.flops, bytes: op.bytes };
        let mut numbers = ceilings.json(&work);
        numbers["calls"] = op.calls.into();
        (name.clone(), numbers)
    };
    // One step op by op, each of which the host waited for.
    Ok(finding.with("ops", measured.ops.iter().map(numbers).collect::<Map<String, Value>>()))
}

/// The bytes on the GPU that are predicted for a training run of one rank in these shapes, but for what was in use
/// before.
fn predicted_bytes(shape: &Shape, device: &Device) -> oarlock::Result<u64> {
    let model = shape.model()?;
    let step = StepShape {
        batch: shape.rows(),
        len: shape.seq,
        documents: false,
        eval_batch: None,
        longest: None,
        parts: 1,
    };
    let step = decoder_step(&model, DTYPE, &device.as_dry(), step, &dry_pass(&NextToken::PLAIN))?;
    let (size, settings) = (ModelSize::of(&model, DTYPE), Settings::new(DTYPE, Stage::Whole, 1));
    let mut estimate = estimate::estimate(&size, &settings, Some(&step), 0);
    Ok(OnGpu::taken_from(&mut estimate, &size, GpuMemory::unknown(1), false).rank())
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
            shard: ShardingConfig { dtype: DTYPE, ..ShardingConfig::default() },
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
        let ops = device.profile().take().into_iter().map(|(name, op)| (name.into_owned(), op)).collect();
        let products = device.gpu_products();
        let predicted_bytes = predicted_bytes(shape, device)?;
        let info = device.gpu_info()?;
        let (products_by, attention_by) =
            info.map(|info| (info.products, info.attention)).unwrap_or_default();
        Ok(Measured {
            n_params,
            width,
            seconds,
            pool_bytes,
            predicted_bytes,
            ops,
            products,
            products_by,
            attention_by,
        })
    })?;
    let nobody = || oarlock::Error::Usage("a group of one rank has no rank".to_owned());
    ranks.into_iter().next().ok_or_else(nobody)
}
