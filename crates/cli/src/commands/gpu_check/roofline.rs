//! What an op reached beside what the GPU can: operations and bytes a second, and the time that it takes at least.

use std::time::{Duration, Instant};

use oarlock_tensor::ops::optimizer::Part as Stretch;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::ops::update::peak_flops;
use oarlock_tensor::{DType, Device, FlatBuffer, Result};
use serde_json::{Value, json};

/// What is repeated is repeated for so long.
const LONG: Duration = Duration::from_millis(300);
/// And no longer than this in all, where the GPU is slow.
const TOO_LONG: Duration = Duration::from_secs(20);
/// Elements of the copy that shows the bandwidth.
const COPIED: usize = 1 << 28;

/// The most that was measured on this GPU.
#[derive(Clone, Copy)]
pub(super) struct Ceilings {
    /// Operations a second of a large product in bf16.
    pub flops: f64,
    /// Bytes a second that a large copy reads and writes.
    pub bytes: f64,
}

/// What an op did in a time.
#[derive(Clone, Copy, Default)]
pub(super) struct Work {
    pub seconds: f64,
    pub flops: u64,
    pub bytes: u64,
}

impl Ceilings {
    /// Measures both; with `quick` those of tiny operands.
    pub fn measure(device: &Device, quick: bool) -> Result<Ceilings> {
        let n = if quick { 1 << 12 } else { COPIED };
        let flat = || FlatBuffer::pooled(device, 2 * n, "copies");
        let (from, to) = (flat()?, flat()?);
        let stretch = |flat| Stretch { flat, range: 0..n };
        let seconds =
            time(device, quick, || transfer::copy(device, DType::BF16, &stretch(&from), &stretch(&to)))?;
        // It is read once and written once.
        Ok(Ceilings { flops: peak_flops(device, DType::BF16), bytes: 2.0 * (2 * n) as f64 / seconds })
    }

    /// The share of the time that the work takes at least, in that which it took.
    fn share(&self, work: &Work) -> f64 {
        (work.flops as f64 / self.flops).max(work.bytes as f64 / self.bytes) / work.seconds
    }

    /// What the work reached of the ceiling that it is under.
    pub fn line(&self, work: &Work) -> String {
        let (flops, bytes) = (work.flops as f64, work.bytes as f64);
        let percent = 100.0 * self.share(work);
        match flops / self.flops > bytes / self.bytes {
            true => format!(
                "{:.1} of {:.1} TFLOP/s ({percent:.0} %)",
                flops / work.seconds / 1e12,
                self.flops / 1e12
            ),
            false => {
                format!("{:.0} of {:.0} GB/s ({percent:.0} %)", bytes / work.seconds / 1e9, self.bytes / 1e9)
            }
        }
    }

    /// The same as numbers.
    pub fn json(&self, work: &Work) -> Value {
        json!({
            "milliseconds": 1e3 * work.seconds,
            "gb_per_second": work.bytes as f64 / work.seconds / 1e9,
            "tflops": work.flops as f64 / work.seconds / 1e12,
            "share_of_ceiling": self.share(work),
        })
    }
}

/// Seconds of one run of `f`, when the first runs have compiled and chosen everything.
pub(super) fn time(device: &Device, quick: bool, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..if quick { 1 } else { 2 } {
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
        if quick || time >= LONG || begin.elapsed() >= TOO_LONG {
            return Ok(time.as_secs_f64() / f64::from(n_runs));
        }
        n_runs *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_under_the_ceiling_that_takes_longer() {
        let ceilings = Ceilings { flops: 800e12, bytes: 3e12 };
        let product = Work { seconds: 1e-3, flops: 400_000_000_000, bytes: 300_000_000 };
        assert_eq!(ceilings.line(&product), "400.0 of 800.0 TFLOP/s (50 %)");
        let copy = Work { seconds: 1e-3, flops: 1_000_000, bytes: 300_000_000 };
        assert_eq!(ceilings.line(&copy), "300 of 3000 GB/s (10 %)");
        assert_eq!(ceilings.json(&copy)["gb_per_second"], 300.0);
    }
}
