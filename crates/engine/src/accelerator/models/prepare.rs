//! `prepare`: any number of objects in any order, each becoming what it is on many ranks.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::Deserialize;
use serde_json::{Value, json};

use super::prepared::Prepared;
use super::prepared_state::PreparedState;
use crate::accelerator::handle::Accelerator;
use crate::accelerator::saving::stateful::Stateful;
use crate::accelerator::settings::plan::Plan;
use crate::accelerator::settings::resolved::{Resolved, hidden_size_of};
use crate::accelerator::steps::optimizer::{PreparedOptimizer, Rate};
use crate::accelerator::steps::scheduler::PreparedScheduler;
use crate::nn::{self, Module, NamedParam, parameters};
use crate::optim::lr_scheduler::Scheduler;
use crate::optim::{Optim, Optimizer, OptimizerConfig};
use crate::parallel::pipeline::Pipeline;
use crate::shard::{Axis, Engine, SeededInit, Stage, Untouched, WeightSource};
use crate::{Error, Result};

/// What [`Accelerator::prepare`] takes: a model, an optimizer, a schedule, a loader, or a tuple of these.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be prepared",
    note = "models (`nn::Module`), optimizers (`optim`), schedulers (`lr_scheduler`), data loaders and tuples of them can"
)]
pub trait Prepare: Sized {
    /// What it becomes.
    type Prepared;

    /// Tells the others what it is; before anything is made.
    #[doc(hidden)]
    fn announce(&self, plan: &mut Plan) -> Result<()>;

    /// Makes it.
    #[doc(hidden)]
    fn finish(self, plan: &Plan) -> Result<Self::Prepared>;
}

impl Accelerator {
    /// Prepares models, optimizers, schedules and loaders, given one by one or as a tuple in any order; each comes back
    /// in its place. A model is paired with the optimizer that was made from its parameters; a model without one is for
    /// inference. All ranks call it with the same objects.
    ///
    /// # Errors
    /// Objects that do not belong together, a model that was prepared before, no memory.
    #[track_caller]
    pub fn prepare<P: Prepare>(&self, objects: P) -> Result<P::Prepared> {
        prepare(self, objects, None, None)
    }

    /// As [`Accelerator::prepare`], with first weights from `weights` in place of random ones; parameters that it does not
    /// have are zero.
    ///
    /// # Errors
    /// As [`Accelerator::prepare`], and what the source reports.
    #[track_caller]
    pub fn prepare_with_weights<P: Prepare>(
        &self,
        objects: P,
        weights: Box<dyn WeightSource>,
    ) -> Result<P::Prepared> {
        prepare(self, objects, None, Some(weights))
    }

    /// The samples of a rank in a batch of these loaders, if they are any.
    pub(crate) fn batch_size_of(&self, loaders: &impl Prepare) -> Result<Option<usize>> {
        let mut plan = Plan::new(self);
        loaders.announce(&mut plan)?;
        Ok(plan.batch_sizes.into_iter().min())
    }

    /// As [`Accelerator::prepare`], for a DeepSpeed engine, which has a configuration of its own.
    #[track_caller]
    pub(crate) fn prepare_as<P: Prepare>(&self, objects: P, deepspeed: Resolved) -> Result<P::Prepared> {
        prepare(self, objects, Some(deepspeed), None)
    }
}

#[track_caller]
fn prepare<P: Prepare>(
    accelerator: &Accelerator,
    objects: P,
    deepspeed: Option<Resolved>,
    weights: Option<Box<dyn WeightSource>>,
) -> Result<P::Prepared> {
    let mut plan = Plan { deepspeed, weights: RefCell::new(weights), ..Plan::new(accelerator) };
    objects.announce(&mut plan)?;
    plan.follow_plugin()?;
    plan.pair()?;
    plan.check_window()?;
    plan.agree()?;
    objects.finish(&plan)
}

/// The steps that have left out parameters that nobody touched.
struct LeftOut(Arc<PreparedState>);

impl Stateful for LeftOut {
    fn state_dict(&self) -> Result<Value> {
        Ok(json!(self.0.optimizer()?.engine().left_out_steps()))
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let counts = BTreeMap::deserialize(state)
            .map_err(|error| Error::Usage(format!("steps that were left out cannot be {state}: {error}")))?;
        self.0.optimizer()?.engine_mut().resume_left_out_steps(&counts);
        Ok(())
    }
}

