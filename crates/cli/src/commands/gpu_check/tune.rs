//! `--tune`: how long the algorithms of cuBLASLt take for the matrix products of the models, and a table of the fastest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use oarlock::report::replace;
use oarlock_cuda::blas::{Blas, Shape, Tuned, WORKSPACE_BYTES};
use oarlock_cuda::driver::{DeviceMemory, Driver};
use oarlock_cuda::libraries::Libraries;
use serde_json::json;

use super::finding::Finding;
use super::part::Part;
use super::place::normal;
use super::report::Report;
use super::{shapes, throughput};
use crate::console::{Failure, Outcome};

/// Proposals of the library that are timed.
const CANDIDATES: usize = 16;
/// A product is repeated so often, less where it is large.
const RUNS: usize = 50;
const RUNS_FLOPS: f64 = 2e13;
/// What is faster by less is as fast: the choice shall not hang on noise.
const LEAST_GAIN: f32 = 0.01;

/// Times them. Each finding has its line of the table.
pub(super) fn check(part: &mut Part<'_>, quick: bool) -> Outcome {
    let mut products = BTreeMap::new();
    for shape in shapes::all(quick) {
        let mut found = None;
        part.check(&format!("products of {}", shape.title()), || {
            let products = found.insert(throughput::products(&shape)?);
            Ok::<_, oarlock::Error>(Finding::ok(format!("{} matrix products", products.len())))
        })?;
        // A process before this one may have found and told them.
        let found = match found {
            Some(found) => found,
            None if part.time_left().is_zero() => Vec::new(),
            None => throughput::products(&shape).unwrap_or_default(),
        };
        products.extend(found.into_iter().map(|product| (product.to_string(), product)));
    }
    let mut bench = None;
    for (name, shape) in products {
        part.check(&name, || {
            let bench = match &bench {
                Some(bench) => bench,
                None => bench.insert(Bench::open()?),
            };
            bench.tune(&shape, if quick { 1 } else { RUNS })
        })?;
    }
    Ok(())
}

/// Writes the table of all that was found, in the working folder; none where nothing was.
pub(super) fn write_table(report: &mut Report) -> Result<Option<PathBuf>, Failure> {
    let entries = report.entries();
    let Some((name, capability)) = report.gpu().filter(|_| !entries.is_empty()) else { return Ok(None) };
    let arch = format!("sm_{}", capability.replace('.', ""));
    let file = name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let file = PathBuf::from(format!("{file}-{arch}.txt"));
    let text = format!("arch {arch}\ndevice {name}\n{}", entries.concat());
    replace(&file, text.as_bytes()).map_err(oarlock::Error::from)?;
    let shown = file.display().to_string();
    let n = entries.len();
    report.tell("table", shown.as_str(), format!("{n} algorithms are in {shown}, and used from here on"))?;
    Ok(Some(file))
}

/// A stream with products of its own, and what was found.
struct Bench {
    blas: Blas,
}

impl Bench {
    fn open() -> oarlock_cuda::Result<Bench> {
        let libraries = Libraries::from_environment();
        let stream = Arc::new(Driver::find(&libraries)?.device(0)?.context()?.stream()?);
        Ok(Bench { blas: Blas::new(&stream, &libraries, WORKSPACE_BYTES)? })
    }

    /// Random numbers, as a power limit knows zeros from them; a pattern is enough.
    fn memory(&self, bytes: usize) -> oarlock_cuda::Result<DeviceMemory> {
        // Half of a number in f32 is one in the short types.
        let halves = normal(1, 1 << 16).into_iter().map(|x| (x.to_bits() >> 16) as u16);
        let pattern: Vec<u8> = halves.flat_map(u16::to_ne_bytes).collect();
        let memory = self.blas.stream().context().alloc(bytes.max(16))?;
        for start in (0..bytes).step_by(pattern.len()) {
            let end = bytes.min(start + pattern.len());
            self.blas.stream().write_now(&pattern[..end - start], memory.slice(start..end)?)?;
        }
        Ok(memory)
    }

    fn tune(&self, shape: &Shape, most_runs: usize) -> oarlock_cuda::Result<Finding> {
        let [a, b, d, bias] = shape.bytes().map(|bytes| self.memory(bytes));
        let (a, b, d, bias) = (a?, b?, d?, bias?);
        let product = shape.product([a.all(), b.all(), d.all(), bias.all()]);
        let [m, n, k] = shape.dims;
        let flops = 2.0 * (shape.batch * m * n) as f64 * k as f64;
        let runs = ((RUNS_FLOPS / flops) as usize).clamp(1, most_runs);
        let mut times = Vec::new();
        for candidate in self.blas.candidates(&product, CANDIDATES)? {
            if let Some(time) = self.blas.time(*shape, &product, candidate, runs)? {
                times.push((candidate, time));
            }
        }
        let Some(&(first, own)) = times.first() else {
            return Ok(Finding::skipped("cuBLASLt proposes nothing"));
        };
        let fastest = times.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((first, own));
        let (best, time) = if fastest.1 < own * (1.0 - LEAST_GAIN) { fastest } else { (first, own) };
        let mut table = Tuned::default();
        table.insert(*shape, best);
        let rate = |time: f32| flops / (1e-3 * f64::from(time)) / 1e12;
        let detail = format!(
            "{:.1} TFLOP/s by [{best}], {:.1} by the first of {} proposals",
            rate(time),
            rate(own),
            times.len()
        );
        let all: Vec<_> =
            times.iter().map(|(algorithm, time)| json!([algorithm.to_string(), time])).collect();
        let finding = Finding::ok(detail).with("entry", table.lines()).with("candidates", all);
        Ok(finding.with("milliseconds", time).with("milliseconds_first", own))
    }
}
