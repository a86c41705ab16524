//! Rules from outside of this crate.

use std::fmt;
use std::sync::Arc;

use super::{MAX_STATES, Needs, Rule, StepArgs};
use crate::shape::Shape;

/// A custom rule: how gradients change weights, with `N` named states, at most 8.
///
/// ```
/// use oarlock_tensor::ops::optimizer::{CustomRule, Rule, Update};
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
/// let rule = Rule::custom(SignSgd { momentum: 0.9 });
/// assert_eq!((rule.name(), rule.state_names()), ("sign_sgd", &["momentum_buffer"][..]));
/// ```
///
/// Its `Debug` form shows its numbers: ranks compare it before they train together.
pub trait CustomRule<const N: usize>: Clone + fmt::Debug + Send + Sync + 'static {
    /// Its name, for errors and profiles. A checkpoint is loaded by the rule of the name that saved it.
    fn name(&self) -> &'static str;

    /// The names of its states, under which checkpoints keep them. A state is an f32 for each element of a parameter,
    /// zero before the first step.
    fn states(&self) -> [&'static str; N];

    /// One step on some elements. It is called many times in a step, also on several threads at a time.
    fn update(&self, update: Update<'_, N>);

    /// What a call of [`update`](CustomRule::update) must be given: by default any run of elements, of one parameter or of
    /// several, so that each element's update may only depend on the same element of the gradient and of the states.
    /// With [`Needs::WholeParameters`] each call is for one whole parameter.
    fn needs(&self) -> Needs {
        Needs::Elementwise
    }

    /// The shape of state `index` of a parameter of this shape, and `None` where the parameter does without. Only a rule
    /// that needs whole parameters is asked; by default it is the parameter's.
    #[allow(unused_variables, reason = "named for whoever implements it")]
    fn state_shape(&self, index: usize, shape: &Shape) -> Option<Shape> {
        Some(*shape)
    }

    /// The decays of its moments, each at least 0 and below 1, if it has such a pair.
    fn betas(&self) -> Option<[f64; 2]> {
        None
    }

    /// The rule with these decays, which groups and schedules set.
    #[allow(unused_variables, reason = "named for whoever implements it")]
    fn with_betas(self, betas: [f64; 2]) -> Self {
        self
    }
}

/// What a [`CustomRule`] updates, and with which numbers.
#[derive(Debug)]
pub struct Update<'a, const N: usize> {
    /// The weights, to be updated: f32 also where the model computes in 16 bits.
    pub weights: &'a mut [f32],
    /// Their gradients, averaged and clipped.
    pub grad: &'a [f32],
    /// The states in the order of their names, to be updated.
    pub states: [&'a mut [f32]; N],
    /// The sizes of the parameter where the rule needs whole parameters; else the number of elements.
    pub sizes: &'a [usize],
    /// The number of this step; the first is 1.
    pub step: u64,
    /// The learning rate of their group, in this step.
    pub lr: f64,
    /// The weight decay of their group; 0 for none.
    pub weight_decay: f64,
}

/// A [`CustomRule`] as a value; [`Rule::custom`] makes it. Equal are only a value and its clones.
#[derive(Clone)]
pub struct Custom(Arc<dyn AnyRule>);

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Custom) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Rule {
    /// A custom rule.
    pub fn custom<const N: usize>(rule: impl CustomRule<N>) -> Rule {
        const { assert!(N <= MAX_STATES, "a custom rule keeps at most 8 states") };
        Rule::Custom(Custom(Arc::new(Named { states: rule.states(), rule })))
    }
}

impl Custom {
    pub(super) fn name(&self) -> &'static str {
        self.0.name()
    }

    pub(super) fn states(&self) -> &[&'static str] {
        self.0.states()
    }

    pub(super) fn needs(&self) -> Needs {
        self.0.needs()
    }

    pub(super) fn state_shape(&self, index: usize, shape: &Shape) -> Option<Shape> {
        match self.needs() {
            _ if index >= self.states().len() => None,
            Needs::Elementwise | Needs::Blocks => Some(*shape),
            Needs::WholeParameters => self.0.state_shape(index, shape),
        }
    }

    pub(super) fn betas(&self) -> Option<[f64; 2]> {
        self.0.betas()
    }

    pub(super) fn with_betas(&self, betas: [f64; 2]) -> Custom {
        self.0.with_betas(betas)
    }

    /// One step on elements of a parameter of these sizes, whose gradients are scaled already.
    pub(super) fn update(
        &self,
        args: &StepArgs,
        sizes: &[usize],
        weights: &mut [f32],
        states: [&mut [f32]; MAX_STATES],
        grad: &[f32],
    ) {
        self.0.update(args, sizes, weights, states, grad);
    }
}

/// A [`CustomRule`] with any number of states.
trait AnyRule: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;
    fn states(&self) -> &[&'static str];
    fn needs(&self) -> Needs;
    fn state_shape(&self, index: usize, shape: &Shape) -> Option<Shape>;
    fn betas(&self) -> Option<[f64; 2]>;
    fn with_betas(&self, betas: [f64; 2]) -> Custom;
    fn update(
        &self,
        args: &StepArgs,
        sizes: &[usize],
        weights: &mut [f32],
        states: [&mut [f32]; MAX_STATES],
        grad: &[f32],
    );
}

/// A rule beside the names of its states, which others borrow.
struct Named<R, const N: usize> {
    rule: R,
    states: [&'static str; N],
}

impl<R: fmt::Debug, const N: usize> fmt::Debug for Named<R, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rule.fmt(f)
    }
}

impl<R: CustomRule<N>, const N: usize> AnyRule for Named<R, N> {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn states(&self) -> &[&'static str] {
        &self.states
    }

    fn needs(&self) -> Needs {
        self.rule.needs()
    }

    fn state_shape(&self, index: usize, shape: &Shape) -> Option<Shape> {
        self.rule.state_shape(index, shape)
    }

    fn betas(&self) -> Option<[f64; 2]> {
        self.rule.betas()
    }

    fn with_betas(&self, betas: [f64; 2]) -> Custom {
        Custom(Arc::new(Named { rule: self.rule.clone().with_betas(betas), states: self.states }))
    }

    fn update(
        &self,
        args: &StepArgs,
        sizes: &[usize],
        weights: &mut [f32],
        states: [&mut [f32]; MAX_STATES],
        grad: &[f32],
    ) {
        let mut states = states.into_iter();
        let states = [(); N].map(|()| states.next().unwrap_or_default());
        let StepArgs { step, lr, weight_decay, .. } = *args;
        self.rule.update(Update { weights, grad, states, sizes, step, lr, weight_decay });
    }
}
