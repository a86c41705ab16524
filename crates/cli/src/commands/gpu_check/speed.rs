//! How fast matrix products, copies, attention and training steps are.

use std::time::{Duration, Instant};

use oarlock::model::{Decoder, DecoderConfig};
use oarlock::optim::Parameters;
use oarlock::report::speed::{flops_per_token, utilisation};
use oarlock::{Accelerator, AcceleratorConfig, Options, distributed, optim};
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::{self, AttentionOptions, Labels, Mask, transfer};
use oarlock_tensor::{DType, Device, DeviceKind, FlatBuffer, Result, Tape, Tensor, bf16};

use super::finding::Finding;
use super::part;
use super::place::normal;
use crate::console::Outcome;

/// What is repeated is repeated for so long.
const LONG: Duration = Duration::from_millis(300);
/// And no longer than this in all, where the GPU is slow.
const TOO_LONG: Duration = Duration::from_secs(20);

pub(super) fn check(part: &mut part::Part<'_>, device: &Device, quick: bool) -> Outcome {
    if quick {
        return part.check("all", || Ok::<_, String>(Finding::skipped("not measured with --quick")));
    }
    let measure = |part: &mut part::Part<'_>, name: &str, f: &mut dyn FnMut() -> oarlock::Result<Finding>| {
        part.check(name, f)
    };
    let mut peak = 0.0;
    for size in [1024, 2048, 4096, 8192] {
        measure(part, &format!("product {size}^3 bf16"), &mut || {
            let seconds = product(device, size)?;
            let rate = 2.0 * (size as f64).powi(3) / seconds;
            peak = f64::max(peak, rate);
            Ok(tera_flops(rate, seconds))
        })?;
    }
    measure(part, "copy on the device", &mut || Ok(copy(device)?))?;
    for seq in [1024, 4096] {
        measure(part, &format!("attention 2x{seq}x16x128 bf16"), &mut || Ok(attention(device, seq)?))?;
    }
    // Its memory is for the training, which opens the GPU anew.
    device.arena().trim();
    for rows in [1, 8] {
        measure(part, &format!("training step, {rows}x1024 tokens bf16"), &mut || training(rows, peak))?;
    }
    Ok(())
}

/// A rate of operations.
fn tera_flops(rate: f64, seconds: f64) -> Finding {
    let detail = format!("{:.1} TFLOP/s ({:.3} ms)", rate / 1e12, 1e3 * seconds);
    Finding::ok(detail).with("tflops", rate / 1e12).with("milliseconds", 1e3 * seconds)
}

/// Seconds of one run of `f`, when the first runs have compiled and chosen everything.
fn time(device: &Device, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..2 {
        f()?;
        device.synchronize()?;
    }
    let mut n_runs = 1;
    loop {
        let start = Instant::now();
        for _ in 0..n_runs {
            f()?;
        }
        device.synchronize()?;
        let time = start.elapsed();
        if time >= LONG || begin.elapsed() >= TOO_LONG {
            return Ok(time.as_secs_f64() / f64::from(n_runs));
        }
        n_runs *= 2;
    }
}

/// Random numbers, as a power limit knows zeros from them; a pattern is enough.
fn random(device: &Device, sizes: &[usize]) -> Result<Tensor> {
    let pattern: Vec<bf16> = normal(1, 1 << 20).into_iter().map(bf16::from_f32).collect();
    let n: usize = sizes.iter().product();
    Tensor::from_slice(&pattern.into_iter().cycle().take(n).collect::<Vec<_>>(), sizes, device)
}

fn product(device: &Device, size: usize) -> Result<f64> {
    let (a, b) = (random(device, &[size, size])?, random(device, &[size, size])?);
    time(device, || ops::matmul_transposed(&a, &b, ops::Transposed::Right).map(drop))
}

fn copy(device: &Device) -> Result<Finding> {
    let n = 1 << 28;
    let flat = || FlatBuffer::pooled(device, 2 * n, "copies");
    let (from, to) = (flat()?, flat()?);
    let part = |flat| Part { flat, range: 0..n };
    let seconds = time(device, || transfer::copy(device, DType::BF16, &part(&from), &part(&to)))?;
    // It is read once and written once.
    let rate = 2.0 * (2 * n) as f64 / seconds / 1e9;
    Ok(Finding::ok(format!("{rate:.0} GB/s, read and written")).with("gb_per_second", rate))
}

