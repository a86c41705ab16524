//! What a DeepSpeed configuration makes of what is prepared.

use oarlock_config::dialect::DeepSpeedArgs;
use oarlock_tensor::Param;

use crate::accelerator::models::prepared_state::StepOptions;
use crate::nn::{Module, UnitRun, Visitor, parameters};
use crate::optim::lr_scheduler::Scheduler;
use crate::optim::{Optim, Schedule};
use crate::shard::ShardingConfig;
use crate::{Error, Result};

/// What a DeepSpeed configuration makes of what is prepared.
#[derive(Clone)]
pub(crate) struct Resolved {
    pub plan: DeepSpeedArgs,
    /// How the model is held.
    pub options: ShardingConfig,
    /// What an error calls the configuration.
    pub title: String,
}

impl Resolved {
    /// On top of the options that no DeepSpeed configuration speaks of.
    pub fn new(
        plan: DeepSpeedArgs,
        hidden_size: Option<usize>,
        base: &ShardingConfig,
        title: String,
    ) -> Resolved {
        let options = plan.shard.resolve(plan.dtype, hidden_size.unwrap_or(0));
        Resolved { options: ShardingConfig { gather: base.gather, ..options }, plan, title }
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
        optim.config.rule = args.rule.clone();
        optim.config.loss_scale = self.plan.loss_scale;
        Ok(optim)
    }

    /// The schedule of the configuration over an optimizer.
    pub fn scheduler(&self, optim: &Optim) -> Option<Scheduler> {
        let schedule = Schedule::new(self.plan.schedule.as_ref()?, 0, 1);
        Some(Scheduler::scheduled(optim, schedule))
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
