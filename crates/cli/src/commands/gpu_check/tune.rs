//! `--tune`: how long the algorithms of cuBLASLt take for the matrix products of the models, and the tiles of attention and
//! cuDNN for theirs; and a table of the fastest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use oarlock_comm::available_cores;
use oarlock_cuda::Element;
use oarlock_cuda::attention::{self, AttentionShape, Key, Measured, Tile, TiledKernel};
use oarlock_cuda::blas::{self, Blas, WORKSPACE_BYTES};
use oarlock_cuda::cache::Cache;
use oarlock_cuda::cudnn::{ATTENTION_WORKSPACE_BYTES, Choice, Cudnn, CudnnAttention, Pass};
use oarlock_cuda::driver::{DeviceMemory, Driver};
use oarlock_cuda::libraries::Libraries;
use oarlock_cuda::modules::Modules;
use oarlock_engine::report::replace;
use serde_json::json;

use super::finding::Finding;
use super::part::Part;
use super::place::normal;
use super::report::Report;
use super::shapes::{self, Shape};
use super::throughput;
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
    let runs = if quick { 1 } else { RUNS };
    for (name, shape) in products {
        part.check(&name, || opened(&mut bench)?.products(&shape, runs))?;
    }
    for shape in attentions(quick) {
        for pass in [Pass::Forward, Pass::Backward] {
            let name = format!("attention {} {}", Key::of((&shape, Element::BF16, pass)), shape.kv_len);
            part.check(&name, || opened(&mut bench)?.attention(&shape, pass, runs))?;
        }
    }
    Ok(())
}

/// Those of the models, each once.
fn attentions(quick: bool) -> Vec<AttentionShape> {
    let mut all: Vec<AttentionShape> = Vec::new();
    for shape in shapes::all(quick).iter().map(Shape::attention) {
        if !all.contains(&shape) {
            all.push(shape);
        }
    }
    all
}

/// What is opened at the first time.
fn opened(bench: &mut Option<Bench>) -> oarlock_cuda::Result<&Bench> {
    Ok(match bench {
        Some(bench) => bench,
        None => bench.insert(Bench::open()?),
    })
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
    report.record("table", shown.as_str(), format!("{n} entries are in {shown}, and used from here on"))?;
    Ok(Some(file))
}

/// A stream with products and kernels of its own.
struct Bench {
    blas: Blas,
    modules: Modules,
    /// None where it is not installed.
    cudnn: Option<CudnnAttention>,
}

