//! An optimizer that is not prepared yet: a rule over a model's parameters in groups.

use super::lr_state::LrState;
use super::optimizer::OptimizerConfig;
use oarlock_tensor::ops::optimizer::{CustomRule, OneBit, OneBitKind, Rule};
use std::collections::{HashMap, HashSet};

use crate::nn::{Module, NamedParam, parameters};
use crate::shard::ParamGroup;
use crate::{Error, Result};

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

/// An optimizer that is not prepared yet: a rule, its hyperparameters, and the parameters that it updates.
#[derive(Clone, Debug)]
pub struct Optim {
    pub(crate) config: OptimizerConfig,
    pub(crate) params: HashSet<usize>,
    /// Those that were named: the groups from 1 on.
    groups: Vec<Group>,
    pub(crate) lr_state: LrState,
}

impl Optim {
    /// An optimizer with any rule. Weight decay applies to all parameters, as in torch.
    pub fn new(params: impl Into<Parameters>, rule: Rule, lr: f64, weight_decay: f64) -> Optim {
        Optim {
            config: OptimizerConfig { rule, weight_decay, ..OptimizerConfig::default() },
            params: params.into().iter().map(|named| named.param.id()).collect(),
            groups: Vec::new(),
            lr_state: LrState::new(lr),
        }
    }

    /// Whether one of these is updated.
    pub(crate) fn updates_any(&self, params: &[NamedParam]) -> bool {
        params.iter().any(|named| self.params.contains(&named.param.id()))
    }

    /// Sets the learning rate, also of groups that say none.
    pub fn lr(self, lr: f64) -> Optim {
        self.lr_state.begin(lr);
        self
    }

    /// Sets the weight decay, also of groups that say none.
    pub fn weight_decay(mut self, weight_decay: f64) -> Optim {
        self.config.weight_decay = weight_decay;
        self
    }

