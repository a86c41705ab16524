//! `oarlock gpu-compile`: fills the cache of compiled kernels, on a machine that needs no GPU.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use oarlock::train::head_dims;
use oarlock_comm::available_cores;
use oarlock_cuda::cache::Cache;
use oarlock_cuda::compile::{self, Outcome as Compiled};
use oarlock_cuda::driver::Driver;
use oarlock_cuda::libraries::Libraries;
use oarlock_cuda::nvrtc::Nvrtc;
use oarlock_cuda::source::Unit;
use oarlock_cuda::{Element, Error as CudaError};
use oarlock_engine::report::terminal::readable;
use oarlock_tensor::DType;

use crate::config::{Words, train_config, written};
use crate::console::{Failure, Outcome, print};
use crate::error::Error;
use crate::front::env_var;

#[derive(Args)]
pub(super) struct GpuCompileArgs {
    /// Only what this training run needs of attention, as `oarlock train` takes it; by default all that any run can ask
    /// for
    #[arg(value_name = "FILE.yaml [key=value …]")]
    arguments: Vec<String>,
    /// Architectures, such as sm_80,sm_90a; by default those of the GPUs that this process sees
    #[arg(long, value_name = "ARCH", value_delimiter = ',', value_parser = compile::arch)]
    arch: Vec<String>,
    /// Use this folder for caches instead of XDG_CACHE_HOME or ~/.cache
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Units that are compiled at the same time; by default one on each core
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    threads: Option<usize>,
}

pub(super) fn run(args: &GpuCompileArgs) -> Outcome {
    let attention = Attention::of(args)?;
    let libraries = Libraries::from_environment();
    let archs = match args.arch.is_empty() {
        true => archs(&libraries).map_err(failed)?,
        false => args.arch.clone(),
    };
    let nvrtc = Nvrtc::find(&libraries).map_err(failed)?;
    let cache = match &args.out {
        // A path that means the same to whoever reads it below.
        Some(caches) => Cache::among(&std::path::absolute(caches).map_err(Error::io("find", caches))?),
        None => Cache::from_environment(),
    };
    let Some(folder) = cache.folder() else {
        return Err(refused("there is no folder for caches: name one with --out DIR"));
    };
    let n_threads = args.threads.unwrap_or_else(|| available_cores().len());
    let (progress, start) = (
        Mutex::new(CompileProgress {
            n: archs.iter().map(|arch| attention.units(arch).len()).sum(),
            ..CompileProgress::default()
        }),
        Instant::now(),
    );
    for arch in &archs {
        let report = |unit: &Unit, outcome| {
            progress
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .record(&format!("{unit} for {arch}"), outcome);
        };
        compile::fill(&nvrtc, &cache, arch, attention.units(arch), n_threads, &report);
    }
    let progress = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(failure) = progress.failure {
        return Err(failure);
    }
    if let Some(problem) = cache.problem() {
        return Err(refused(&format!("what was compiled cannot be kept: {problem}")));
    }
    print(&format!(
        "{} units compiled by NVRTC {} in {:.1} s ({}), {} were there: {}\n",
        progress.n_compiled,
        nvrtc.version(),
        start.elapsed().as_secs_f64(),
        readable(progress.bytes),
        progress.n_kept,
        folder.display(),
    ))?;
    let Some(caches) = &args.out else { return Ok(()) };
    print(&format!(
        "On the machine with the GPU: copy the folder {} there, set XDG_CACHE_HOME to it, and use NVRTC {} as well\n",
        caches.display(),
        nvrtc.version()
    ))
}

/// What has become of the units so far.
#[derive(Default)]
struct CompileProgress {
    n: usize,
    n_compiled: usize,
    n_kept: usize,
    bytes: u64,
    /// Of the first unit that was not compiled, or of the first line that was not printed.
    failure: Option<Failure>,
}

impl CompileProgress {
    fn record(&mut self, what: &str, outcome: Compiled) {
        let result = match outcome {
            Compiled::Cached => {
                self.n_kept += 1;
                Ok(())
            }
            Compiled::Compiled(time, bytes) => {
                self.n_compiled += 1;
                self.bytes += bytes as u64;
                let place = self.n_kept + self.n_compiled;
                print(&format!("{place:4}/{} {what} in {:.1} s\n", self.n, time.as_secs_f64()))
            }
            Compiled::Failed(error) => Err(failed(error)),
        };
        if let Err(failure) = result {
            self.failure.get_or_insert(failure);
        }
    }
}

/// What of attention is to be compiled: all of it, or what a run needs.
struct Attention {
    heads: Option<Vec<u32>>,
    elements: Option<Vec<Element>>,
}

impl Attention {
    fn of(args: &GpuCompileArgs) -> Result<Attention, Failure> {
        if args.arguments.is_empty() {
            return Ok(Attention { heads: None, elements: None });
        }
        let config = train_config(&written::arguments(&Words::new(&args.arguments))?, &env_var)?;
        let heads = head_dims(&config)?.into_iter().filter_map(|dim| u32::try_from(dim).ok()).collect();
        let element = match config.train.dtype {
            DType::BF16 => Element::BF16,
            DType::F16 => Element::F16,
            DType::F32 | DType::I32 => Element::F32,
        };
        Ok(Attention { heads: Some(heads), elements: Some(vec![element]) })
    }

    /// With all other kernels, for an architecture.
    fn units(&self, arch: &str) -> Vec<Unit> {
        compile::units(arch, self.heads.as_deref(), self.elements.as_deref())
    }
}

/// The architectures of the GPUs of this machine.
fn archs(libraries: &Libraries) -> oarlock_cuda::Result<Vec<String>> {
    let driver = Driver::find(libraries)?;
    let mut archs = (0..driver.device_count()?)
        .map(|index| driver.device(index)?.arch())
        .collect::<oarlock_cuda::Result<Vec<String>>>()?;
    // What is too old runs no kernel.
    archs.retain(|arch| compile::arch(arch).is_ok());
    archs.sort();
    archs.dedup();
    Ok(archs)
}

fn refused(why: &str) -> Failure {
    Error::Usage(why.to_owned()).into()
}

fn failed(error: CudaError) -> Failure {
    Error::Other(Box::new(error)).into()
}