impl Bench {
    fn open() -> oarlock_cuda::Result<Bench> {
        let libraries = Libraries::from_environment();
        let stream = Arc::new(Driver::find(&libraries)?.device(0)?.context()?.stream()?);
        let modules = Modules::new(stream.context(), &libraries, Cache::from_environment())?;
        let found = Cudnn::find_for(&libraries, stream.context().device().cuda_version()?);
        let cudnn = match found.and_then(|cudnn| CudnnAttention::new(&cudnn, &stream)) {
            Ok(cudnn) => Some(cudnn),
            Err(error @ oarlock_cuda::Error::Driver(_)) => return Err(error),
            Err(_) => None,
        };
        Ok(Bench { blas: Blas::new(&stream, &libraries, WORKSPACE_BYTES)?, modules, cudnn })
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

    fn products(&self, shape: &blas::Shape, most_runs: usize) -> oarlock_cuda::Result<Finding> {
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
        let (best, time) = least((first, own), &times);
        let mut table = blas::Tuned::default();
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
    /// The fastest tile of each kernel of a pass, and whether cuDNN is faster than these.
    fn attention(
        &self,
        shape: &AttentionShape,
        pass: Pass,
        most_runs: usize,
    ) -> oarlock_cuda::Result<Finding> {
        let memory = |bytes| self.memory(bytes);
        let bench =
            attention::Bench::new(self.blas.stream(), &self.modules, (*shape, Element::BF16), memory)?;
        // Two products forward and five backward, of which the mask leaves half.
        let products = if pass == Pass::Forward { 2.0 } else { 5.0 };
        let pairs = (shape.batch * shape.heads * shape.head_dim) as f64 * (shape.kv_len as f64).powi(2) / 2.0;
        let flops = 2.0 * products * pairs;
        let runs = ((RUNS_FLOPS / flops) as usize).clamp(1, most_runs);
        let mut all = Vec::new();
        let mut fastest = |kernel: TiledKernel| -> oarlock_cuda::Result<(Tile, f32, f32)> {
            let tiles = bench.tiles(kernel);
            bench.compile(kernel, &tiles, available_cores().len());
            let mut times = Vec::new();
            for tile in tiles {
                match bench.own(kernel, tile, runs) {
                    Ok(Some(time)) => {
                        times.push((tile, time));
                        all.push(json!([kernel.op(), tile.to_string(), time]));
                    }
                    Ok(None) => all.push(json!([kernel.op(), tile.to_string(), "too few registers"])),
                    // A tile that does not run is none to choose; without the usual one there is nothing to compare with.
                    Err(error) if !times.is_empty() && !is_lost(&error) => {
                        all.push(json!([kernel.op(), tile.to_string(), error.to_string()]));
                    }
                    Err(error) => return Err(error),
                }
            }
            let usual = times
                .first()
                .copied()
                .unwrap_or((shape.usual_tile(kernel.pass(), Element::BF16), f32::INFINITY));
            let (tile, time) = least(usual, &times);
            Ok((tile, time, usual.1))
        };
        let (tile, mut own, mut usual) = match pass {
            Pass::Forward => fastest(TiledKernel::Forward)?,
            Pass::Backward => fastest(TiledKernel::BackwardKv)?,
        };
        let mut of_queries = tile;
        if pass == Pass::Backward {
            let (second, time, of_usual) = fastest(TiledKernel::BackwardQ)?;
            let delta = bench.own_delta(runs)?;
            (of_queries, own, usual) = (second, own + time + delta, usual + of_usual + delta);
        }
        let cudnn = match &self.cudnn {
            Some(cudnn) => bench.cudnn(cudnn, pass, (ATTENTION_WORKSPACE_BYTES, runs))?,
            None => None,
        };
        let by = match cudnn {
            Some(time) if time < own * (1.0 - LEAST_GAIN) => Choice::Cudnn,
            _ => Choice::Own,
        };
        let mut table = attention::Tuned::default();
        table.insert((shape, Element::BF16, pass), Measured { by, tile, of_queries });
        let rate = |time: f32| flops / (1e-3 * f64::from(time)) / 1e12;
        let tiles = if pass == Pass::Forward { tile.to_string() } else { format!("{tile} and {of_queries}") };
        let by_cudnn = match cudnn {
            Some(time) => format!("{:.1} by cuDNN", rate(time)),
            None => "cuDNN has no plan or is not there".to_owned(),
        };
        let detail = format!(
            "{:.1} TFLOP/s in tiles of {tiles}, {:.1} in the usual ones, {by_cudnn}",
            rate(own),
            rate(usual)
        );
        let finding = Finding::ok(detail).with("entry", table.lines()).with("candidates", all);
        let finding = finding.with("milliseconds", own).with("milliseconds_first", usual);
        Ok(finding.with("milliseconds_cudnn", cudnn))
    }
}

/// The fastest, or the usual one where no other is faster by more than noise.
fn least<T: Copy>(usual: (T, f32), times: &[(T, f32)]) -> (T, f32) {
    let fastest = times.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(usual);
    if fastest.1 < usual.1 * (1.0 - LEAST_GAIN) { fastest } else { usual }
}

/// Whether nothing runs on the GPU any more.
fn is_lost(error: &oarlock_cuda::Error) -> bool {
    matches!(error, oarlock_cuda::Error::Driver(error) if error.is_sticky())
}
