//! `prepare`: any number of objects in any order, each becoming what it is on many ranks.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Accelerator;
use super::held::Held;
use super::optimizer::PreparedOptimizer;
use super::prepared::Prepared;
use super::scheduler::PreparedScheduler;
use super::state::Stateful;
use crate::error::{Error, Result};
use crate::lr_scheduler::Scheduler;
use crate::nn::{self, Module, NamedParam, parameters};
use crate::optim::Optim;
use crate::shard::{Engine, SeededInit, Untouched};
use crate::train::{Optimizer, OptimizerConfig};

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

/// What one call of `prepare` is given: which model belongs to which optimizer.
#[doc(hidden)]
pub struct Plan {
    pub(crate) accelerator: Accelerator,
    models: Vec<(Vec<usize>, &'static str)>,
    optimizers: Vec<Optim>,
    /// One for each model, when all are known; with its optimizer, if it has one.
    held: Vec<(Arc<Held>, Option<Optim>)>,
}

impl Plan {
    pub(super) fn prepare<P: Prepare>(accelerator: &Accelerator, objects: P) -> Result<P::Prepared> {
        let mut plan = Plan {
            accelerator: accelerator.clone(),
            models: Vec::new(),
            optimizers: Vec::new(),
            held: Vec::new(),
        };
        objects.announce(&mut plan)?;
        plan.pair()?;
        objects.finish(&plan)
    }

    /// Finds the model of each optimizer.
    fn pair(&mut self) -> Result<()> {
        for (ids, name) in &self.models {
            let own =
                self.optimizers.iter().filter(|optimizer| ids.iter().any(|id| optimizer.params.contains(id)));
            let own: Vec<&Optim> = own.collect();
            if own.len() > 1 {
                return Err(Error::Usage(format!(
                    "prepare: {} optimizers share the model {name}; one optimizer updates a model",
                    own.len()
                )));
            }
            self.held
                .push((Held::new(name, !own.is_empty()), own.first().map(|optimizer| (*optimizer).clone())));
        }
        let all: HashSet<usize> = self.models.iter().flat_map(|(ids, _)| ids.iter().copied()).collect();
        for optimizer in &self.optimizers {
            let strangers = optimizer.params.difference(&all).count();
            if strangers > 0 || optimizer.params.is_empty() {
                return Err(Error::Usage(format!(
                    "prepare: an optimizer has {strangers} parameters (of {}) that no model of this call has; give model \
                     and optimizer to one call of `prepare`, and make the optimizer from this model",
                    optimizer.params.len()
                )));
            }
            let owners =
                self.models.iter().filter(|(ids, _)| ids.iter().any(|id| optimizer.params.contains(id)));
            let owners: Vec<&str> = owners.map(|(_, name)| *name).collect();
            if owners.len() > 1 {
                return Err(Error::Usage(format!(
                    "prepare: one optimizer updates {}; make one for each model, or one model of both",
                    owners.join(" and ")
                )));
            }
        }
        Ok(())
    }

