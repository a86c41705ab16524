//! Optimizers as a loop of one's own names them: a rule over a model's parameters, with its learning rate.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use oarlock_tensor::ops::optimizer::Rule;

use crate::nn::{Module, NamedParam, parameters};
use crate::train::OptimizerConfig;

/// Parameters of a model, each once, in the order in which the model shows them.
#[derive(Clone, Debug)]
pub struct Parameters(Vec<NamedParam>);

impl Parameters {
    /// Those of a model.
    pub fn of(model: &dyn Module) -> Parameters {
        Parameters(parameters(model))
    }

    /// Those that satisfy a condition. What is in no optimizer stays as it is, as a frozen parameter does.
    pub fn filter(self, keep: impl Fn(&NamedParam) -> bool) -> Parameters {
        Parameters(self.0.into_iter().filter(keep).collect())
    }

    /// With those of another model, or of another part.
    pub fn and(mut self, more: impl Into<Parameters>) -> Parameters {
        self.0.extend(more.into().0);
        self
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = &NamedParam> {
        self.0.iter()
    }
}

impl<M: Module> From<&M> for Parameters {
    fn from(model: &M) -> Parameters {
        Parameters::of(model)
    }
}

/// An optimizer that is not prepared yet: a rule, its numbers, and the parameters that it updates.
#[derive(Clone, Debug)]
pub struct Optim {
    pub(crate) config: OptimizerConfig,
    pub(crate) params: HashSet<usize>,
    pub(crate) undecayed: HashSet<usize>,
    pub(crate) pace: Pace,
}

impl Optim {
    /// An optimizer with any rule. Weight decay applies to all parameters, as in torch.
    pub fn new(params: impl Into<Parameters>, rule: Rule, lr: f64, weight_decay: f64) -> Optim {
        Optim {
            config: OptimizerConfig { rule, weight_decay, ..OptimizerConfig::default() },
            params: params.into().iter().map(|named| named.param.id()).collect(),
            undecayed: HashSet::new(),
            pace: Pace::new(lr),
        }
    }

    /// Whether one of these is updated.
    pub(crate) fn updates_any(&self, params: &[NamedParam]) -> bool {
        params.iter().any(|named| self.params.contains(&named.param.id()))
    }

    /// Sets the learning rate.
    pub fn lr(self, lr: f64) -> Optim {
        self.pace.begin(lr);
        self
    }

    /// Sets the weight decay.
    pub fn weight_decay(mut self, weight_decay: f64) -> Optim {
        self.config.weight_decay = weight_decay;
        self
    }

    /// Leaves these parameters without weight decay.
    pub fn no_decay(mut self, params: impl Into<Parameters>) -> Optim {
        self.undecayed.extend(params.into().iter().map(|named| named.param.id()));
        self
    }

    /// Sets the decays of the moments, where the rule has any.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Optim {
        self.config.rule = self.config.rule.with_betas([beta1, beta2]);
        self
    }

    /// How the loss is scaled before the backward pass; by default as DeepSpeed does in f16, and not otherwise.
    pub fn loss_scale(mut self, loss_scale: crate::config::LossScale) -> Optim {
        self.config.loss_scale = Some(loss_scale);
        self
    }
}

/// `torch.optim.AdamW` with torch's defaults: lr 1e-3, betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
pub fn adamw(params: impl Into<Parameters>) -> Optim {
    Optim::new(params, Rule::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 }, 1e-3, 0.01)
}

/// `torch.optim.Adam` with torch's defaults: lr 1e-3, betas 0.9 and 0.999, eps 1e-8.
pub fn adam(params: impl Into<Parameters>) -> Optim {
    Optim::new(params, Rule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 }, 1e-3, 0.0)
}

/// `torch.optim.SGD` with torch's defaults: lr 1e-3, no momentum. See [`Optim::new`] for momentum.
pub fn sgd(params: impl Into<Parameters>) -> Optim {
    Optim::new(params, Rule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false }, 1e-3, 0.0)
}

/// The pace of an optimizer: its learning rate and the steps done, shared with schedulers. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Pace(Arc<PaceState>);

#[derive(Debug)]
struct PaceState {
    /// Where schedules begin, as f64 bits.
    base: AtomicU64,
    /// The learning rate of the next step, as f64 bits.
    lr: AtomicU64,
    /// Whether the last step was skipped.
    skipped: AtomicBool,
}

impl Pace {
    fn new(lr: f64) -> Pace {
        let bits = lr.to_bits();
        Pace(Arc::new(PaceState {
            base: AtomicU64::new(bits),
            lr: AtomicU64::new(bits),
            skipped: AtomicBool::new(false),
        }))
    }

    fn begin(&self, lr: f64) {
        self.0.base.store(lr.to_bits(), Relaxed);
        self.set_lr(lr);
    }

    pub fn base(&self) -> f64 {
        f64::from_bits(self.0.base.load(Relaxed))
    }

    pub fn lr(&self) -> f64 {
        f64::from_bits(self.0.lr.load(Relaxed))
    }

    pub fn set_lr(&self, lr: f64) {
        self.0.lr.store(lr.to_bits(), Relaxed);
    }

    pub fn skipped(&self) -> bool {
        self.0.skipped.load(Relaxed)
    }

    pub fn set_skipped(&self, skipped: bool) {
        self.0.skipped.store(skipped, Relaxed);
    }
}