impl<M: Module> Prepare for M {
    type Prepared = Prepared<M>;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        let (params, name) = (parameters(self), self.kind());
        if params.iter().any(|named| named.param.is_settled()) {
            return Err(Error::Usage(format!(
                "prepare: the model {name} is prepared already, or shares parameters with one that is"
            )));
        }
        if params.is_empty() {
            return Err(Error::Usage(format!("prepare: the model {name} has no parameters")));
        }
        let mut names = HashSet::new();
        if let Some(twice) = params.iter().find(|named| !names.insert(&named.name)) {
            return Err(Error::Usage(format!(
                "prepare: two parameters of the model {name} have the name \"{}\", under which a checkpoint keeps one; \
                 rename a field (`#[module(name = ..)]`) or a key of a map",
                twice.name
            )));
        }
        let ids: HashSet<usize> = params.iter().map(|named| named.param.id()).collect();
        let shares =
            |(own, _): &&(Vec<NamedParam>, _)| own.iter().any(|named| ids.contains(&named.param.id()));
        if let Some((_, other)) = plan.models.iter().find(shares) {
            return Err(Error::Usage(format!(
                "prepare: the models {other} and {name} share parameters; one engine holds each parameter"
            )));
        }
        plan.hidden_size = plan.hidden_size.or_else(|| hidden_size_of(self));
        plan.models.push((params, name));
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<Prepared<M>> {
        let params = parameters(&self);
        let (state, optim) = plan.state_of(&params)?;
        let accelerator = &plan.accelerator;
        for named in &params {
            if optim.as_ref().is_none_or(|optim| !optim.params.contains(&named.param.id())) {
                named.param.freeze();
            }
        }
        let config = optim.as_ref().map_or_else(OptimizerConfig::default, |optim| optim.config.clone());
        let group_of = optim.as_ref().map(Optim::group_of).unwrap_or_default();
        let param_groups = optim.as_ref().map(Optim::param_groups).unwrap_or_default();
        let module = Arc::new(self);
        // A model for inference is whole on every rank.
        let pipe = accelerator.inner.ranks.mesh.get(Axis::Pipe).filter(|_| state.is_trained);
        let args = &accelerator.inner.config.pipeline;
        let pipeline =
            pipe.map(|pipe| Pipeline::new(&*module, args, pipe, accelerator.device())).transpose()?;
        let stage = pipeline.as_ref().map(|pipeline| Stage {
            pipe: pipeline.communicator().clone(),
            stage_of_unit: pipeline.stage_of_unit(),
        });
        let ranks = if stage.is_some() { accelerator.data_ranks() } else { accelerator.communicator() };
        let mut engine = Engine::of_stage(
            &*module,
            ranks,
            accelerator.device(),
            plan.deepspeed.as_ref().map_or(&accelerator.inner.options, |resolved| &resolved.options).clone(),
            config.rule.clone(),
            &|named| group_of.get(&named.param.id()).copied().unwrap_or(0),
            &|named| config.role_by_targets(named),
            stage,
        )?;
        if let Some(pipeline) = pipeline {
            // A state is filled once.
            let _ = state.pipeline.set(Arc::new(pipeline));
        }
        match plan.weights.borrow_mut().as_deref_mut() {
            Some(weights) => engine.initialize(weights)?,
            None => engine.initialize(&mut SeededInit::new(accelerator.seed(), accelerator.device()))?,
        }
        let mut optimizer = Optimizer::new(engine, param_groups, config.loss_scale);
        for other in accelerator.inner.models.all().iter().filter(|other| other.is_trained) {
            if !state.options.has_own_loss_scale && !other.options.has_own_loss_scale {
                optimizer.share_loss_scale(&*other.optimizer()?);
            }
        }
        state.fill(module.clone(), optimizer)?;
        if nn::has_modes(&*module) {
            state.seed.store(accelerator.seed(), Relaxed);
            nn::seed_layers(&*module, accelerator.seed(), accelerator.process_index());
        }
        if accelerator.inner.options.untouched == Untouched::Skip {
            accelerator.inner.saved.add_part("untouched", Arc::new(LeftOut(state.clone())));
        }
        accelerator.inner.models.add(state.clone());
        if let Some(Resolved { plan, .. }) = plan.deepspeed.as_ref().filter(|_| optim.is_some()) {
            accelerator.inner.window.set_num_steps(plan.gradient_accumulation_steps);
        }
        Ok(Prepared::new(module, state.clone(), accelerator.inner.clone()))
    }
}

