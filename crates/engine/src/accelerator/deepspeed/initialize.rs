//! `deepspeed.initialize`: an engine of a model, an optimizer and a configuration.

use oarlock_config::config::PipelineArgs;
use oarlock_config::dialect::DeepSpeedConfig as Config;

use super::engine::DeepSpeedEngine;
use crate::accelerator::handle::Accelerator;
use crate::accelerator::models::prepare::Prepare;
use crate::accelerator::settings::config::{AcceleratorConfig, DivideBy, GradientAccumulation};
use crate::accelerator::settings::dummies::DummyOptim;
use crate::accelerator::settings::resolved::{Resolved, hidden_size_of};
use crate::nn::Module;
use crate::optim::lr_scheduler::Scheduler;
use crate::optim::{Optim, adamw};
use crate::{Error, Result};

/// What [`initialize`] is given. Write what is not the default after [`InitializeArgs::new`].
pub struct InitializeArgs<M, L = ()> {
    /// The model.
    pub model: M,
    /// An optimizer made in code, over the model's parameters; it counts instead of that of the configuration, as in
    /// DeepSpeed.
    pub optimizer: Option<Optim>,
    /// The parameters that the optimizer of the configuration updates, in groups with hyperparameters of their own; by
    /// default all of the model, in one. Where an optimizer is made in code, it says that itself.
    pub model_parameters: Option<DummyOptim>,
    /// A schedule over that optimizer, made in code; it counts instead of that of the configuration. The engine steps it
    /// after every step that was not skipped. A schedule that you step yourself is not given here.
    pub lr_scheduler: Option<Scheduler>,
    /// The loader of the training data, or `()`. Where the configuration says `"auto"` for the micro-batch, it is the
    /// loader's batch.
    pub training_data: L,
    /// The configuration.
    pub config: Config,
    /// The process group, the device and the seed: those of this accelerator, such as that of another engine. By default
    /// those that the environment describes.
    pub accelerator: Option<Accelerator>,
    /// The model's hidden size, from which `"auto"` sizes of stage 3 follow; by default the model says it, if it knows.
    pub hidden_size: Option<usize>,
    /// What the sum of a window's gradients is divided by. DeepSpeed divides by gradient_accumulation_steps also where
    /// [`DeepSpeedEngine::set_gradient_accumulation_boundary`] ends a window early: [`DivideBy::NumSteps`].
    pub divide_by: DivideBy,
}

impl<M: Module> InitializeArgs<M> {
    /// A model and a configuration.
    pub fn new(model: M, config: Config) -> InitializeArgs<M> {
        InitializeArgs {
            model,
            optimizer: None,
            model_parameters: None,
            lr_scheduler: None,
            training_data: (),
            config,
            accelerator: None,
            hidden_size: None,
            divide_by: DivideBy::default(),
        }
    }

    /// With a loader.
    pub fn training_data<L: Prepare>(self, training_data: L) -> InitializeArgs<M, L> {
        InitializeArgs {
            model: self.model,
            optimizer: self.optimizer,
            model_parameters: self.model_parameters,
            lr_scheduler: self.lr_scheduler,
            training_data,
            config: self.config,
            accelerator: self.accelerator,
            hidden_size: self.hidden_size,
            divide_by: self.divide_by,
        }
    }
}

/// Makes an engine of a model, and gives the loader back as the ranks use it. All ranks call it with the same arguments.
/// A model without any optimizer, in code or in the configuration, is inference-only; that needs stage 3 or 0.
///
/// # Errors
/// Everything that is wrong between the keys of the configuration, with file and line; `"auto"` that nothing resolves
/// (DeepSpeed itself resolves none); objects that do not belong together; no memory.
#[track_caller]
pub fn initialize<M: Module, L: Prepare>(
    args: InitializeArgs<M, L>,
) -> Result<(DeepSpeedEngine<M>, L::Prepared)> {
    initialize_in(args, PipelineArgs::default())
}

