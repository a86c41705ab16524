//! What one call of `prepare` is given, and whether it belongs together.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use twox_hash::XxHash64;

use super::resolved::Resolved;
use crate::accelerator::handle::Accelerator;
use crate::accelerator::models::prepared_state::PreparedState;
use crate::accelerator::saving::stateful::Stateful;
use crate::nn::NamedParam;
use crate::optim::Optim;
use crate::shard::{ParamGroup, WeightSource};
use crate::{Error, Result};

/// What one call of `prepare` is given: which model belongs to which optimizer.
#[doc(hidden)]
pub struct Plan {
    pub accelerator: Accelerator,
    pub(crate) models: Vec<(Vec<NamedParam>, &'static str)>,
    pub(crate) optimizers: Vec<Optim>,
    /// Whether each of them stands for that of a DeepSpeed configuration.
    pub(crate) is_dummy: Vec<bool>,
    /// The steps and the warm-up of a schedule that stands for that of a DeepSpeed configuration.
    pub(crate) dummy_scheduler: Option<(u64, u64)>,
    pub(crate) has_scheduler: bool,
    /// The samples of a rank in a batch of each loader.
    pub(crate) batch_sizes: Vec<usize>,
    /// The hidden size of the first model with an embedding.
    pub(crate) hidden_size: Option<usize>,
    /// The DeepSpeed configuration that the objects follow.
    pub(crate) deepspeed: Option<Resolved>,
    /// One for each model, when all are known; with its optimizer, if it has one.
    pub(crate) states: Vec<(Arc<PreparedState>, Option<Optim>)>,
    /// Where the first weights of the model come from; drawn at random where nothing is said.
    pub(crate) weights: RefCell<Option<Box<dyn WeightSource>>>,
}

impl Plan {
    pub(crate) fn new(accelerator: &Accelerator) -> Plan {
        Plan {
            accelerator: accelerator.clone(),
            models: Vec::new(),
            optimizers: Vec::new(),
            is_dummy: Vec::new(),
            dummy_scheduler: None,
            has_scheduler: false,
            batch_sizes: Vec::new(),
            hidden_size: None,
            deepspeed: None,
            states: Vec::new(),
            weights: RefCell::new(None),
        }
    }

    /// Has checkpoints keep the state of a prepared object, by what it is.
    pub fn add_stateful(&self, what: &'static str, part: Arc<dyn Stateful>) {
        self.accelerator.inner.saved.add_part(what, part);
    }

    /// Finds the model of each optimizer.
    pub(crate) fn pair(&mut self) -> Result<()> {
        for (params, name) in &self.models {
            let own = self.optimizers.iter().filter(|optimizer| optimizer.updates_any(params));
            let own: Vec<&Optim> = own.collect();
            if own.len() > 1 {
                return Err(Error::Usage(format!(
                    "prepare: {} optimizers share the model {name}; one optimizer updates a model",
                    own.len()
                )));
            }
            if own.is_empty() {
                self.check_stage(name)?;
            }
            let options = self.deepspeed.as_ref().map(Resolved::step_options).unwrap_or_default();
            let state = PreparedState::new(name, !own.is_empty(), options);
            self.states.push((state, own.first().map(|optimizer| (*optimizer).clone())));
        }
        let all = self.models.iter().flat_map(|(params, _)| params);
        let names: HashMap<usize, &str> = all.map(|named| (named.param.id(), named.name.as_str())).collect();
        for optimizer in &self.optimizers {
            let strangers = optimizer.params.iter().filter(|id| !names.contains_key(id)).count();
            if strangers > 0 || optimizer.params.is_empty() {
                return Err(Error::Usage(format!(
                    "prepare: an optimizer has {strangers} parameters (of {}) that no model of this call has; give model \
                     and optimizer to one call of `prepare`, and make the optimizer from this model",
                    optimizer.params.len()
                )));
            }
            let owners = self.models.iter().filter(|(params, _)| optimizer.updates_any(params));
            let owners: Vec<&str> = owners.map(|(_, name)| *name).collect();
            if owners.len() > 1 {
                return Err(Error::Usage(format!(
                    "prepare: one optimizer updates {}; make one for each model, or one model of both",
                    owners.join(" and ")
                )));
            }
            optimizer.check_groups(&names)?;
        }
        Ok(())
    }

    /// A stage that divides the optimizer's states needs an optimizer.
    fn check_stage(&self, model: &str) -> Result<()> {
        let Some(Resolved { plan, title, .. }) = &self.deepspeed else { return Ok(()) };
        match plan.stage {
            stage @ (1 | 2) => Err(Error::Usage(format!(
                "prepare: zero stage {stage} requires an optimizer, and the model {model} comes without one; {title} has to \
                 say stage 3, which shards an inference-only model, or 0"
            ))),
            _ => Ok(()),
        }
    }

