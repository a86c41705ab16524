//! Several DeepSpeed configurations in one process, of which one is active.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use oarlock_tensor::{DType, Param};
use serde_json::json;

use super::config::SchedulerSteps;
use super::options::engine_options;
use super::prepare::{Plan, Prepare};
use super::prepared_state::StepOptions;
use super::{Accelerator, AcceleratorConfig, PreparedOptimizer, PreparedScheduler};
use crate::error::{Error, Result};
use crate::lr_scheduler::Scheduler;
use crate::nearest::nearest_of;
use crate::nn::{Module, UnitRun, Visitor, parameters};
use crate::optim::{Group, Optim, Parameters, Schedule, adamw};
use crate::settings::{DeepSpeedArgs, DeepSpeedConfig};
use crate::shard::Options;

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
    fn config(&self) -> Result<DeepSpeedConfig> {
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
pub(super) struct Plugins {
    named: Vec<(String, DeepSpeedPlugin)>,
    active: AtomicUsize,
}

impl Plugins {
    pub fn of(config: &AcceleratorConfig) -> Result<Arc<Plugins>> {
        let named = match (&config.deepspeed_plugin, config.deepspeed_plugins.as_slice()) {
            (Some(_), [_, ..]) => {
                return Err(Error::Usage(
                    "deepspeed_plugin and deepspeed_plugins exclude each other; give one plugin, or several with names"
                        .to_owned(),
                ));
            }
            (Some(plugin), []) => vec![("default".to_owned(), plugin.clone())],
            (None, named) => named.to_vec(),
        };
        let twice =
            named.iter().enumerate().find(|(i, (name, _))| named[..*i].iter().any(|(n, _)| n == name));
        if let Some((_, (name, _))) = twice {
            return Err(Error::Usage(format!("two plugins of deepspeed_plugins have the name \"{name}\"")));
        }
        Ok(Arc::new(Plugins { named, active: AtomicUsize::new(0) }))
    }

    fn active(&self) -> Option<&(String, DeepSpeedPlugin)> {
        self.named.get(self.active.load(Relaxed))
    }
}

/// The size of a model's hidden states, from which `"auto"` sizes follow: the width of its first embedding.
pub(crate) fn hidden_size_of(model: &dyn Module) -> Option<usize> {
    let mut first = FirstEmbedding(None);
    first.child("", model);
    first.0
}

/// The width of the first embedding that is visited.
struct FirstEmbedding(Option<usize>);

impl Visitor for FirstEmbedding {
    fn param(&mut self, _name: &str, _param: &Param) {}

    fn child(&mut self, _name: &str, child: &dyn Module) {
        match child.kind() {
            _ if self.0.is_some() => {}
            "Embedding" => self.0 = parameters(child).first().map(|named| named.param.shape().last()),
            _ => child.visit(self),
        }
    }

    fn unit(&mut self, _unit: &UnitRun, inside: &dyn Module) {
        self.child("", inside);
    }
}

/// What a DeepSpeed configuration makes of what is prepared.
#[derive(Clone)]
pub(crate) struct Resolved {
    pub plan: DeepSpeedArgs,
    /// How the model is held.
    pub options: Options,
    /// What an error calls the configuration.
    pub title: String,
}

impl Resolved {
    /// On top of the options that no DeepSpeed configuration speaks of.
    pub fn new(plan: DeepSpeedArgs, hidden_size: Option<usize>, base: &Options, title: String) -> Resolved {
        let options = engine_options(&plan.shard, plan.dtype, hidden_size.unwrap_or(0));
        Resolved { options: Options { gather: base.gather, ..options }, plan, title }
    }

    /// What DeepSpeed's steps do besides stepping.
    pub fn step_options(&self) -> StepOptions {
        let max_norm = self.plan.gradient_clipping;
        StepOptions {
            clip_on_step: (max_norm > 0.0).then_some(max_norm),
            keeps_partial_windows: true,
            has_own_loss_scale: true,
        }
    }

    /// Makes the optimizer of the configuration of a stand-in.
    pub fn optimizer(&self, stand_in: &Optim) -> Result<Optim> {
        let args = self.plan.optimizer.as_ref().ok_or_else(|| {
            Error::Usage(format!(
                "a DummyOptim stands for the optimizer of {}, which names none; add an `optimizer` block there, or make \
                 an optimizer in the code",
                self.title
            ))
        })?;
        let mut optim = stand_in.clone().lr(self.plan.learning_rate).weight_decay(args.weight_decay);
        optim.config.rule = args.rule;
        optim.config.loss_scale = self.plan.loss_scale;
        Ok(optim)
    }

    /// The schedule of the configuration over an optimizer.
    pub fn scheduler(&self, optim: &Optim) -> Option<Scheduler> {
        let schedule = Schedule::new(self.plan.schedule.as_ref()?, 0, 1);
        Some(Scheduler::scheduled(optim, schedule))
    }
}

impl Accelerator {
    /// Makes the plugin of this name the active one: what is prepared from now on follows it. It is the same one for all
    /// accelerators that share their plugins.
    ///
    /// # Errors
    /// A name that no plugin has.
    pub fn select_deepspeed_plugin(&self, name: &str) -> Result<()> {
        let plugins = &self.inner.plugins;
        let names = || plugins.named.iter().map(|(name, _)| name.as_str());
        let Some(index) = names().position(|other| other == name) else {
            let help = match (nearest_of(name, names()), plugins.named.is_empty()) {
                (Some(near), _) => format!("did you mean \"{near}\"?"),
                (None, true) => "the accelerator has none; give it deepspeed_plugins".to_owned(),
                (None, false) => {
                    let all: Vec<String> = names().map(|name| format!("\"{name}\"")).collect();
                    format!("there are {}", all.join(", "))
                }
            };
            return Err(Error::Usage(format!("no DeepSpeed plugin is named \"{name}\"; {help}")));
        };
        plugins.active.store(index, Relaxed);
        Ok(())
    }

    /// The active plugin with its name: the first until another one is selected.
    ///
    /// # Errors
    /// An accelerator without plugins.
    pub fn get_active_deepspeed_plugin(&self) -> Result<(&str, &DeepSpeedPlugin)> {
        let (name, plugin) = self.inner.plugins.active().ok_or_else(|| {
            Error::Usage(
                "no DeepSpeed plugin is active: this accelerator has none; give it deepspeed_plugin or deepspeed_plugins"
                    .to_owned(),
            )
        })?;
        Ok((name, plugin))
    }

    /// The active plugin, if there is one.
    pub fn deepspeed_plugin(&self) -> Option<&DeepSpeedPlugin> {
        self.inner.plugins.active().map(|(_, plugin)| plugin)
    }

    /// The 16 bits that the active plugin asks for.
    pub(super) fn plugin_dtype(&self) -> Option<DType> {
        let config = self.deepspeed_plugin()?.hf_ds_config.as_ref()?;
        let is_on = |key: &str| config.get(key).as_deref() == Some("true");
        match (is_on("bf16.enabled"), is_on("fp16.enabled")) {
            (true, _) => Some(DType::BF16),
            (false, true) => Some(DType::F16),
            (false, false) => None,
        }
    }

    /// For a DeepSpeed engine: the same process group and device, and no plugin.
    pub(crate) fn without_plugins(&self, config: &AcceleratorConfig) -> Result<Accelerator> {
        let config =
            AcceleratorConfig { deepspeed_plugin: None, deepspeed_plugins: Vec::new(), ..config.clone() };
        Accelerator::build(self.comm.clone(), self.device.clone(), &config, Plugins::of(&config)?)
    }

    /// A second accelerator on the same process group and device, with the same plugins: Python's `Accelerator()` when
    /// there is one already. It has a window of micro-batches of its own.
    ///
    /// # Errors
    /// None but those of the first.
    pub fn another(&self) -> Result<Accelerator> {
        let config = AcceleratorConfig {
            deepspeed_plugin: None,
            deepspeed_plugins: Vec::new(),
            ..self.inner.config.clone()
        };
        self.another_with(&config)
    }

    /// As [`Accelerator::another`], with settings of its own. Threads and CPU path are those of the first.
    ///
    /// # Errors
    /// Plugins, which are shared and given once; options that contradict themselves.
    pub fn another_with(&self, config: &AcceleratorConfig) -> Result<Accelerator> {
        if config.deepspeed_plugin.is_some() || !config.deepspeed_plugins.is_empty() {
            return Err(Error::Usage(
                "a second accelerator shares the plugins of the first and takes none of its own; give all of them to the \
                 first, and choose by `select_deepspeed_plugin`"
                    .to_owned(),
            ));
        }
        Accelerator::build(self.comm.clone(), self.device.clone(), config, self.inner.plugins.clone())
    }
}

impl Plan {
    /// What the active plugin makes of the objects that were announced.
    pub(super) fn resolve_plugin(&self) -> Result<Option<Resolved>> {
        let accelerator = &self.accelerator;
        let Some((name, plugin)) = accelerator.inner.plugins.active() else { return Ok(None) };
        if self.models.is_empty() {
            return Ok(None);
        }
        let settings = &accelerator.inner.config;
        let mut config = plugin.config()?;
        let title = format!("the DeepSpeed plugin \"{name}\"");
        let mixed = settings.mixed_precision;
        for (key, dtype) in [("fp16", DType::F16), ("bf16", DType::BF16)] {
            let key = format!("{key}.enabled");
            config.fill(&key, mixed == Some(dtype));
            if mixed == Some(dtype) && config.get(&key).is_none() {
                config
                    .agree(&key, true, "mixed_precision")
                    .map_err(|problem| Error::Config(problem.into()))?;
            }
            if let (Some(mixed), Some("true")) = (mixed, config.get(&key).as_deref())
                && mixed != dtype
            {
                return Err(Error::Usage(format!(
                    "mixed_precision is {mixed}, and {title} sets {key}; write the same in both, or \"auto\""
                )));
            }
        }
        const MICRO: &str = "train_micro_batch_size_per_gpu";
        let loaders = self.batch_sizes.iter().copied();
        let rows = if plugin.is_train_batch_min { loaders.min() } else { loaders.max() };
        match rows {
            Some(rows) => config.fill(MICRO, rows),
            None if config.is_auto(MICRO) => {
                return Err(Error::Usage(format!(
                    "prepare: {title} says \"auto\" for {MICRO}, which is the batch size of a loader, and no loader is in \
                     this call of `prepare`; add the loader, or write a number into the configuration"
                )));
            }
            None => {}
        }
        config.fill("gradient_accumulation_steps", settings.gradient_accumulation.num_steps.max(1));
        config.fill("gradient_clipping", 1.0);
        config.fill("zero_optimization.stage3_gather_16bit_weights_on_model_save", false);
        for block in ["offload_optimizer", "offload_param"] {
            config.fill(&format!("zero_optimization.{block}.device"), "none");
        }
        if let Some(optim) = self.optimizers.first() {
            config.fill("optimizer.params.lr", optim.lr_state.base());
            config.fill("optimizer.params.weight_decay", optim.config.weight_decay);
            let rate = config.get("optimizer.params.lr").unwrap_or_else(|| optim.lr_state.base().to_string());
            config.fill("scheduler.params.warmup_min_lr", 0.0);
            config.fill("scheduler.params.warmup_max_lr", rate);
        }
        if let Some((total, warmup)) = self.dummy_scheduler {
            let by = match settings.scheduler_steps {
                SchedulerSteps::PerProcess if !settings.dataloader.split_batches => {
                    accelerator.comm.world_size() as u64
                }
                _ => 1,
            };
            config.fill("scheduler.params.total_num_steps", total.div_ceil(by));
            config.fill("scheduler.params.warmup_num_steps", warmup);
        }
        if self.optimizers.is_empty() {
            // An inference-only model has no schedule.
            config.forget(&["optimizer", "scheduler"]);
        }
        let hidden_size = plugin.hidden_size.or(self.hidden_size);
        let plan = config.resolve(accelerator.comm.world_size(), hidden_size)?;
        Ok(Some(Resolved::new(plan, hidden_size, &accelerator.options, title)))
    }

    /// Replaces the stand-ins by what the configuration says, and looks whether it fits the objects.
    pub(super) fn follow(&mut self, resolved: &Resolved) -> Result<()> {
        let (plan, title) = (&resolved.plan, &resolved.title);
        for (optim, is_dummy) in self.optimizers.iter_mut().zip(&self.is_dummy) {
            match (is_dummy, &plan.optimizer) {
                (true, _) => *optim = resolved.optimizer(optim)?,
                (false, Some(_)) => {
                    return Err(Error::Usage(format!(
                        "prepare: an optimizer stands both in the code and in {title}; keep one: a DummyOptim in the code \
                         stands for that of the configuration"
                    )));
                }
                (false, None) => {}
            }
            optim.config.loss_scale = optim.config.loss_scale.or(plan.loss_scale);
        }
        match (self.dummy_scheduler.is_some(), self.has_scheduler, &plan.schedule) {
            (true, _, None) => Err(Error::Usage(format!(
                "a DummyScheduler stands for the schedule of {title}, which names none; add a `scheduler` block there, or \
                 make a schedule in the code"
            ))),
            (_, true, Some(_)) => Err(Error::Usage(format!(
                "prepare: a schedule stands both in the code and in {title}; keep one: a DummyScheduler in the code stands \
                 for that of the configuration"
            ))),
            _ => Ok(()),
        }
    }

    /// A stage that divides the optimizer's states needs an optimizer.
    pub(super) fn check_stage(&self, model: &str) -> Result<()> {
        let Some(Resolved { plan, title, .. }) = &self.deepspeed else { return Ok(()) };
        match plan.stage {
            stage @ (1 | 2) => Err(Error::Usage(format!(
                "prepare: zero stage {stage} requires an optimizer, and the model {model} comes without one; {title} has to \
                 say stage 3, which shards an inference-only model, or 0"
            ))),
            _ => Ok(()),
        }
    }
}

/// Accelerate's `DummyOptim`: stands for the optimizer of the active DeepSpeed plugin. Its learning rate and weight decay
/// count where that says `"auto"`.
#[derive(Clone, Debug)]
pub struct DummyOptim(pub(crate) Optim);

impl DummyOptim {
    /// Over these parameters, with lr 1e-3 and no weight decay.
    pub fn new(params: impl Into<Parameters>) -> DummyOptim {
        DummyOptim(adamw(params).lr(1e-3).weight_decay(0.0))
    }

    /// Sets the learning rate.
    #[must_use]
    pub fn lr(self, lr: f64) -> DummyOptim {
        DummyOptim(self.0.lr(lr))
    }

    /// Sets the weight decay.
    #[must_use]
    pub fn weight_decay(self, weight_decay: f64) -> DummyOptim {
        DummyOptim(self.0.weight_decay(weight_decay))
    }

    /// Gives some of the parameters numbers of their own, which count before those of the configuration: see
    /// [`Optim::group`].
    #[must_use]
    pub fn group(self, params: impl Into<Parameters>, numbers: impl FnOnce(Group) -> Group) -> DummyOptim {
        DummyOptim(self.0.group(params, numbers))
    }
}

impl Prepare for DummyOptim {
    type Prepared = PreparedOptimizer;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        if plan.has_no_deepspeed() {
            return Err(Error::Usage(
                "a DummyOptim stands for the optimizer of a DeepSpeed plugin, and the accelerator has none; use `optim`"
                    .to_owned(),
            ));
        }
        plan.add_optimizer(&self.0, true);
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<PreparedOptimizer> {
        self.0.finish(plan)
    }
}

/// Accelerate's `DummyScheduler`: stands for the schedule of the active DeepSpeed plugin. Step it as any other schedule.
/// (There the engine steps it, and `step` does nothing.)
#[derive(Clone, Debug)]
pub struct DummyScheduler {
    optim: Optim,
    total_num_steps: u64,
    warmup_num_steps: u64,
}

impl DummyScheduler {
    /// Over so many steps of this optimizer, with so many of warm-up; they count where the configuration says `"auto"`.
    pub fn new(optimizer: &DummyOptim, total_num_steps: u64, warmup_num_steps: u64) -> DummyScheduler {
        DummyScheduler { optim: optimizer.0.clone(), total_num_steps, warmup_num_steps }
    }
}

impl Prepare for DummyScheduler {
    type Prepared = PreparedScheduler;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        if plan.has_no_deepspeed() {
            return Err(Error::Usage(
                "a DummyScheduler stands for the schedule of a DeepSpeed plugin, and the accelerator has none; use \
                 `lr_scheduler`"
                    .to_owned(),
            ));
        }
        plan.dummy_scheduler = Some((self.total_num_steps, self.warmup_num_steps));
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<PreparedScheduler> {
        let scheduler = plan.deepspeed.as_ref().and_then(|resolved| resolved.scheduler(&self.optim));
        let scheduler = scheduler.ok_or_else(|| {
            Error::Usage("a DummyScheduler without a schedule in the configuration".to_owned())
        })?;
        Ok(plan.finish_scheduler(scheduler))
    }
}