    /// What holds the model with these parameters.
    fn held_of(&self, ids: &[usize]) -> Result<&(Arc<Held>, Option<Optim>)> {
        let index = self.models.iter().position(|(own, _)| own == ids);
        let held = index.and_then(|index| self.held.get(index));
        held.ok_or_else(|| Error::Usage("prepare: a model changed its parameters meanwhile".to_owned()))
    }
}

impl Accelerator {
    /// Prepares models, optimizers, schedules and loaders, given one by one or as a tuple in any order; each comes back
    /// in its place. A model is paired with the optimizer that was made from its parameters; a model without one is for
    /// inference. All ranks call it with the same objects.
    ///
    /// # Errors
    /// Objects that do not belong together, a model that was prepared before, no memory.
    pub fn prepare<P: Prepare>(&self, objects: P) -> Result<P::Prepared> {
        Plan::prepare(self, objects)
    }
}

/// The forward passes of a model, which its dropout goes by.
struct Passes(Arc<dyn Module>);

impl Stateful for Passes {
    fn state_dict(&self) -> Result<Value> {
        Ok(json!({ "passes": nn::n_passes(&*self.0) }))
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let passes = state.get("passes").and_then(Value::as_u64);
        let passes = passes.ok_or_else(|| Error::Usage(format!("dropout cannot go on from {state}")))?;
        nn::set_passes(&*self.0, passes);
        Ok(())
    }
}

/// The steps that have left out parameters that nobody touched.
struct LeftOut(Arc<Held>);

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

fn ids_of(model: &dyn Module) -> Vec<usize> {
    parameters(model).iter().map(|named| named.param.id()).collect()
}

impl<M: Module> Prepare for M {
    type Prepared = Prepared<M>;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        let (ids, name) = (ids_of(self), self.kind());
        if parameters(self).iter().any(|named| named.param.is_settled()) {
            return Err(Error::Usage(format!(
                "prepare: the model {name} is prepared already, or shares parameters with one that is"
            )));
        }
        if ids.is_empty() {
            return Err(Error::Usage(format!("prepare: the model {name} has no parameters")));
        }
        if let Some((_, other)) = plan.models.iter().find(|(own, _)| own.iter().any(|id| ids.contains(id))) {
            return Err(Error::Usage(format!(
                "prepare: the models {other} and {name} share parameters; one engine holds each parameter"
            )));
        }
        plan.models.push((ids, name));
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<Prepared<M>> {
        let (held, optim) = plan.held_of(&ids_of(&self))?;
        let accelerator = &plan.accelerator;
        for named in parameters(&self) {
            if optim.as_ref().is_none_or(|optim| !optim.params.contains(&named.param.id())) {
                named.param.freeze();
            }
        }
        let config = optim.as_ref().map_or_else(OptimizerConfig::default, |optim| optim.config);
        let decays = |named: &NamedParam| {
            optim.as_ref().is_some_and(|optim| !optim.undecayed.contains(&named.param.id()))
        };
        let module = Arc::new(self);
        let mut engine = Engine::new(
            &*module,
            &accelerator.comm,
            &accelerator.device,
            accelerator.options.clone(),
            config.rule,
            &decays,
            &OptimizerConfig::role,
        )?;
        engine
            .initialize(&mut SeededInit { seed: accelerator.seed(), device: accelerator.device.clone() })?;
        held.fill(module.clone(), Optimizer::new(engine, config))?;
        if nn::has_modes(&*module) {
            nn::seed_layers(&*module, accelerator.seed(), accelerator.process_index());
            accelerator.inner.add_stateful("passes", Arc::new(Passes(module.clone())));
        }
        if accelerator.options.untouched == Untouched::Skip {
            accelerator.inner.add_stateful("untouched", Arc::new(LeftOut(held.clone())));
        }
        accelerator.inner.add_model(held.clone());
        Ok(Prepared::new(module, held.clone(), accelerator.inner.clone()))
    }
}

impl Prepare for Optim {
    type Prepared = PreparedOptimizer;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        plan.optimizers.push(self.clone());
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<PreparedOptimizer> {
        let own = plan
            .held
            .iter()
            .find(|(_, optim)| optim.as_ref().is_some_and(|optim| optim.params == self.params));
        let (held, _) = own.ok_or_else(|| {
            Error::Usage("prepare: an optimizer without a model in the same call".to_owned())
        })?;
        Ok(PreparedOptimizer::new(held.clone(), self.pace, plan.accelerator.inner.clone()))
    }
}

impl Prepare for Scheduler {
    type Prepared = PreparedScheduler;

    fn announce(&self, _plan: &mut Plan) -> Result<()> {
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<PreparedScheduler> {
        let prepared = PreparedScheduler::new(self, plan.accelerator.inner.clone());
        plan.accelerator.inner.add_stateful("scheduler", Arc::new(prepared.clone()));
        Ok(prepared)
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
    use crate::nn::{Dropout, Linear};
    use crate::{AcceleratorConfig, Options, Tensor, optim};

    struct Net(Vec<Linear>, Dropout);

    impl Module for Net {
        fn visit(&self, visitor: &mut dyn nn::Visitor) {
            visitor.child("layers", &self.0);
            visitor.child("drop", &self.1);
        }
    }

    impl nn::Forward<Tensor> for Net {
        type Output = Tensor;
        fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
            self.1.forward(&self.0[0].forward(x)?)?.mean_all()
        }
    }

    #[test]
    fn checkpoints_keep_passes_and_the_steps_that_left_parameters_out() {
        let shard = Options { untouched: Untouched::Skip, ..Options::default() };
        let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
        let accelerator = Accelerator::over(oarlock_comm::Communicator::solo(), &config).unwrap();
        let net = Net((0..2).map(|_| Linear::new(2, 3).unwrap()).collect(), Dropout::new(0.5));
        let optimizer = optim::adamw(&net);
        let (net, optimizer) = accelerator.prepare((net, optimizer)).unwrap();
        let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2], accelerator.device()).unwrap();
        for _ in 0..2 {
            accelerator.backward(&net.forward(&x).unwrap()).unwrap();
            optimizer.step().unwrap();
        }
        let kept = accelerator.inner.stateful();
        let find = |what: &str| &kept.iter().find(|(name, _)| *name == what).unwrap().1;
        let left_out = json!({ "layers.1.bias": 2, "layers.1.weight": 2 });
        assert_eq!(find("untouched").state_dict().unwrap(), left_out);
        assert_eq!(find("passes").state_dict().unwrap(), json!({ "passes": 2 }));
        find("untouched").load_state_dict(&json!({ "layers.0.bias": 7 })).unwrap();
        find("passes").load_state_dict(&json!({ "passes": 9 })).unwrap();
        assert_eq!(find("untouched").state_dict().unwrap(), json!({ "layers.0.bias": 7 }));
        assert_eq!(nn::n_passes(&*net), 9);
        assert!(find("passes").load_state_dict(&json!({})).is_err());
        assert!(find("untouched").load_state_dict(&json!([1])).is_err());
    }
}