/// As [`initialize`], for a model in the stages of a pipeline.
#[track_caller]
pub(super) fn initialize_in<M: Module, L: Prepare>(
    args: InitializeArgs<M, L>,
    pipeline: PipelineArgs,
) -> Result<(DeepSpeedEngine<M>, L::Prepared)> {
    let InitializeArgs {
        model,
        optimizer,
        model_parameters,
        lr_scheduler,
        training_data,
        mut config,
        accelerator,
        hidden_size,
        divide_by,
    } = args;
    let base = match accelerator {
        Some(accelerator) => accelerator,
        None => Accelerator::new(&AcceleratorConfig::default())?,
    };
    if let (Some(_), Some(_)) = (&optimizer, &model_parameters) {
        return Err(Error::Usage(
            "initialize: an optimizer made in code has its parameters, and model_parameters are those of the \
             configuration's; keep one of the two"
                .to_owned(),
        ));
    }
    if let Some(DummyOptim(optim)) = &model_parameters {
        config.fill("optimizer.params.lr", optim.lr_state.base());
        config.fill("optimizer.params.weight_decay", optim.config.weight_decay);
    }
    if let Some(optim) = &optimizer {
        // The optimizer of the code says what the configuration leaves to it, and replaces its optimizer.
        config.fill("scheduler.params.warmup_max_lr", optim.lr_state.base());
        config.forget(&["optimizer"]);
    }
    if lr_scheduler.is_some() {
        config.forget(&["scheduler"]);
    }
    let rows = base.batch_size_of(&training_data)?;
    if let Some(rows) = rows {
        config.fill("train_micro_batch_size_per_gpu", rows);
    }
    let hidden_size = hidden_size.or_else(|| hidden_size_of(&model));
    let plan = config.resolve(base.num_processes() / pipeline.stages.max(1), hidden_size)?;
    if let Some(rows) = rows.filter(|rows| *rows != plan.micro_batch_size) {
        return Err(Error::Usage(format!(
            "initialize: a batch of the loader has {rows} samples for each rank, and the configuration's micro-batch is {}; \
             write the same in both, or \"auto\"",
            plan.micro_batch_size
        )));
    }
    let title = "the DeepSpeed configuration".to_owned();
    base.report_notes(&title, &plan.notes);
    let mut resolved = Resolved::new(plan.clone(), hidden_size, &base.inner.config.shard, title);
    // The engine clips, and keeps the norm.
    resolved.plan.gradient_clipping = 0.0;
    let num_steps = plan.gradient_accumulation_steps;
    let accelerator = base.without_plugins(&AcceleratorConfig {
        mixed_precision: Some(resolved.options.dtype),
        gradient_accumulation: GradientAccumulation {
            num_steps,
            divide_by,
            ..GradientAccumulation::default()
        },
        pipeline,
        ..base.inner.config.clone()
    })?;

    let optim = match (optimizer, &plan.optimizer) {
        (Some(optim), _) => Some(match plan.loss_scale {
            Some(scale) if optim.config.loss_scale.is_none() => optim.loss_scale(scale),
            _ => optim,
        }),
        (None, optimizer) => match (model_parameters, optimizer) {
            (Some(DummyOptim(optim)), _) => Some(resolved.optimizer(&optim)?),
            (None, Some(_)) => Some(resolved.optimizer(&adamw(&model))?),
            (None, None) => None,
        },
    };
    let scheduler = match (lr_scheduler, &optim) {
        (Some(scheduler), _) => Some(scheduler),
        (None, Some(optim)) => resolved.scheduler(optim),
        (None, None) => None,
    };
    let (model, optimizer, scheduler, loader) = match (optim, scheduler) {
        (Some(optim), Some(scheduler)) => {
            let objects = (model, optim, scheduler, training_data);
            let (model, optimizer, scheduler, loader) = accelerator.prepare_as(objects, resolved)?;
            (model, Some(optimizer), Some(scheduler), loader)
        }
        (Some(optim), None) => {
            let (model, optimizer, loader) =
                accelerator.prepare_as((model, optim, training_data), resolved)?;
            (model, Some(optimizer), None, loader)
        }
        (None, None) => {
            let (model, loader) = accelerator.prepare_as((model, training_data), resolved)?;
            (model, None, None, loader)
        }
        (None, Some(_)) => {
            return Err(Error::Usage(
                "initialize: a schedule without an optimizer; name one in the configuration or give one"
                    .to_owned(),
            ));
        }
    };
    Ok((DeepSpeedEngine::new(accelerator, plan, model, optimizer, scheduler), loader))
}
