//! The configuration of a machine for `accelerate launch`, written from code.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::launch::devices::Devices;
use crate::{Error, Result};

/// Writes the configuration of this machine for `accelerate launch`, as `accelerate config default` does: to `path`, or to
/// the default file. `mixed_precision` is one of no, fp16, bf16 and fp8. The path of the file; `None` where there is one
/// already, which stays as it is.
///
/// # Errors
/// Another precision; a file that cannot be written.
pub fn write_basic_config(mixed_precision: &str, path: Option<&Path>) -> Result<Option<PathBuf>> {
    let path = path.map_or_else(|| default_config_file(&|name| std::env::var(name).ok()), Path::to_path_buf);
    if path.exists() {
        return Ok(None);
    }
    let precision = mixed_precision.to_lowercase();
    if !["no", "fp16", "bf16", "fp8"].contains(&precision.as_str()) {
        return Err(Error::Usage(format!(
            "write_basic_config: `mixed_precision` should be one of no, fp16, bf16 and fp8; it is {mixed_precision:?}"
        )));
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    oarlock_files::replace(&path, basic(&precision)).map_err(Error::io("write", &path))?;
    Ok(Some(path))
}

/// The configuration of one machine: all its GPUs, or its CPU. The keys are in the order of the alphabet.
fn basic(precision: &str) -> String {
    let gpus = Devices::visible().gpus;
    let config = json!({
        "compute_environment": "LOCAL_MACHINE",
        "debug": false,
        "distributed_type": if gpus > 1 { "MULTI_GPU" } else { "NO" },
        "downcast_bf16": false,
        "enable_cpu_affinity": false,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": precision,
        "num_machines": 1,
        "num_processes": gpus.max(1),
        "rdzv_backend": "static",
        "same_network": false,
        "tpu_use_cluster": false,
        "tpu_use_sudo": false,
        "use_cpu": gpus == 0,
    });
    format!("{config:#}\n")
}

/// Accelerate's configuration file where none is named; `environment` looks up a variable.
pub fn default_config_file(environment: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    let said = |name: &str| environment(name).filter(|value| !value.is_empty());
    let home = said("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
        let cache = said("XDG_CACHE_HOME").unwrap_or_else(|| "~/.cache".to_owned());
        Path::new(&cache).join("huggingface")
    });
    // The home folder in the place of a leading `~`.
    let home = match (home.strip_prefix("~"), environment("HOME")) {
        (Ok(rest), Some(user)) => Path::new(&user).join(rest),
        _ => home,
    };
    home.join("accelerate/default_config.yaml")
}
