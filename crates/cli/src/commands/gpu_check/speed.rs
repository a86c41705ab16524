//! How fast matrix products, copies and attention are.

use std::time::{Duration, Instant};

use oarlock_tensor::ops::optimizer::Part as Stretch;
use oarlock_tensor::ops::{self, AttentionOptions, Mask, transfer};
use oarlock_tensor::{DType, Device, Error, FlatBuffer, Result, Tape, Tensor, bf16};

use super::finding::Finding;
use super::part::Part;
use super::place::normal;
use crate::console::Outcome;

/// What is repeated is repeated for so long.
const LONG: Duration = Duration::from_millis(300);
/// And no longer than this in all, where the GPU is slow.
const TOO_LONG: Duration = Duration::from_secs(20);

pub(super) fn check(part: &mut Part<'_>, device: &Device, quick: bool) -> Outcome {
    if quick {
        return part.check("all", || Ok::<_, String>(Finding::skipped("not measured with --quick")));
    }
    for size in [1024, 2048, 4096, 8192] {
        part.check(&format!("product {size}^3 bf16"), || {
            let seconds = product(device, size)?;
            let rate = 2.0 * (size as f64).powi(3) / seconds;
            Ok::<_, Error>(tera_flops(rate, seconds))
        })?;
    }
    part.check("copy on the device", || copy(device))?;
    for seq in [1024, 4096] {
        part.check(&format!("attention 2x{seq}x16x128 bf16"), || attention(device, seq))?;
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
    let stretch = |flat| Stretch { flat, range: 0..n };
    let seconds = time(device, || transfer::copy(device, DType::BF16, &stretch(&from), &stretch(&to)))?;
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
