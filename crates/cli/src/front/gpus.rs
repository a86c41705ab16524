//! What the reports of a machine say about its GPUs: each of them, their driver, and each library with its version and
//! file, or the command that gets it.

use oarlock_engine::report::terminal::readable;
use oarlock_tensor::{Automatic, CudaLibraries, Device, FoundGpu, FoundLibrary, GpuInfo, GpuSurvey};

/// Names and values, for a line each; of a machine without a driver there is one.
pub(crate) fn described() -> Vec<(String, String)> {
    let survey = GpuSurvey::of(&CudaLibraries::from_environment());
    let one = |name: &str, value: String| (name.to_owned(), value);
    let driver = match &survey.driver {
        Ok(driver) => driver,
        Err(error) => return vec![one("GPU", format!("none ({error})"))],
    };
    let mut lines = match &survey.gpus {
        Ok(gpus) if gpus.is_empty() => vec![one("GPU", "none that this process sees".to_owned())],
        Ok(gpus) => {
            gpus.iter().enumerate().map(|(index, gpu)| one(&format!("GPU {index}"), line(gpu))).collect()
        }
        Err(error) => vec![one("GPU", format!("cannot be asked: {error}"))],
    };
    lines.push(one("GPU driver", found(driver)));
    for (library, result) in &survey.libraries {
        let value = match result {
            Ok(library) => found(library),
            Err(error) => format!("cannot be used, `{}` gets it ({error})", library.command(survey.cuda)),
        };
        lines.push(one(library.name(), value));
    }
    lines.push(one("Training runs on", place(Device::automatic())));
    lines
}

fn line(gpu: &FoundGpu) -> String {
    let FoundGpu { name, uuid, memory_bytes, capability: (major, minor) } = gpu;
    let memory = readable(*memory_bytes as u64);
    let old = if gpu.is_usable() { "" } else { ", too old: the kernels need 8.0" };
    format!("{name}, {memory}, compute capability {major}.{minor}{old}, {uuid}")
}

fn found(library: &FoundLibrary) -> String {
    format!("{} ({})", library.version, library.file.display())
}

/// Where a training runs that is not told where.
fn place(automatic: &Automatic) -> String {
    match automatic {
        Automatic::Cpu => "the CPU".to_owned(),
        Automatic::Lacks(why) => format!("the CPU: {why}"),
        Automatic::Gpus(usable) if usable.len() == 1 => {
            format!("the GPU ({}; device=cpu: on the CPU)", GpuInfo::TRUST)
        }
        Automatic::Gpus(usable) => {
            format!("{} GPUs, a rank on each ({}; device=cpu: on the CPU)", usable.len(), GpuInfo::TRUST)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_with_what_it_is_chosen_by() {
        let gpu = FoundGpu {
            name: "A100".to_owned(),
            uuid: "GPU-1".to_owned(),
            memory_bytes: 85_899_000_000,
            capability: (8, 0),
        };
        assert_eq!(line(&gpu), "A100, 85.9 GB, compute capability 8.0, GPU-1");
        let old = FoundGpu { capability: (7, 5), ..gpu };
        assert!(line(&old).contains("7.5, too old"), "{}", line(&old));
    }

    #[test]
    fn a_report_says_where_trainings_run_and_why() {
        assert_eq!(place(&Automatic::Cpu), "the CPU");
        assert_eq!(place(&Automatic::Lacks("no compiler".to_owned())), "the CPU: no compiler");
        let one = place(&Automatic::Gpus(vec![1]));
        assert!(
            one.starts_with("the GPU") && one.contains(GpuInfo::TRUST) && one.contains("device=cpu"),
            "{one}"
        );
        assert!(place(&Automatic::Gpus(vec![0, 2])).starts_with("2 GPUs, a rank on each"));
    }
}