    /// Gives some of the parameters hyperparameters of their own: torch's `{"params": .., "lr": ..}`. What the group does
    /// not say is the optimizer's. Group 0 is all that no group names; the others are counted in the order in which they
    /// are written. `prepare` refuses a parameter in two groups, or one that the optimizer does not update.
    ///
    /// ```
    /// use oarlock::nn::{self, Linear, Module};
    /// use oarlock::optim::{self, Parameters};
    ///
    /// #[derive(Module)]
    /// struct Net {
    ///     body: Linear,
    ///     head: Linear,
    /// }
    ///
    /// # fn main() -> nn::Result<()> {
    /// let net = Net { body: Linear::new(8, 8)?, head: Linear::new(8, 2)? };
    /// let biases = Parameters::of(&net.body).filter(|p| p.name.ends_with("bias"));
    /// let optimizer = optim::adamw(&net)
    ///     .lr(1e-5)
    ///     .group(&net.head, |group| group.lr(1e-3).betas(0.9, 0.95))
    ///     .no_decay(biases);
    /// # let _ = optimizer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn group(
        mut self,
        params: impl Into<Parameters>,
        hyperparameters: impl FnOnce(Group) -> Group,
    ) -> Optim {
        let params = params.into();
        let group = hyperparameters(Group { params, lr: None, weight_decay: None, betas: None, rule: None });
        self.lr_state.add_group(group.lr);
        self.groups.push(group);
        self
    }

    /// Leaves these parameters without weight decay: a group of them.
    pub fn no_decay(self, params: impl Into<Parameters>) -> Optim {
        self.group(params, |group| group.weight_decay(0.0))
    }

    /// Leaves vectors, which are biases and norms, without weight decay, as the Trainer of transformers does: a group of
    /// those of the model.
    pub fn no_decay_of_vectors(self, model: &dyn Module) -> Optim {
        self.no_decay(Parameters::of(model).filter(|named| named.param.shape().sizes().len() < 2))
    }

    /// Selects by words in their names the matrices to which [`Rule::Muon`] and [`Rule::LowRank`] apply their own formulas;
    /// by default these are all but embeddings and the head.
    pub fn matrices(mut self, names: &[&str]) -> Optim {
        self.config.targets = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Sets the decays of the moments, where the rule has any, also of groups that say none.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Optim {
        self.config.rule = self.config.rule.clone().with_betas([beta1, beta2]);
        self
    }

    /// How the loss is scaled before the backward pass; by default as DeepSpeed does in f16, and not otherwise.
    pub fn loss_scale(mut self, loss_scale: oarlock_config::config::LossScale) -> Optim {
        self.config.loss_scale = Some(loss_scale);
        self
    }

    /// The group of each parameter that a group names, by its id; all others are in group 0.
    pub(crate) fn group_of(&self) -> HashMap<usize, usize> {
        let named = self
            .groups
            .iter()
            .zip(1..)
            .flat_map(|(group, index)| group.params.iter().map(move |named| (named.param.id(), index)));
        named.collect()
    }

    /// The numbers of all groups, with the learning rates at which schedules begin.
    pub(crate) fn param_groups(&self) -> Vec<ParamGroup> {
        let OptimizerConfig { rule, weight_decay, .. } = &self.config;
        let own = self.groups.iter().map(|group| {
            let rule = group.rule.as_ref().unwrap_or(rule).clone();
            (
                match group.betas {
                    Some(betas) => rule.with_betas(betas),
                    None => rule,
                },
                group.weight_decay.unwrap_or(*weight_decay),
            )
        });
        let all = std::iter::once((rule.clone(), *weight_decay))
            .chain(own)
            .zip(self.lr_state.lrs_by(|_, base| base));
        all.map(|((rule, weight_decay), lr)| ParamGroup { rule, lr, weight_decay }).collect()
    }

    /// Refuses groups that share a parameter, that have one of somebody else, or whose hyperparameters are none. `names`
    /// are those of the parameters in their model, by their ids.
    pub(crate) fn check_groups(&self, names: &HashMap<usize, &str>) -> Result<()> {
        let mut owners = HashMap::new();
        for (group, index) in self.groups.iter().zip(1..) {
            for named in group.params.iter() {
                let id = named.param.id();
                let name = names.get(&id).copied().unwrap_or(&named.name);
                if !self.params.contains(&id) {
                    return Err(Error::Usage(format!(
                        "prepare: group {index} of an optimizer has the parameter \"{name}\", which the optimizer does not \
                         update; give `group` parameters of those that the optimizer was made from"
                    )));
                }
                if let Some(other) = owners.insert(id, index).filter(|other| *other != index) {
                    return Err(Error::Usage(format!(
                        "prepare: the parameter \"{name}\" is in the groups {other} and {index} of its optimizer, and one \
                         group has its hyperparameters; take it out of one of them (`Parameters::filter`)"
                    )));
                }
            }
        }
        if self.lr_state.lrs().len() != self.groups.len() + 1 {
            return Err(Error::Usage(
                "prepare: an optimizer and a clone of it got groups, and clones share their learning rates; create \
                 each optimizer separately"
                    .to_owned(),
            ));
        }
        for (index, group) in self.param_groups().iter().enumerate() {
            group.check().map_err(|wrong| {
                Error::Usage(format!("prepare: group {index} of an optimizer has {wrong}"))
            })?;
            if !group.rule.is_like(&self.config.rule) {
                let (own, other) = (self.config.rule.name(), group.rule.name());
                return Err(Error::Usage(format!(
                    "prepare: group {index} of an optimizer {own} has a rule {other} that keeps other states; groups have \
                     other hyperparameters of one rule, and another rule is another optimizer with a model of its own"
                )));
            }
        }
        Ok(())
    }
}

/// Some of an optimizer's parameters with hyperparameters of their own; [`Optim::group`] hands it out.
#[derive(Clone, Debug)]
pub struct Group {
    params: Parameters,
    lr: Option<f64>,
    weight_decay: Option<f64>,
    betas: Option<[f64; 2]>,
    rule: Option<Rule>,
}

impl Group {
    /// Sets the learning rate at which its schedule begins.
    #[must_use]
    pub fn lr(self, lr: f64) -> Group {
        Group { lr: Some(lr), ..self }
    }

    /// Sets the weight decay.
    #[must_use]
    pub fn weight_decay(self, weight_decay: f64) -> Group {
        Group { weight_decay: Some(weight_decay), ..self }
    }

    /// Sets the decays of the moments, where the rule has any.
    #[must_use]
    pub fn betas(self, beta1: f64, beta2: f64) -> Group {
        Group { betas: Some([beta1, beta2]), ..self }
    }

    /// Sets all hyperparameters of the rule, for those that have no word here, such as the momentum of SGD. It is of the
    /// optimizer's kind and keeps the same states.
    #[must_use]
    pub fn rule(self, rule: Rule) -> Group {
        Group { rule: Some(rule), ..self }
    }
}

/// `torch.optim.AdamW` with torch's defaults: lr 1e-3, betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
pub fn adamw(params: impl Into<Parameters>) -> Optim {
    Optim::new(params, Rule::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 }, 1e-3, 0.01)
}

