//! Which DeepSpeed plugin is active, and what it makes of the objects of a call of `prepare`.

use std::sync::Arc;

use oarlock_tensor::DType;

use super::config::{AcceleratorConfig, SchedulerSteps};
use super::deepspeed_plugin::DeepSpeedPlugin;
use super::plan::Plan;
use super::resolved::Resolved;
use crate::accelerator::handle::Accelerator;
use crate::distributed::rank;
use crate::{Error, Result};

impl Accelerator {
    /// Makes the plugin of this name the active one: what is prepared from now on follows it. It is the same one for all
    /// accelerators that share their plugins.
    ///
    /// # Errors
    /// A name that no plugin has.
    pub fn select_deepspeed_plugin(&self, name: &str) -> Result<()> {
        self.inner.plugins.select(name)
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

    /// Says on rank 0, once, what the user should know of a DeepSpeed configuration.
    pub(crate) fn report_notes(&self, title: &str, notes: &[String]) {
        if self.is_main_process() {
            notes.iter().for_each(|note| rank::warn_once(&format!("{title}: {note}")));
        }
    }

    /// For a DeepSpeed engine: the same process group and device, and no plugin.
    pub(crate) fn without_plugins(&self, config: &AcceleratorConfig) -> Result<Accelerator> {
        Accelerator::build(
            self.inner.ranks.both(),
            self.device().clone(),
            &without_plugins(config),
            Arc::default(),
        )
    }

    /// A second accelerator on the same process group and device, with the same plugins: Python's `Accelerator()` when
    /// there is one already. It has a window of micro-batches of its own.
    ///
    /// # Errors
    /// None but those of the first.
    pub fn another(&self) -> Result<Accelerator> {
        self.another_with(&without_plugins(&self.inner.config))
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
        Accelerator::build(self.inner.ranks.both(), self.device().clone(), config, self.inner.plugins.clone())
    }
}

fn without_plugins(config: &AcceleratorConfig) -> AcceleratorConfig {
    AcceleratorConfig { deepspeed_plugin: None, deepspeed_plugins: Vec::new(), ..config.clone() }
}

impl Plan {
    /// Follows the active plugin, where the objects have no DeepSpeed configuration of their own.
    pub(crate) fn follow_plugin(&mut self) -> Result<()> {
        if self.deepspeed.is_none()
            && let Some(resolved) = self.resolve_plugin()?
        {
            self.follow(&resolved)?;
            self.deepspeed = Some(resolved);
        }
        Ok(())
    }

    /// What the active plugin makes of the objects that were announced.
    fn resolve_plugin(&self) -> Result<Option<Resolved>> {
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
                    accelerator.communicator().world_size() as u64
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
        let plan = config.resolve(accelerator.communicator().world_size(), hidden_size)?;
        accelerator.report_notes(&title, &plan.notes);
        Ok(Some(Resolved::new(plan, hidden_size, &accelerator.inner.options, title)))
    }

    /// Replaces the stand-ins by what the configuration says, and looks whether it fits the objects.
    fn follow(&mut self, resolved: &Resolved) -> Result<()> {
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
}
