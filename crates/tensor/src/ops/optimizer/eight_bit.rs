//! Rules whose states have 8 bits, as bitsandbytes keeps them.

use std::ops::Range;

use oarlock_kernels::optim::eight_bit::{BLOCK, MIN_ELEMS, Signs, WORDS, words};

use super::{MAX_STATES, Needs, Role, Rule};
use crate::shape::Shape;

/// A rule that is [`Needs::Elementwise`], with states of 8 bits: a code for each element, and an f32 scale for each 256 of a
/// parameter. Embeddings and parameters of less than 4,096 elements keep theirs in f32. [`Rule::in_8_bits`] makes it.
#[derive(Clone, Debug, PartialEq)]
pub struct EightBit(Box<Rule>);

impl Rule {
    /// The same rule with states of 8 bits; `None` of one that is not for each element by itself, or has no such kernel.
    pub fn in_8_bits(self) -> Option<Rule> {
        let has_kernel = match &self {
            Rule::AdamW { .. } | Rule::Lion { .. } => true,
            Rule::Custom(rule) => rule.needs() == Needs::Elementwise,
            _ => false,
        };
        has_kernel.then(|| EightBit::of(self))
    }

    /// [`Rule::AdamW`] with states of 8 bits.
    pub fn adamw_8bit(beta1: f64, beta2: f64, eps: f64) -> Rule {
        EightBit::of(Rule::AdamW { beta1, beta2, eps })
    }

    /// The rule for a parameter: that with states in f32 where this one keeps them so.
    pub fn on(&self, shape: &Shape, role: Role) -> &Rule {
        match self {
            Rule::EightBit(rule) if !is_packed(shape, role) => rule.rule(),
            rule => rule,
        }
    }
}

impl EightBit {
    /// Of a rule that has such a kernel.
    fn of(rule: Rule) -> Rule {
        Rule::EightBit(EightBit(Box::new(rule)))
    }

    /// How gradients change weights and the values of the states.
    pub fn rule(&self) -> &Rule {
        &self.0
    }

    /// Where a state has what belongs to these elements of a parameter that keeps it in 8 bits.
    pub fn words(elements: &Range<usize>) -> Range<usize> {
        elements.start / BLOCK * WORDS..words(elements.end)
    }

    pub(super) fn name(&self) -> &'static str {
        match self.0.name() {
            "adamw" => "adamw_8bit",
            "lion" => "lion_8bit",
            "rmsprop" => "rmsprop_8bit",
            "ademamix" => "ademamix_8bit",
            custom => custom,
        }
    }

    pub(super) fn state_shape(&self, index: usize, shape: &Shape, role: Role) -> Option<Shape> {
        let plain = self.0.state_shape(index, shape, role)?;
        match is_packed(shape, role) {
            true => Shape::new(&[shape.n_elems().div_ceil(BLOCK), WORDS]).ok(),
            false => Some(plain),
        }
    }

    pub(super) fn with_betas(&self, betas: [f64; 2]) -> EightBit {
        EightBit(Box::new(self.rule().clone().with_betas(betas)))
    }

    /// Which states have a sign: as in bitsandbytes all but the mean squares beside a mean.
    pub(super) fn signs(&self) -> Signs {
        let mut signs = [true; MAX_STATES];
        for (sign, name) in signs.iter_mut().zip(self.0.state_names()) {
            *sign = *name != "exp_avg_sq";
        }
        signs
    }
}

fn is_packed(shape: &Shape, role: Role) -> bool {
    role != Role::Embedding && shape.n_elems() >= MIN_ELEMS
}