/// bitsandbytes' `AdamW8bit` with its defaults: [`adamw`], whose moments have 8 bits. Any optimizer for which
/// [`Rule::in_8_bits`] has one gets such states by [`Optim::new`].
pub fn adamw_8bit(params: impl Into<Parameters>) -> Optim {
    Optim::new(params, Rule::adamw_8bit(0.9, 0.999, 1e-8), 1e-3, 0.01)
}

/// `torch.optim.Adam` with torch's defaults: lr 1e-3, betas 0.9 and 0.999, eps 1e-8.
pub fn adam(params: impl Into<Parameters>) -> Optim {
    Optim::new(params, Rule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 }, 1e-3, 0.0)
}

/// DeepSpeed's `OneBitAdam` with its defaults: lr 1e-3, betas 0.9 and 0.999, eps 1e-8, no weight decay. Ranks sum gradients
/// up to `freeze_step` (there 100,000), and exchange the signs of first moments from then on.
pub fn onebit_adam(params: impl Into<Parameters>, freeze_step: u64) -> Optim {
    one_bit(params, OneBitKind::Adam { freeze_step })
}

/// DeepSpeed's `ZeroOneAdam` with its defaults, as [`onebit_adam`]. The second moment is updated up to `var_freeze_step` (there
/// 100,000), more and more seldom; afterward ranks take up to 16 steps between two exchanges.
pub fn zero_one_adam(params: impl Into<Parameters>, var_freeze_step: u64) -> Optim {
    let kind = OneBitKind::ZeroOneAdam {
        var_freeze_step,
        var_update_scaler: 16,
        local_step_scaler: 32_678,
        local_step_clipper: 16,
    };
    one_bit(params, kind)
}

/// DeepSpeed's `OneBitLamb` with its defaults, as [`onebit_adam`].
pub fn onebit_lamb(params: impl Into<Parameters>, freeze_step: u64) -> Optim {
    let kind = OneBitKind::Lamb {
        freeze_step,
        max_coeff: 10.0,
        min_coeff: 0.01,
        coeff_beta: 0.9,
        factor_max: 4.0,
        factor_min: 0.5,
        factor_threshold: 0.1,
    };
    one_bit(params, kind)
}

fn one_bit(params: impl Into<Parameters>, kind: OneBitKind) -> Optim {
    Optim::new(params, Rule::OneBit(OneBit { beta1: 0.9, beta2: 0.999, eps: 1e-8, kind }), 1e-3, 0.0)
}

/// A rule of one's own, with lr 1e-3 and no weight decay. It gets all that a built-in one gets: parameter groups,
/// schedules, clipping, loss scaling, sharded and offloaded states, checkpoints.
///
/// ```
/// use oarlock::nn::{self, Linear};
/// use oarlock::optim::{self, CustomRule, Update};
///
/// /// Gradient descent by the sign of the momentum.
/// #[derive(Clone, Debug)]
/// struct SignSgd {
///     momentum: f32,
/// }
///
/// impl CustomRule<1> for SignSgd {
///     fn name(&self) -> &'static str {
///         "sign_sgd"
///     }
///
///     fn states(&self) -> [&'static str; 1] {
///         ["momentum_buffer"]
///     }
///
///     fn update(&self, update: Update<'_, 1>) {
///         let Update { weights, grad, states: [buffer], lr, .. } = update;
///         for ((weight, b), g) in weights.iter_mut().zip(buffer).zip(grad) {
///             *b = self.momentum * *b + g;
///             let sign = f32::from(*b > 0.0) - f32::from(*b < 0.0);
///             *weight -= lr as f32 * sign;
///         }
///     }
/// }
///
/// # fn main() -> nn::Result<()> {
/// let model = Linear::new(8, 2)?;
/// let optimizer = optim::custom(&model, SignSgd { momentum: 0.9 }).lr(1e-4);
/// # let _ = optimizer;
/// # Ok(())
/// # }
/// ```
pub fn custom<const N: usize>(params: impl Into<Parameters>, rule: impl CustomRule<N>) -> Optim {
    Optim::new(params, Rule::custom(rule), 1e-3, 0.0)
}

/// `torch.optim.SGD` with torch's defaults: lr 1e-3, no momentum. See [`Optim::new`] and [`Rule::Sgd`] for momentum.
pub fn sgd(params: impl Into<Parameters>) -> Optim {
    Optim::new(params, Rule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false }, 1e-3, 0.0)
}