    /// Tells how many samples of a loader's batch a rank gets.
    pub fn add_batch_size(&mut self, rows: usize) {
        self.batch_sizes.push(rows);
    }

    pub(crate) fn add_optimizer(&mut self, optim: &Optim, is_dummy: bool) {
        self.optimizers.push(optim.clone());
        self.is_dummy.push(is_dummy);
    }

    /// An accelerator has one window of micro-batches, which the models that it trains have in common.
    pub(crate) fn check_window(&self) -> Result<()> {
        let inner = &self.accelerator.inner;
        let Some(Resolved { plan, .. }) = &self.deepspeed else { return Ok(()) };
        let (ours, theirs) = (plan.gradient_accumulation_steps, inner.accumulation().num_steps.max(1));
        let new = self.states.iter().find(|(state, _)| state.is_trained);
        match (new, inner.models.all().iter().find(|state| state.is_trained)) {
            (Some((new, _)), Some(other)) if ours != theirs => Err(Error::Usage(format!(
                "prepare: gradient_accumulation_steps is {ours} for the model {}, and {theirs} for {}, which this \
                 accelerator trains too; prepare one of them with a second accelerator (`accelerator.another()`)",
                new.name, other.name
            ))),
            _ => Ok(()),
        }
    }

    /// All ranks prepare the same; where they do not, the error names the first difference.
    #[track_caller]
    pub(crate) fn agree(&self) -> Result<()> {
        let (comm, own) = (self.accelerator.communicator(), self.outline());
        let digests = comm.all_gather_bytes(&XxHash64::oneshot(0, own.as_bytes()).to_ne_bytes())?;
        let Some(other) = digests.iter().position(|digest| *digest != digests[0]) else { return Ok(()) };
        let outlines = comm.all_gather_bytes(own.as_bytes())?;
        let [first, second] = [0, other].map(|rank| String::from_utf8_lossy(&outlines[rank]).into_owned());
        let (mut first, mut second) = (first.lines(), second.lines());
        let (first, second) = loop {
            match (first.next(), second.next()) {
                (Some(first), Some(second)) if first == second => {}
                (first, second) => break (first.unwrap_or("nothing"), second.unwrap_or("nothing")),
            }
        };
        Err(Error::Usage(format!(
            "prepare: the ranks prepare different things, first {first} on rank 0 and {second} on rank {other}; all ranks \
             build the same model and the same optimizer"
        )))
    }

    /// What is prepared, a line for each thing.
    fn outline(&self) -> String {
        let mut text = String::new();
        for ((params, name), (_, optim)) in self.models.iter().zip(&self.states) {
            let _ = writeln!(text, "the model {name}");
            let group_of = optim.as_ref().map(Optim::group_of).unwrap_or_default();
            for NamedParam { name, param } in params {
                let _ =
                    write!(text, "the parameter \"{name}\" of shape {:?} ({:?}", param.shape(), param.init());
                let _ = match (optim, group_of.get(&param.id())) {
                    (Some(_), Some(group)) => writeln!(text, ", in group {group})"),
                    (Some(optim), None) if optim.params.contains(&param.id()) => writeln!(text, ")"),
                    _ => writeln!(text, ", frozen)"),
                };
            }
            let _ = match optim {
                Some(Optim { config, lr_state, .. }) => {
                    writeln!(
                        text,
                        "an optimizer {:?} of lr {} and {config:?}",
                        config.rule.name(),
                        lr_state.base()
                    )
                }
                None => writeln!(text, "no optimizer"),
            };
            let groups = optim.as_ref().map(Optim::param_groups).unwrap_or_default();
            for (index, ParamGroup { rule, lr, weight_decay }) in groups.iter().enumerate().skip(1) {
                let _ =
                    writeln!(text, "the group {index} of lr {lr}, weight decay {weight_decay} and {rule:?}");
            }
        }
        text
    }

    /// What holds the model with these parameters.
    pub(crate) fn state_of(&self, params: &[NamedParam]) -> Result<&(Arc<PreparedState>, Option<Optim>)> {
        let first = params.first().map(|named| named.param.id());
        let index =
            self.models.iter().position(|(own, _)| own.first().map(|named| named.param.id()) == first);
        let state = index.and_then(|index| self.states.get(index));
        state.ok_or_else(|| Error::Usage("prepare: a model changed its parameters meanwhile".to_owned()))
    }
}
