//! Stand-ins for what a DeepSpeed configuration names: `DummyOptim` and `DummyScheduler`.

use super::plan::Plan;
use crate::accelerator::models::prepare::Prepare;
use crate::accelerator::steps::optimizer::PreparedOptimizer;
use crate::accelerator::steps::scheduler::PreparedScheduler;
use crate::optim::{Group, Optim, Parameters, adamw};
use crate::{Error, Result};

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

    /// Gives some of the parameters hyperparameters of their own, which count before those of the configuration: see
    /// [`Optim::group`].
    #[must_use]
    pub fn group(
        self,
        params: impl Into<Parameters>,
        hyperparameters: impl FnOnce(Group) -> Group,
    ) -> DummyOptim {
        DummyOptim(self.0.group(params, hyperparameters))
    }
}

impl Prepare for DummyOptim {
    type Prepared = PreparedOptimizer;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        check_deepspeed(plan, "a DummyOptim stands for the optimizer", "optim")?;
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
        check_deepspeed(plan, "a DummyScheduler stands for the schedule", "lr_scheduler")?;
        plan.dummy_scheduler = Some((self.total_num_steps, self.warmup_num_steps));
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<PreparedScheduler> {
        let scheduler = plan.deepspeed.as_ref().and_then(|resolved| resolved.scheduler(&self.optim));
        let scheduler = scheduler.ok_or_else(|| {
            Error::Usage("a DummyScheduler without a schedule in the configuration".to_owned())
        })?;
        scheduler.finish(plan)
    }
}

fn check_deepspeed(plan: &Plan, dummy: &str, instead: &str) -> Result<()> {
    if plan.deepspeed.is_some() || plan.accelerator.deepspeed_plugin().is_some() {
        return Ok(());
    }
    Err(Error::Usage(format!("{dummy} of a DeepSpeed plugin, and the accelerator has none; use `{instead}`")))
}