/// Forward and backward, causal.
fn attention(device: &Device, seq: usize) -> Result<Finding> {
    let (batch, heads, head_dim) = (2, 16, 128);
    let sizes = [batch, seq, heads, head_dim];
    let x = random(device, &sizes)?;
    let options = AttentionOptions::new((1.0 / head_dim as f32).sqrt());
    let seconds = time(device, || {
        let tape = Tape::new();
        let [q, k, v] = [&x, &x, &x].map(|x| tape.leaf(x));
        let y = ops::attention(&q, &k, &v, &Mask::Causal, &options)?;
        tape.backward_from(y, x.clone()).map(drop)
    })?;
    // Two products forward and five backward, of which the mask leaves half.
    let flops = 7.0 * 2.0 * (batch * heads * head_dim) as f64 * (seq as f64).powi(2) / 2.0;
    Ok(tera_flops(flops / seconds, seconds))
}

/// Steps of a decoder of 104M parameters; `peak` is the rate of the fastest product.
fn training(rows: usize, peak: f64) -> oarlock::Result<Finding> {
    let (seq, vocab) = (1024, 6400);
    let steps = distributed::spawn(1, |_| {
        let config = AcceleratorConfig {
            shard: Options { dtype: DType::BF16, ..Options::default() },
            device: DeviceKind::Cuda(0),
            ..AcceleratorConfig::default()
        };
        let accelerator = Accelerator::new(&config)?;
        let config = DecoderConfig { tie_embeddings: true, ..DecoderConfig::llama(vocab, 768, 16, seq) };
        let config = config.with_layers(|layer| {
            layer.attention.n_kv_heads = 3;
            layer.mlp.intermediate_size = 2048;
        });
        let model = Decoder::new(config, seq)?;
        let n_params: usize = Parameters::of(&model).iter().map(|named| named.param.n_weights()).sum();
        let width = model.config().attention_width(seq);
        let adamw = optim::adamw(&model).lr(1e-4);
        let (model, optimizer) = accelerator.prepare((model, adamw))?;
        let ids: Vec<i32> = (0..rows * seq).map(|i| (i * 7919 % vocab) as i32).collect();
        let labels = Labels::new(ids.iter().map(|id| (id + 1) % vocab as i32).collect::<Vec<_>>());
        let ids = Tensor::from_slice(&ids, [rows, seq], accelerator.device())?;
        let step = || {
            let loss = model.loss(&ids, |model, ids| model.loss(ids, &labels, &Mask::Causal))?;
            accelerator.backward(&loss)?;
            accelerator.clip_grad_norm(&optimizer, 1.0)?;
            optimizer.step()?;
            Ok::<_, oarlock::Error>(accelerator.device().synchronize()?)
        };
        let begin = Instant::now();
        step()?;
        step()?;
        let (start, mut n_steps) = (Instant::now(), 0);
        while n_steps < 3 || start.elapsed() < Duration::from_secs(3) && begin.elapsed() < TOO_LONG {
            step()?;
            n_steps += 1;
        }
        let seconds = start.elapsed().as_secs_f64() / f64::from(n_steps);
        accelerator.device().profile().enable();
        step()?;
        let ops = accelerator.device().profile().take();
        Ok((n_params, width, seconds, ops))
    })?;
    let (n_params, width, seconds, mut ops) = steps
        .into_iter()
        .next()
        .ok_or_else(|| oarlock::Error::Usage("a group of one rank has no rank".to_owned()))?;
    let rate = (rows * seq) as f64 / seconds;
    let share = utilisation(rate, flops_per_token(n_params as u64, width), peak).unwrap_or(0.0);
    ops.sort_by_key(|(_, op)| std::cmp::Reverse(op.time));
    let times = ops.iter().map(|(name, op)| (name.to_string(), (1e3 * op.time.as_secs_f64()).into()));
    let detail = format!(
        "{rate:.0} tokens/s, {:.2} ms, MFU {:.1} % of the fastest product, {:.1}M parameters",
        1e3 * seconds,
        100.0 * share,
        n_params as f64 / 1e6
    );
    let finding = Finding::ok(detail).with("tokens_per_second", rate).with("mfu", share);
    let finding = finding.with("milliseconds", 1e3 * seconds).with("parameters", n_params);
    // One step op by op, each of which the host waited for.
    Ok(finding.with("milliseconds_of_ops", times.collect::<serde_json::Map<_, _>>()))
}
