//! The GPU, its driver, the libraries that were found, and the kernels that were compiled.

use std::fs;

use oarlock_engine::report::terminal::readable;
use oarlock_tensor::{DType, Error, GpuInfo, Tensor, ops};
use serde_json::json;

use super::devices::Devices;
use super::finding::Finding;
use super::part::Part;
use crate::console::Outcome;

/// The libraries, by how the names of their files begin.
const LIBRARIES: [&str; 3] = ["libcuda.so", "libnvrtc.so", "libcublasLt.so"];

pub(super) fn check(part: &mut Part<'_>, devices: &Devices) -> Outcome {
    // The first kernel loads the compiler, so that the lines below know it.
    part.check("first kernel", || {
        // The last one lies between two numbers of bf16, of which it is nearer to the larger.
        let x = Tensor::from_slice(&[1.0f32, -2.5, 1.0059], [3], &devices.gpu)?;
        let y = ops::cast(&x, DType::BF16)?.to_f32_vec()?;
        Ok::<_, Error>(Finding::of(y == [1.0, -2.5, 1.007_812_5], format!("cast to bf16: {y:?}")))
    })?;
    let Some(info) = info(devices) else { return Ok(()) };
    let ((major, minor), (cuda_major, cuda_minor)) = (info.capability, info.driver);
    let GpuInfo { name, multiprocessors, memory_bytes, nvrtc, cublas_lt, products, .. } = &info;
    let gpu = json!({
        "name": name,
        "memory_bytes": memory_bytes,
        "multiprocessors": multiprocessors,
        "compute_capability": format!("{major}.{minor}"),
    });
    let line = format!(
        "{name}, {}, compute capability {major}.{minor}, {multiprocessors} multiprocessors",
        readable(*memory_bytes as u64)
    );
    part.record("gpu", gpu, line)?;
    let version = driver_version();
    let line = match &version {
        Some(version) => format!("driver {version}, for CUDA up to {cuda_major}.{cuda_minor}"),
        None => format!("driver for CUDA up to {cuda_major}.{cuda_minor}"),
    };
    let driver = json!({ "version": version, "cuda": format!("{cuda_major}.{cuda_minor}") });
    part.record("driver", driver, line)?;
    let line = format!("NVRTC {}", nvrtc.as_deref().unwrap_or("was not needed so far"));
    part.record("nvrtc", json!(nvrtc), line)?;
    part.record("cublas_lt", json!(cublas_lt), format!("matrix products by {products}"))?;
    let files = loaded_libraries();
    part.record("libraries", json!(files), format!("libraries: {}", files.join(", ")))?;
    let cpu = devices.cpu.describe();
    part.record("cpu", cpu.as_str(), format!("compared with {cpu}"))
}

/// How many kernels were compiled until now.
pub(super) fn record_kernels(part: &mut Part<'_>, devices: &Devices) -> Outcome {
    let Some(info) = info(devices) else { return Ok(()) };
    let GpuInfo { compiled, from_disk, compile_time, cache_problem, .. } = info;
    let seconds = compile_time.as_secs_f64();
    let problem = cache_problem.as_ref().map_or(String::new(), |why| format!("; they are not kept: {why}"));
    let kernels =
        json!({ "compiled": compiled, "from_disk": from_disk, "seconds": seconds, "problem": cache_problem });
    let line = format!(
        "kernels of the ops: {compiled} units were compiled in {seconds:.1} s, {from_disk} were on disk{problem}"
    );
    part.record("kernels", kernels, line)
}

/// None of a GPU that does not answer any more, which other checks have said.
fn info(devices: &Devices) -> Option<GpuInfo> {
    devices.gpu.gpu_info().ok().flatten()
}

/// The version of the kernel module, such as `580.65.06`: the first number of NVIDIA's line.
fn driver_version() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let words = text.lines().next()?.split_whitespace();
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    words.into_iter().find(is_version).map(str::to_owned)
}

/// The files of the libraries that this process has loaded.
fn loaded_libraries() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_one = |path: &&str| {
        path.rsplit('/').next().is_some_and(|name| LIBRARIES.iter().any(|start| name.starts_with(start)))
    };
    let mut found: Vec<String> = paths.filter(is_one).map(str::to_owned).collect();
    found.sort();
    found.dedup();
    found
}
