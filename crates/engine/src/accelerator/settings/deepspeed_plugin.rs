//! DeepSpeed plugins: a configuration with fields beside it, and several of them of which one is active.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use oarlock_config::dialect::DeepSpeedConfig;
use oarlock_config::nearest::nearest_of;
use oarlock_tensor::DType;
use serde_json::json;

use crate::{Error, Result};

/// Accelerate's `DeepSpeedPlugin`: a DeepSpeed configuration for what is prepared while it is the active one. The other
/// fields stand where the configuration says `"auto"` or nothing; where it says something else, that is an error.
#[derive(Clone, Debug)]
pub struct DeepSpeedPlugin {
    /// The configuration; without one the other fields say everything.
    pub hf_ds_config: Option<DeepSpeedConfig>,
    /// Micro-batches of a step. The configuration's number wins over that of the accelerator.
    pub gradient_accumulation_steps: Option<usize>,
    /// The norm to which gradients are clipped in every step.
    pub gradient_clipping: Option<f64>,
    /// 0 to 3; 2 where nobody says it.
    pub zero_stage: Option<u8>,
    /// Of several loaders the one with the smallest batch says the micro-batch; else that with the largest.
    pub is_train_batch_min: bool,
    /// Where the optimizer's states lie.
    pub offload_optimizer_device: Option<OffloadDevice>,
    /// Where the parameters lie.
    pub offload_param_device: Option<OffloadDevice>,
    /// Accelerate's switch for `zero.Init`. No model has any memory before it is prepared, whatever this says.
    pub zero3_init_flag: Option<bool>,
    /// `stage3_gather_16bit_weights_on_model_save`.
    pub zero3_save_16bit_model: Option<bool>,
    /// The model's hidden size, from which `"auto"` sizes of stage 3 follow; by default the width of the model's first embedding.
    pub hidden_size: Option<usize>,
}

/// Where a kind of state lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffloadDevice {
    /// In main memory, where CPU ranks have it anyway.
    Cpu,
    /// In files of a folder.
    Nvme(PathBuf),
}

impl Default for DeepSpeedPlugin {
    fn default() -> DeepSpeedPlugin {
        DeepSpeedPlugin {
            hf_ds_config: None,
            gradient_accumulation_steps: None,
            gradient_clipping: None,
            zero_stage: None,
            is_train_batch_min: true,
            offload_optimizer_device: None,
            offload_param_device: None,
            zero3_init_flag: None,
            zero3_save_16bit_model: None,
            hidden_size: None,
        }
    }
}

impl From<DeepSpeedConfig> for DeepSpeedPlugin {
    fn from(config: DeepSpeedConfig) -> DeepSpeedPlugin {
        DeepSpeedPlugin { hf_ds_config: Some(config), ..DeepSpeedPlugin::default() }
    }
}

impl DeepSpeedPlugin {
    /// `DeepSpeedPlugin(hf_ds_config="…")`.
    ///
    /// # Errors
    /// Everything that is wrong in the file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<DeepSpeedPlugin> {
        Ok(DeepSpeedConfig::from_file(path)?.into())
    }

    /// The configuration with what the fields say.
    pub(crate) fn config(&self) -> Result<DeepSpeedConfig> {
        const AUTHOR: &str = "the DeepSpeedPlugin";
        let mut config = match &self.hf_ds_config {
            Some(config) => config.clone(),
            None => DeepSpeedConfig::from_value(&json!({
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto",
                "gradient_clipping": "auto",
                "zero_optimization": { "stage": self.zero_stage.unwrap_or(2) },
                "bf16": { "enabled": "auto" },
                "fp16": { "enabled": "auto" },
            }))?,
        };
        let mut agree = |path: &str, value: Option<String>| match value {
            Some(value) => config.agree(path, value, AUTHOR).map_err(|problem| Error::Config(problem.into())),
            None => Ok(()),
        };
        agree("gradient_accumulation_steps", self.gradient_accumulation_steps.map(|x| x.to_string()))?;
        agree("gradient_clipping", self.gradient_clipping.map(|x| x.to_string()))?;
        agree("zero_optimization.stage", self.zero_stage.map(|x| x.to_string()))?;
        for (block, device) in [
            ("zero_optimization.offload_optimizer", &self.offload_optimizer_device),
            ("zero_optimization.offload_param", &self.offload_param_device),
        ] {
            let (device, path) = match device {
                None => continue,
                Some(OffloadDevice::Cpu) => ("cpu", None),
                Some(OffloadDevice::Nvme(path)) => ("nvme", Some(path.to_string_lossy().into_owned())),
            };
            agree(&format!("{block}.device"), Some(device.to_owned()))?;
            agree(&format!("{block}.nvme_path"), path)?;
        }
        let save = self.zero3_save_16bit_model.map(|x| x.to_string());
        agree("zero_optimization.stage3_gather_16bit_weights_on_model_save", save)?;
        Ok(config)
    }
}

/// The plugins of an accelerator and of those that were made from it.
#[derive(Default)]
pub(crate) struct Plugins {
    named: Vec<(String, DeepSpeedPlugin)>,
    active: AtomicUsize,
}

impl Plugins {
    /// One plugin, or several with names.
    pub fn of(plugin: Option<&DeepSpeedPlugin>, named: &[(String, DeepSpeedPlugin)]) -> Result<Plugins> {
        let named = match (plugin, named) {
            (Some(_), [_, ..]) => {
                return Err(Error::Usage(
                    "deepspeed_plugin and deepspeed_plugins are mutually exclusive; give one plugin, or several with names"
                        .to_owned(),
                ));
            }
            (Some(plugin), []) => vec![("default".to_owned(), plugin.clone())],
            (None, named) => named.to_vec(),
        };
        let mut names = HashSet::new();
        if let Some((twice, _)) = named.iter().find(|(name, _)| !names.insert(name)) {
            return Err(Error::Usage(format!("two plugins of deepspeed_plugins have the name \"{twice}\"")));
        }
        Ok(Plugins { named, active: AtomicUsize::new(0) })
    }

    /// The active one with its name.
    pub fn active(&self) -> Option<&(String, DeepSpeedPlugin)> {
        self.named.get(self.active.load(Relaxed))
    }

    /// Makes the one of this name active.
    pub fn select(&self, name: &str) -> Result<()> {
        let names = || self.named.iter().map(|(name, _)| name.as_str());
        let Some(index) = names().position(|other| other == name) else {
            let help = match (nearest_of(name, names()), self.named.is_empty()) {
                (Some(near), _) => format!("did you mean \"{near}\"?"),
                (None, true) => "the accelerator has none; give it deepspeed_plugins".to_owned(),
                (None, false) => {
                    let all: Vec<String> = names().map(|name| format!("\"{name}\"")).collect();
                    format!("there are {}", all.join(", "))
                }
            };
            return Err(Error::Usage(format!("no DeepSpeed plugin is named \"{name}\"; {help}")));
        };
        self.active.store(index, Relaxed);
        Ok(())
    }

    /// The 16 bits that the active plugin asks for.
    pub fn dtype(&self) -> Option<DType> {
        let config = self.active()?.1.hf_ds_config.as_ref()?;
        let is_on = |key: &str| config.get(key).as_deref() == Some("true");
        match (is_on("bf16.enabled"), is_on("fp16.enabled")) {
            (true, _) => Some(DType::BF16),
            (false, true) => Some(DType::F16),
            (false, false) => None,
        }
    }
}
