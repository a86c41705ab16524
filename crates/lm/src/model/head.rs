//! The head of a decoder: the final norm and the output weights, with the loss in the same pass, and a value head beside them.

use oarlock_engine::nn::{Module, RmsNorm, Visitor, in_scope};
use oarlock_tensor::ops::{self, HeadLoss, HeadOptions, Labels, TokenLoss};
use oarlock_tensor::{Error, Result, Tensor};

use super::projection::Projection;
use super::value_head::ValueHead;

/// The final norm and the output weights; those may be the embedding's. A reward model has a value head beside them.
#[derive(Debug)]
pub struct Head {
    pub(super) norm: RmsNorm,
    pub(super) lm_head: Projection,
    pub(super) logit_cap: Option<f32>,
    pub(super) value: Option<ValueHead>,
}

impl Module for Head {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("model.norm", &self.norm);
        visitor.child("lm_head", self.lm_head.module());
        if let Some(value) = &self.value {
            visitor.child("v_head", value);
        }
    }
}

impl Head {
    /// The product with the output weights, and the loss in the same pass.
    pub(super) fn loss(&self, x: &Tensor, labels: &Labels, kind: TokenLoss) -> Result<HeadLoss> {
        let normed = self.normed(x)?;
        let Projection::Linear(linear) = &self.lm_head else {
            if kind != TokenLoss::CrossEntropy {
                return Err(Error::Usage(
                    "smoothed labels, DFT and EAFT need the output weights as they are, and they were replaced".to_owned(),
                ));
            }
            return HeadLoss::of_logits(&self.logits_of(&normed)?, labels);
        };
        let options = HeadOptions { logit_cap: self.logit_cap };
        in_scope(linear, normed.device(), || {
            ops::head_token_loss(&normed, &linear.weight, labels, options, kind)
        })
    }

    /// Whether each label is the likeliest token.
    pub(super) fn hits(&self, x: &Tensor, labels: &Labels) -> Result<Tensor> {
        let normed = self.normed(x)?;
        let Projection::Linear(linear) = &self.lm_head else {
            return Err(Error::Usage(
                "the accuracy needs the output weights as they are, and they were replaced".into(),
            ));
        };
        let options = HeadOptions { logit_cap: self.logit_cap };
        in_scope(linear, normed.device(), || ops::head_hits(&normed, &linear.weight, labels, options))
    }

    pub(super) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        self.logits_of(&self.normed(x)?)
    }

    pub(super) fn logits_of(&self, normed: &Tensor) -> Result<Tensor> {
        let logits = self.lm_head.forward(normed)?;
        match self.logit_cap {
            Some(cap) => logits.scale(1.0 / cap)?.tanh()?.scale(cap),
            None => Ok(logits),
        }
    }

    /// The residual stream after the last norm, in the dtype of the output weights.
    pub(super) fn normed(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward_to(x, self.lm_head.dtype()?)
    }
}