impl Prepare for Optim {
    type Prepared = PreparedOptimizer;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        plan.add_optimizer(self, false);
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<PreparedOptimizer> {
        let own = plan
            .states
            .iter()
            .find(|(_, optim)| optim.as_ref().is_some_and(|optim| optim.params == self.params));
        let (state, _) = own.ok_or_else(|| {
            Error::Usage("prepare: an optimizer without a model in the same call".to_owned())
        })?;
        let rate = Rate { state: state.clone(), lr_state: self.lr_state.clone() };
        plan.accelerator.inner.saved.add_part("optimizer", Arc::new(rate));
        Ok(PreparedOptimizer::new(state.clone(), self.lr_state, plan.accelerator.inner.clone()))
    }
}

impl Prepare for Scheduler {
    type Prepared = PreparedScheduler;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        plan.has_scheduler = true;
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<PreparedScheduler> {
        let inner = &plan.accelerator.inner;
        let prepared = PreparedScheduler::new(self, inner.clone());
        inner.saved.add_part("scheduler", Arc::new(prepared.position.clone()));
        Ok(prepared)
    }
}

/// Nothing: no loader, say.
impl Prepare for () {
    type Prepared = ();

    fn announce(&self, _plan: &mut Plan) -> Result<()> {
        Ok(())
    }

    fn finish(self, _plan: &Plan) -> Result<()> {
        Ok(())
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Prepare),*> Prepare for ($($name,)*) {
            type Prepared = ($($name::Prepared,)*);

            #[allow(non_snake_case)]
            fn announce(&self, plan: &mut Plan) -> Result<()> {
                let ($($name,)*) = self;
                $($name.announce(plan)?;)*
                Ok(())
            }

            #[allow(non_snake_case)]
            fn finish(self, plan: &Plan) -> Result<Self::Prepared> {
                let ($($name,)*) = self;
                Ok(($($name.finish(plan)?,)*))
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::Linear;
    use crate::{AcceleratorConfig, ShardingConfig, Tensor, optim};

    struct Net(Vec<Linear>);

    impl Module for Net {
        fn visit(&self, visitor: &mut dyn nn::Visitor) {
            visitor.child("layers", &self.0);
        }
    }

    impl nn::Forward<Tensor> for Net {
        type Output = Tensor;
        fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
            self.0[0].forward(x)?.mean_all()
        }
    }

    #[test]
    fn checkpoints_keep_the_steps_that_left_parameters_out() {
        let shard = ShardingConfig { untouched: Untouched::Skip, ..ShardingConfig::default() };
        let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
        let accelerator = Accelerator::over(oarlock_comm::Communicator::solo(), &config).unwrap();
        let net = Net((0..2).map(|_| Linear::new(2, 3).unwrap()).collect());
        let optimizer = optim::adamw(&net);
        let (net, optimizer) = accelerator.prepare((net, optimizer)).unwrap();
        let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2], accelerator.device()).unwrap();
        for _ in 0..2 {
            accelerator.backward(&net.forward(&x).unwrap()).unwrap();
            optimizer.step().unwrap();
        }
        let kept = accelerator.inner.saved.parts();
        let find = |what: &str| &kept.iter().find(|(name, _)| *name == what).unwrap().1;
        let left_out = json!({ "layers.1.bias": 2, "layers.1.weight": 2 });
        assert_eq!(find("untouched").state_dict().unwrap(), left_out);
        find("untouched").load_state_dict(&json!({ "layers.0.bias": 7 })).unwrap();
        assert_eq!(find("untouched").state_dict().unwrap(), json!({ "layers.0.bias": 7 }));
        assert!(find("untouched").load_state_dict(&json!([1])).is_err());
    }
}
